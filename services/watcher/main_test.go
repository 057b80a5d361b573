package watcher

import (
	"os"
	"testing"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }
