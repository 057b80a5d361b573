package kubetest

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// stopManagerWithin is generous: upstream's manager ends at once on SIGTERM.
const stopManagerWithin = 15 * time.Second

// Manager is a running kube-controller-manager of upstream's.
type Manager struct {
	proc *child
	log  string
	url  string
}

// ControllerManager starts upstream's kube-controller-manager with the given
// --controllers and stops it when the test ends. Leader election is off; hand in
// --leader-elect=true for upstream's defaults (lease 15 s, renewal 10 s, retry
// 2 s). extra comes last and wins.
func ControllerManager(t testing.TB, c *Cluster, controllers string, extra ...string) *Manager {
	t.Helper()
	m, err := LaunchControllerManager(t.Context(), c, controllers, extra...)
	if err != nil {
		t.Fatalf("starting kube-controller-manager: %v", err)
	}
	t.Cleanup(func() {
		if err := m.Stop(); err != nil {
			t.Errorf("stopping kube-controller-manager: %v", err)
		}
	})
	return m
}

// LaunchControllerManager is ControllerManager for programs that are no tests.
// It returns once the process serves /healthz, which is a moment before its
// controllers start or it asks to be elected. ctx bounds the launch only.
func LaunchControllerManager(ctx context.Context, c *Cluster, controllers string, extra ...string) (*Manager, error) {
	path, err := binary(ctx, "kube-controller-manager", c.log)
	if err != nil {
		return nil, err
	}
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	name := c.nextManager()
	m := &Manager{
		log: filepath.Join(c.dir, name+".log"),
		url: "https://127.0.0.1:" + strconv.Itoa(port),
	}
	logFile, err := os.Create(m.log)
	if err != nil {
		return nil, fmt.Errorf("opening the manager's log: %w", err)
	}
	defer logFile.Close()

	args := append([]string{
		"--kubeconfig=" + c.Kubeconfig(RoleControllerManager),
		"--controllers=" + controllers,
		"--leader-elect=false",
		// One identity per controller, as in a real cluster; its own user may
		// hardly do more than make those.
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + filepath.Join(c.dir, "service-account.key"),
		"--root-ca-file=" + filepath.Join(c.dir, "ca.crt"),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(port),
		"--cert-dir=" + filepath.Join(c.dir, name),
		"--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics",
	}, extra...)
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if m.proc, err = spawn(cmd); err != nil {
		return nil, err
	}
	if err := m.awaitHealthy(ctx); err != nil {
		m.proc.kill()
		return nil, fmt.Errorf("waiting for kube-controller-manager (log: %s): %w", m.log, err)
	}
	return m, nil
}

func (c *Cluster) nextManager() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.managers++
	return "kube-controller-manager-" + strconv.Itoa(c.managers)
}

// freePort finds a port for a program that can only be told a number. Somebody
// may take it in between; then the manager ends at once and says so.
func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("finding a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// insecure reads a manager's own pages; its certificate is one it made itself.
var insecure = &http.Client{
	Timeout:   2 * time.Second,
	Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
}

func (m *Manager) awaitHealthy(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, readyWithin)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if _, last = m.get(ctx, "/healthz"); last == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-m.proc.done:
			return errors.Join(m.proc.err, last)
		case <-ctx.Done():
			return errors.Join(ctx.Err(), last)
		}
	}
}

func (m *Manager) get(ctx context.Context, path string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+path, nil)
	if err != nil {
		return nil, fmt.Errorf("asking the manager for %s: %w", path, err)
	}
	resp, err := insecure.Do(req)
	if err != nil {
		return nil, fmt.Errorf("asking the manager for %s: %w", path, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, fmt.Errorf("reading %s of the manager: %w", path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("asking the manager for %s: %s", path, resp.Status)
	}
	return body, nil
}

// Metrics is the manager's /metrics page, in Prometheus' text format.
func (m *Manager) Metrics(ctx context.Context) ([]byte, error) { return m.get(ctx, "/metrics") }

// Log is the path of the manager's log.
func (m *Manager) Log() string { return m.log }

// Pid is the manager's process.
func (m *Manager) Pid() int { return m.proc.process.Pid }

// Kill ends the manager with SIGKILL and waits until it is gone.
func (m *Manager) Kill() { m.proc.kill() }

// Stop ends the manager gracefully. Stopping twice, or after Kill, is no error.
func (m *Manager) Stop() error {
	m.proc.signal(syscall.SIGCONT) // a frozen one would not hear the rest
	return m.proc.stop(stopManagerWithin)
}

// Freeze stops the manager with SIGSTOP, as a long pause of the machine would.
func (m *Manager) Freeze() error { return m.proc.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (m *Manager) Thaw() error { return m.proc.signal(syscall.SIGCONT) }
