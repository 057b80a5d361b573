package kubetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// BinariesEnv names a directory that holds devcluster and
// kube-controller-manager already, for programs that run outside a checkout.
const BinariesEnv = "MILLRACE_DEVCLUSTER"

// binary returns the path of a binary of deploy/devcluster, building it when
// its sources are newer than the cache. Minutes the first time; progress goes to
// log.
func binary(ctx context.Context, name string, log io.Writer) (string, error) {
	if dir := os.Getenv(BinariesEnv); dir != "" {
		return filepath.Join(dir, name), nil
	}
	script, err := buildScript()
	if err != nil {
		return "", err
	}
	var dir bytes.Buffer
	cmd := exec.CommandContext(ctx, script, "--only", name)
	cmd.Stdout, cmd.Stderr = &dir, log
	// Asked to end, the script ends its compiler too; killed, it could not.
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 5 * time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("building %s: %w", name, err)
	}
	return filepath.Join(strings.TrimSpace(dir.String()), name), nil
}

// buildScript looks for the checkout above the working directory, which for a
// test is its package's.
func buildScript() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the checkout: %w", err)
	}
	for {
		script := filepath.Join(dir, "deploy", "devcluster", "build")
		if _, err := os.Stat(script); err == nil {
			return script, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("finding the checkout: no deploy/devcluster/build above the working directory; set " + BinariesEnv)
		}
		dir = parent
	}
}
