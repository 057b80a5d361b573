// Package fleet runs a whole installation as real processes on loopback: an API
// server, NATS, watchers and replicas of roles, each of which can be killed,
// frozen, thawed and restarted. The demonstration, the whole-system tests and
// the measurements stand on it; the product does not.
package fleet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Process is one child process. Its output goes to a file.
type Process struct {
	// Name is unique within a fleet: "endpoints-1".
	Name string
	// Log is the file that holds what it printed.
	Log string

	cmd  *exec.Cmd
	from int64         // where in Log this process began: a restart appends
	done chan struct{} // closed once it has ended
	err  error         // how; readable after done
}

// start runs a command whose output goes to dir/name.log. It dies with us.
func start(dir, name, path string, args, env []string) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, fmt.Errorf("opening log of %s: %w", name, err)
	}
	if info, err := out.Stat(); err == nil {
		p.from = info.Size()
	}
	p.cmd = exec.Command(path, args...) //nolint:gosec,noctx // our own binaries; ended by Stop and Kill
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.Env = env
	p.cmd.SysProcAttr = dieWithParent()
	if err := p.cmd.Start(); err != nil {
		_ = out.Close()
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		_ = out.Close()
		close(p.done)
	}()
	return p, nil
}

// Pid returns its process id.
func (p *Process) Pid() int { return p.cmd.Process.Pid }

// Running reports whether it has not ended.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Done is closed once it has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill sends SIGKILL and waits for the end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Freeze sends SIGSTOP, Thaw SIGCONT.
func (p *Process) Freeze() error { return p.cmd.Process.Signal(syscall.SIGSTOP) }

// Thaw lets a frozen process go on.
func (p *Process) Thaw() error { return p.cmd.Process.Signal(syscall.SIGCONT) }

// Stop sends SIGTERM and waits; after ctx ends it kills. It returns an error if
// the process had to be killed or ended in failure.
func (p *Process) Stop(ctx context.Context) error {
	if !p.Running() {
		return nil
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("stopping %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
		if p.err != nil {
			return fmt.Errorf("stopping %s: %w", p.Name, p.err)
		}
		return nil
	case <-ctx.Done():
		p.Kill()
		return fmt.Errorf("stopping %s: %w; killed", p.Name, ctx.Err())
	}
}

// ExitCode returns the exit code of a process that has ended.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Output returns what it has printed so far.
func (p *Process) Output() string {
	b, _ := os.ReadFile(p.Log)
	return string(b[min(p.from, int64(len(b))):])
}

// Usage is what a running process has used.
type Usage struct {
	ResidentBytes uint64
	CPU           time.Duration
}

// Usage reads it from the kernel.
func (p *Process) Usage() (Usage, error) { return usageOf(p.Pid()) }

// usageOf reads /proc; clock ticks are 100 a second on every Linux port of Go.
func usageOf(pid int) (Usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Usage{}, fmt.Errorf("reading usage: %w", err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 22 {
		return Usage{}, fmt.Errorf("reading usage: %d fields", len(fields))
	}
	var n [3]uint64 // utime, stime, rss
	for i, at := range [3]int{11, 12, 21} {
		if n[i], err = strconv.ParseUint(fields[at], 10, 64); err != nil {
			return Usage{}, fmt.Errorf("reading usage: %w", err)
		}
	}
	return Usage{
		CPU:           time.Duration(n[0]+n[1]) * (time.Second / 100), //nolint:gosec // small
		ResidentBytes: n[2] * uint64(os.Getpagesize()),                //nolint:gosec // positive
	}, nil
}
