package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// Options say what to run.
type Options struct {
	// Dir holds state and logs; it must exist.
	Dir string
	// Progress is told what takes long; nil: nobody.
	Progress io.Writer
	// Env is added to the environment of every millrace process.
	Env []string
	// Partitions of the installation; 0: the default.
	Partitions int
	// MaxPayload is the largest message NATS takes, as in its configuration;
	// empty: 4MB. NATS.MaxPayload changes it at a restart.
	MaxPayload string
	// Standalone leaves NATS out: a member of role Standalone brings it.
	Standalone bool
	// Binaries is a folder that Build has filled; empty: they are built into Dir.
	Binaries string
}

// Standalone is the role that is all of them in one process. Its members share
// one folder, one after the other.
const Standalone = "standalone"

// Fleet is one installation: an API server, one NATS server (nil in a standalone
// one), and the members that have been started. Its methods may be called from several goroutines.
type Fleet struct {
	Cluster *kubetest.Cluster
	NATS    *NATS

	opts   Options
	binary string

	mu      sync.Mutex
	members []*Member
}

// Member is one millrace process.
type Member struct {
	*Process
	Role string
	// URL is where it serves /livez, /readyz and /metrics.
	URL string
}

// Start builds the binaries and starts the API server and NATS, no members.
func Start(ctx context.Context, opts Options) (*Fleet, error) {
	if opts.Progress == nil {
		opts.Progress = io.Discard
	}
	binaries := opts.Binaries
	if binaries == "" {
		binaries = opts.Dir
		if err := Build(ctx, binaries, !opts.Standalone); err != nil {
			return nil, err
		}
	}
	f := &Fleet{opts: opts, binary: filepath.Join(binaries, "millrace")}
	var err error
	if !opts.Standalone {
		dir := filepath.Join(opts.Dir, "nats")
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("making folder of NATS: %w", err)
		}
		if f.NATS, err = startNATS(ctx, filepath.Join(binaries, "nats-server"), dir, opts.MaxPayload); err != nil {
			return nil, err
		}
	}
	if f.Cluster, err = kubetest.Launch(ctx, filepath.Join(opts.Dir, "cluster"), opts.Progress); err != nil {
		f.killNATS()
		return nil, err
	}
	return f, nil
}

func (f *Fleet) killNATS() {
	if f.NATS != nil {
		f.NATS.Kill()
	}
}

// Alone is another installation on the same API server: a standalone one, which
// members of that role make up. It is stopped with its members.
func (f *Fleet) Alone() *Fleet {
	opts := f.opts
	opts.Standalone = true
	return &Fleet{Cluster: f.Cluster, opts: opts, binary: f.binary}
}

// Folder is where members of role Standalone keep their streams.
func (f *Fleet) Folder() string { return filepath.Join(f.opts.Dir, Standalone) }

// URL is where clients find NATS, the embedded one while there is no other.
func (f *Fleet) URL() string {
	if f.NATS != nil {
		return f.NATS.URL
	}
	b, _ := os.ReadFile(filepath.Join(f.Folder(), "nats.url")) // none yet: a client says so
	return strings.TrimSpace(string(b))
}

// Build makes the binaries that are ours to build, that of NATS if asked for, in
// a folder for Options.Binaries; Go's cache makes that quick.
func Build(ctx context.Context, dir string, withNATS bool) error {
	root, err := ModuleRoot()
	if err != nil {
		return err
	}
	if err := lookAtSources(root); err != nil {
		return err
	}
	programs := map[string]string{filepath.Join(dir, "millrace"): "./services/millrace"}
	if withNATS {
		programs[filepath.Join(dir, "nats-server")] = "github.com/nats-io/nats-server/v2"
	}
	for out, pkg := range programs {
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", out, pkg) //nolint:gosec // ours
		cmd.Dir = root
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if text, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("building %s: %w\n%s", pkg, err, text)
		}
	}
	return nil
}

// lookAtSources looks at everything the binaries are built from, so that the
// cache of `go test`, which sees what a test looks at but not what its children
// read, does not repeat an old result when the product has changed.
func lookAtSources(root string) error {
	for _, room := range []string{"go.mod", "go.sum", "proto", "shared", "services", filepath.Join("deploy", "devcluster")} {
		err := filepath.WalkDir(filepath.Join(root, room), func(path string, _ os.DirEntry, err error) error {
			if err == nil && !strings.HasSuffix(path, "_test.go") {
				_, err = os.Stat(path)
			}
			if errors.Is(err, os.ErrNotExist) {
				return nil // an editor's passing file
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("looking at the sources: %w", err)
		}
	}
	return nil
}

// ModuleRoot is the folder of the nearest go.mod upwards.
func ModuleRoot() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("finding the module: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("finding the module: no go.mod above")
		}
		dir = parent
	}
}

