package kubetest

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// shared is the one cluster of a test binary.
var shared struct {
	mu      sync.Mutex
	main    bool // Main runs, and will stop the cluster
	opts    []Option
	cluster *Cluster
	err     error
}

// Main runs the tests of a package that shares one cluster, and stops it
// afterwards. It starts nothing: the first call of Shared does, so that running
// one unit test costs no API server.
//
//	func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }
func Main(m *testing.M, opts ...Option) int {
	shared.mu.Lock()
	shared.main, shared.opts = true, opts
	shared.mu.Unlock()

	code := m.Run()

	shared.mu.Lock()
	defer shared.mu.Unlock()
	if shared.cluster == nil {
		return code
	}
	if err := shared.cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, "kubetest: stopping the shared cluster:", err)
		code = max(code, 1)
	}
	if err := os.RemoveAll(shared.cluster.dir); err != nil {
		fmt.Fprintln(os.Stderr, "kubetest: removing the shared cluster:", err)
	}
	return code
}

// Shared returns the package's cluster, starting it on the first call. A test
// that breaks the server must restore it before it ends, or use Start.
func Shared(t testing.TB) *Cluster {
	t.Helper()
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.main {
		t.Fatal("kubetest.Shared needs a TestMain that calls kubetest.Main")
	}
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = launchShared(shared.opts)
	}
	if shared.err != nil { // once is enough: every further try would fail as slowly
		t.Fatalf("starting the shared cluster: %v", shared.err)
	}
	return shared.cluster
}

func launchShared(opts []Option) (*Cluster, error) {
	dir, err := os.MkdirTemp("", "kubetest-")
	if err != nil {
		return nil, fmt.Errorf("making a state directory: %w", err)
	}
	return Launch(context.Background(), dir, os.Stderr, opts...)
}

// Namespace makes a namespace for one test and returns its name. It is left
// behind: without a namespace controller a deletion would never end.
func (c *Cluster) Namespace(t testing.TB) string {
	t.Helper()
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}
	made, err := c.Client().CoreV1().Namespaces().Create(t.Context(), ns, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("making a namespace: %v", err)
	}
	return made.Name
}
