package kubetest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

const (
	// readyWithin bounds a start of the API server, which takes 3 to 4 s on two
	// idle cores; tests of many packages share them.
	readyWithin = 90 * time.Second

	// stopWithin is above the 5 s that devcluster allows itself.
	stopWithin = 15 * time.Second
)

// Roles that have a kubeconfig; see deploy/devcluster/rbac for their rights.
const (
	RoleAdmin             = "admin"
	RoleControllerManager = "kube-controller-manager"
	RoleWatcher           = "watcher"
	RoleEndpoints         = "endpoints"
	RoleNodeLifecycle     = "nodelifecycle"
	RolePodEvictor        = "podevictor"
	RoleQuota             = "quota"
)

// Cluster is a running API server with its etcd. Its methods may be called from
// several goroutines.
type Cluster struct {
	path       string // of the binary
	dir        string
	durable    bool
	serverArgs []string
	rbacFiles  []string
	log        io.Writer

	mu       sync.Mutex
	proc     *child
	ready    readyLine
	managers int // controller managers started, to name their files
	nodes    int // nodes handed to kubelets, to keep their addresses apart
}

// readyLine is what devcluster prints once it serves.
type readyLine struct {
	Server string `json:"server"`
	Admin  string `json:"admin"`
}

// Option changes how a cluster is started.
type Option func(*Cluster)

// WithDir keeps the cluster's state in dir instead of a folder of the test, so
// that a second cluster can continue it.
func WithDir(dir string) Option { return func(c *Cluster) { c.dir = dir } }

// WithDurableDir is WithDir with fsync on: slower, and as safe as a real etcd.
func WithDurableDir(dir string) Option {
	return func(c *Cluster) { c.dir, c.durable = dir, true }
}

// WithRBACFiles applies YAML files of RBAC objects before the cluster is ready,
// after the built-in rights of the millrace roles.
func WithRBACFiles(files ...string) Option {
	return func(c *Cluster) { c.rbacFiles = append(c.rbacFiles, files...) }
}

// WithServerArgs hands flags to kube-apiserver after kubetest's own.
func WithServerArgs(args ...string) Option {
	return func(c *Cluster) { c.serverArgs = append(c.serverArgs, args...) }
}

// Start starts a cluster and stops it when the test ends. The binary is built
// when it is missing.
func Start(t testing.TB, opts ...Option) *Cluster {
	t.Helper()
	c, err := Launch(t.Context(), "", os.Stderr, append([]Option{withTestDir(t)}, opts...)...)
	if err != nil {
		t.Fatalf("starting a cluster: %v", err)
	}
	t.Cleanup(func() {
		if err := c.Stop(); err != nil {
			t.Errorf("stopping the cluster: %v", err)
		}
	})
	return c
}

// withTestDir is the default that WithDir overrides.
func withTestDir(t testing.TB) Option { return func(c *Cluster) { c.dir = t.TempDir() } }

// Launch is Start for programs that are no tests: it keeps the state in dir and
// writes the build's progress to log. ctx bounds the launch only; the caller
// stops the cluster.
func Launch(ctx context.Context, dir string, log io.Writer, opts ...Option) (*Cluster, error) {
	c := &Cluster{dir: dir, log: log}
	for _, o := range opts {
		o(c)
	}
	var err error
	if c.path, err = binary(ctx, "devcluster", log); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return nil, err
	}
	return c, nil
}

