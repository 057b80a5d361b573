package kubetest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// child is a process that dies with its parent, also when the parent is killed
// (on Linux; elsewhere only Stop and Kill end it).
type child struct {
	process *os.Process
	done    chan struct{}
	err     error // how it ended; read after done
}

// spawn starts cmd and watches over it.
func spawn(cmd *exec.Cmd) (*child, error) {
	dieWithParent(cmd)
	c := &child{done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// Linux sends the parent-death signal when the *thread* that forked ends,
		// so that thread is kept for as long as the child lives.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		c.process = cmd.Process
		started <- nil
		c.err = cmd.Wait()
		close(c.done)
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", cmd.Path, err)
	}
	return c, nil
}

// signal sends sig; a child that has ended already is no error.
func (c *child) signal(sig os.Signal) error {
	if err := c.process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("sending %s: %w", sig, err)
	}
	return nil
}

// kill ends the child with SIGKILL and waits for it.
func (c *child) kill() {
	c.signal(syscall.SIGKILL) // it can only fail because the child is gone
	<-c.done
}

// stop ends the child with SIGTERM. One that is still there after within is
// killed, and that is an error.
func (c *child) stop(within time.Duration) error {
	if err := c.signal(syscall.SIGTERM); err != nil {
		return err
	}
	select {
	case <-c.done:
		return nil
	case <-time.After(within):
		c.kill()
		return fmt.Errorf("waiting for the process to end: still there after %s, killed", within)
	}
}