// Member starts one millrace process of a role under a name of its own. It
// returns once the process serves its telemetry, which is before it is ready.
func (f *Fleet) Member(ctx context.Context, role, name string, env ...string) (*Member, error) {
	p, err := start(f.opts.Dir, name, f.binary, []string{role}, f.Env(role, append([]string{"POD_NAME=" + name}, env...)...))
	if err != nil {
		return nil, err
	}
	m := &Member{Process: p, Role: role}
	if m.URL, err = m.awaitURL(ctx); err != nil {
		p.Kill()
		return nil, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.members = append(f.members, m)
	return m, nil
}

// Binary returns the path of the millrace binary.
func (f *Fleet) Binary() string { return f.binary }

// Env is the environment of a process of a role.
func (f *Fleet) Env(role string, more ...string) []string {
	env := []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"),
		"MILLRACE_LISTEN=127.0.0.1:0",
	}
	if role == Standalone { // as its user would: with the kubeconfig at hand
		env = append(env, "MILLRACE_STANDALONE_DIR="+f.Folder(), "KUBECONFIG="+f.Cluster.Kubeconfig(kubetest.RoleAdmin))
	} else {
		env = append(env, "MILLRACE_NATS_URL="+f.URL(), "KUBECONFIG="+f.Cluster.Kubeconfig(role))
	}
	if f.opts.Partitions > 0 {
		env = append(env, fmt.Sprintf("MILLRACE_NATS_PARTITIONS=%d", f.opts.Partitions))
	}
	return append(append(env, f.opts.Env...), more...)
}

// Run runs an operator's command and returns what it printed.
func (f *Fleet) Run(ctx context.Context, args ...string) (string, error) {
	r := f.Exec(ctx, f.Env(kubetest.RoleAdmin), args...)
	if r.Code != 0 {
		return r.Out, fmt.Errorf("running millrace %s: exit %d: %s", strings.Join(args, " "), r.Code, r.Complaints)
	}
	return r.Out, nil
}

// Result is how a command ended.
type Result struct {
	Out, Complaints string
	// Code is the exit code; negative if there was none.
	Code int
}

// Exec runs the binary in exactly this environment until it ends by itself.
func (f *Fleet) Exec(ctx context.Context, env []string, args ...string) Result {
	var out, complaints strings.Builder
	cmd := exec.CommandContext(ctx, f.binary, args...) //nolint:gosec // ours
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &out, &complaints
	err := cmd.Run()
	r := Result{Out: out.String(), Complaints: complaints.String(), Code: -1}
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		r.Code = exit.ExitCode()
	} else if err == nil {
		r.Code = 0
	}
	return r
}

// Members returns the members that run.
func (f *Fleet) Members(role string) []*Member {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []*Member
	for _, m := range f.members {
		if m.Role == role && m.Running() {
			out = append(out, m)
		}
	}
	return out
}

// Stop stops members, NATS and the API server, in this order.
func (f *Fleet) Stop(ctx context.Context) error {
	f.mu.Lock()
	members := f.members
	f.members = nil
	f.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(members))
	for i, m := range members {
		wg.Go(func() {
			_ = m.Thaw() // a frozen process cannot be asked
			if m.Running() {
				errs[i] = m.Stop(ctx)
			}
		})
	}
	wg.Wait()
	f.killNATS()
	return errors.Join(errors.Join(errs...), f.Cluster.Stop())
}

// awaitURL waits for the log line that tells the address.
func (m *Member) awaitURL(ctx context.Context) (string, error) {
	for {
		for line := range strings.Lines(m.Output()) {
			var entry struct{ Msg, Address string }
			if json.Unmarshal([]byte(line), &entry) == nil && entry.Msg == "telemetry serves" {
				return "http://" + entry.Address, nil
			}
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-m.done:
			return "", fmt.Errorf("starting %s: it ended: %s", m.Name, m.Output())
		case <-ctx.Done():
			return "", fmt.Errorf("starting %s: %w", m.Name, ctx.Err())
		}
	}
}