// start runs devcluster on the cluster's directory until it says it is ready.
func (c *Cluster) start(ctx context.Context) error {
	args := []string{"--dir", c.dir}
	if c.durable {
		args = append(args, "--durable")
	}
	for _, file := range c.rbacFiles {
		args = append(args, "--rbac-file", file)
	}
	args = append(append(args, "--"), c.serverArgs...)

	out, in, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("making a pipe: %w", err)
	}
	defer out.Close()
	cmd := exec.Command(c.path, args...)
	cmd.Stdout, cmd.Stderr = in, c.log
	proc, err := spawn(cmd)
	in.Close()
	if err != nil {
		return err
	}
	ready, err := awaitReady(ctx, out)
	if err != nil {
		proc.kill()
		return fmt.Errorf("waiting for the API server (log: %s): %w", filepath.Join(c.dir, "apiserver.log"), err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.proc, c.ready = proc, ready
	return nil
}

// awaitReady reads the one line devcluster prints. End of file means that it
// gave up, and why is in its log.
func awaitReady(ctx context.Context, out *os.File) (readyLine, error) {
	stop := context.AfterFunc(ctx, func() { out.SetReadDeadline(time.Now()) })
	defer stop()
	if err := out.SetReadDeadline(time.Now().Add(readyWithin)); err != nil {
		return readyLine{}, err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err != nil {
		return readyLine{}, errors.Join(context.Cause(ctx), err)
	}
	var ready readyLine
	if err := json.Unmarshal(line, &ready); err != nil {
		return readyLine{}, fmt.Errorf("reading the ready line %q: %w", line, err)
	}
	return ready, nil
}

func (c *Cluster) current() (*child, readyLine) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proc, c.ready
}

// Server is the URL of the API server. It stays the same through Restart.
func (c *Cluster) Server() string { _, r := c.current(); return r.Server }

// Dir is where the cluster keeps its state, kubeconfigs and logs.
func (c *Cluster) Dir() string { return c.dir }

// Pid is the process that runs API server and etcd.
func (c *Cluster) Pid() int { p, _ := c.current(); return p.process.Pid }

// Kubeconfig is the path of a role's kubeconfig; it is self-contained.
func (c *Cluster) Kubeconfig(role string) string {
	return filepath.Join(c.dir, role+".kubeconfig")
}

// Config returns a fresh client configuration of one role, with client-go's
// default limits. It panics for a role that does not exist.
func (c *Cluster) Config(role string) *rest.Config {
	cfg, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig(role))
	if err != nil {
		panic(fmt.Sprintf("kubetest: reading the kubeconfig of %s: %v", role, err))
	}
	cfg.WarningHandler = rest.NoWarnings{} // that Endpoints are deprecated is known here
	return cfg
}

// Admin is Config of a member of system:masters, without a client-side limit.
func (c *Cluster) Admin() *rest.Config {
	cfg := c.Config(RoleAdmin)
	cfg.QPS = -1
	return cfg
}

// Client is a clientset of Admin.
func (c *Cluster) Client() kubernetes.Interface { return kubernetes.NewForConfigOrDie(c.Admin()) }

// Kill ends API server and etcd with SIGKILL and waits until they are gone.
func (c *Cluster) Kill() { p, _ := c.current(); p.kill() }

// Stop ends API server and etcd gracefully and waits for them. Stopping twice,
// or after Kill, is no error.
func (c *Cluster) Stop() error {
	p, _ := c.current()
	p.signal(syscall.SIGCONT) // a frozen one would not hear the rest
	return p.stop(stopWithin)
}

// Restart starts the cluster again, on the same data and ports, killing it first
// if it still runs.
func (c *Cluster) Restart(ctx context.Context) error {
	c.Kill()
	return c.start(ctx)
}

// Freeze stops API server and etcd with SIGSTOP: connections stay open and
// nothing is answered, not even a ping.
func (c *Cluster) Freeze() error { p, _ := c.current(); return p.signal(syscall.SIGSTOP) }

// Thaw ends Freeze.
func (c *Cluster) Thaw() error { p, _ := c.current(); return p.signal(syscall.SIGCONT) }

// Compact makes etcd forget all history up to now. The API server may still
// answer an old watch from memory; after Restart such a watch gets 410 Gone for
// certain.
func (c *Cluster) Compact(ctx context.Context) error {
	_, ready := c.current()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, ready.Admin+"/compact", nil)
	if err != nil {
		return fmt.Errorf("asking for a compaction: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("asking for a compaction: %w", err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(resp.Body, 1<<10)) // best effort: it only explains
		return fmt.Errorf("asking for a compaction: %s: %s", resp.Status, text)
	}
	return nil
}
