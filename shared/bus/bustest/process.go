package bustest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/embedded"
)

// Environment of the child process: the test binary itself, run again.
const (
	childDir  = "MILLRACE_BUSTEST_DIR"
	childPort = "MILLRACE_BUSTEST_PORT"
)

// A test binary that imports this package can be run again as a server: no
// TestMain has to say so, and nothing has to be built first.
func init() { //nolint:gochecknoinits // it must run before any test, in every test binary
	if dir := os.Getenv(childDir); dir != "" {
		os.Exit(serve(dir))
	}
}

func serve(dir string) int {
	port, err := strconv.Atoi(os.Getenv(childPort))
	if err != nil {
		fmt.Println("error", err)
		return 2
	}
	s, err := embedded.Start(embedded.Options{Dir: dir, Port: port})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("ready", s.URL())
	// The parent's end of stdin closes when the parent dies in any way.
	gone := make(chan os.Signal, 1)
	signal.Notify(gone, syscall.SIGTERM)
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		gone <- syscall.SIGTERM
	}()
	<-gone
	s.Stop()
	return 0
}

// Process is a NATS server in a process of its own.
type Process struct {
	t     testing.TB
	dir   string
	port  int
	url   string
	cmd   *exec.Cmd
	stdin interface{ Close() error }
}

// StartProcess runs a server in a child process until the test ends.
func StartProcess(t testing.TB) *Process {
	t.Helper()
	p := &Process{t: t, dir: t.TempDir()}
	p.Restart()
	t.Cleanup(p.Stop)
	return p
}

// URL is where clients connect; it stays the same over restarts.
func (p *Process) URL() string { return p.url }

// Config is a configuration that connects to the server.
func (p *Process) Config() bus.Config { return ConfigFor(p.url) }

// PID is the child's process id; 0 while stopped.
func (p *Process) PID() int {
	if p.cmd == nil {
		return 0
	}
	return p.cmd.Process.Pid
}

// Stop ends the server with SIGTERM.
func (p *Process) Stop() { p.end(syscall.SIGTERM) }

// Kill ends it with SIGKILL.
func (p *Process) Kill() { p.end(syscall.SIGKILL) }

// Freeze stops the process and returns when every thread of it stands still,
// which the signal alone does not promise.
func (p *Process) Freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	await(p.t, "NATS to stand still", func() bool {
		states, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", p.PID()))
		for _, file := range states {
			// The state follows the name in parentheses: "42 (name) T …".
			stat, err := os.ReadFile(file)
			if _, after, ok := strings.Cut(string(stat), ") "); err != nil || !ok || after[0] != 'T' {
				return false
			}
		}
		return len(states) > 0
	})
}

// Thaw continues a frozen process.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

// Wipe kills the server, deletes its store and starts it again.
func (p *Process) Wipe() {
	p.t.Helper()
	p.Kill()
	wipe(p.t, p.dir)
	p.Restart()
}

// Restart starts the server on the same port and store, ending it first if it
// runs.
func (p *Process) Restart() {
	p.t.Helper()
	p.Stop()
	cmd := exec.Command(os.Args[0])
	port := "-1"
	if p.port != 0 {
		port = strconv.Itoa(p.port)
	}
	cmd.Env = append(os.Environ(), childDir+"="+p.dir, childPort+"="+port)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		p.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	p.cmd, p.stdin = cmd, stdin
	line, err := bufio.NewReader(stdout).ReadString('\n')
	url, ready := strings.CutPrefix(strings.TrimSpace(line), "ready ")
	if err != nil || !ready {
		p.Kill()
		p.t.Fatalf("NATS did not start: %q, %v", line, err)
	}
	p.url, p.port = url, portOf(p.t, url)
}

func (p *Process) signal(s syscall.Signal) {
	p.t.Helper()
	if p.cmd == nil {
		p.t.Fatal("NATS does not run")
	}
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
}

func (p *Process) end(s syscall.Signal) {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Signal(s) // it may have ended by itself
	if s == syscall.SIGTERM {
		_ = p.cmd.Process.Signal(syscall.SIGCONT) // a frozen one hears it now
	}
	_ = p.cmd.Wait() // a killed process is no error here
	_ = p.stdin.Close()
	p.cmd, p.stdin = nil, nil
}
