package role

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/controller/controllertest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/process"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Environment of a member: the test binary itself, run again.
const (
	memberURL  = "MILLRACE_ROLE_TEST_URL"
	memberName = "MILLRACE_ROLE_TEST_NAME"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(memberURL); url != "" {
		os.Exit(member(url))
	}
	os.Exit(kubetest.Main(m))
}

// member does the job when it holds it, and says so.
func member(url string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	go func() { // the parent's end closes when the parent dies in any way
		_, _ = os.Stdin.Read(make([]byte, 1))
		stop()
	}()
	name := os.Getenv(memberName)
	b, err := bus.Connect(ctx, bustest.ConfigFor(url), "tester", nil, nil)
	if err != nil {
		return 1
	}
	defer b.Close()
	e := &Edges{Bus: b, name: "tester", host: name, env: &process.Env{Log: slog.New(slog.DiscardHandler)}}
	e.Job(controller.JobDefinition{Name: "count"}, func(ctx context.Context, j *controller.Job) error {
		if j.Guard(ctx, event.Key{Name: "x"}, controller.Harmless) == nil {
			fmt.Fprintln(os.Stdout, "took", name, j.Epoch())
		}
		<-ctx.Done()
		fmt.Fprintln(os.Stdout, "gave", name, j.Epoch())
		return ctx.Err()
	})
	c, wait, err := framed(ctx, e, nil)
	if err != nil {
		return 1
	}
	e.serveJobs(ctx, c)()
	wait()
	return 0
}

// framed runs the frame of e's role, which holds no partition, until ctx ends.
func framed(ctx context.Context, e *Edges, parts map[string]string) (c *controller.Controller, wait func(), err error) {
	c, err = controller.New(controller.Default(), controller.Definition{
		Role: e.name, Host: e.host, By: protocol.ByKey, Parts: parts, Clock: trueClock{},
		Inputs: []cache.Input{{Kind: "pods", Projection: 1}},
		Keys:   func(*controller.Partition, cache.Change) []event.Key { return nil },
		All:    func(*controller.Partition) []event.Key { return nil },
		New:    func(*controller.Partition) controller.Reconciler { return nil },
	}, e.Bus, e.env.Log, e.env.Registry)
	if err != nil {
		return nil, nil, err
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = controller.Serve(ctx, c, controllertest.NewLease()) // its lease does not fail
	}()
	return c, func() { <-done }, nil
}

// trueClock is a cluster's that is ours.
type trueClock struct{}

func (trueClock) ClusterTime(now time.Time) (time.Time, time.Duration, bool) { return now, 0, true }

// serving serves the jobs of a member until the test ends, or stop is called.
func serving(t *testing.T, e *Edges, parts map[string]string) (c *controller.Controller, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c, framed, err := framed(ctx, e, parts)
	if err != nil {
		t.Fatal(err)
	}
	wait := e.serveJobs(ctx, c)
	stop = sync.OnceFunc(func() {
		cancel()
		wait()
		framed()
	})
	t.Cleanup(stop)
	return c, stop
}

// cast is the members, and what they said.
type cast struct {
	t    *testing.T
	url  string
	said chan line
}

type line struct {
	verb, name string
	epoch      uint64
	at         time.Time
}

// child is a member in a process of its own.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	done  chan struct{}
}

func (c *cast) start(name string) *child {
	c.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), memberURL+"="+c.url, memberName+"="+name)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		c.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	m := &child{cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() {
		defer close(m.done)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			l := line{at: time.Now()}
			if _, err := fmt.Sscan(lines.Text(), &l.verb, &l.name, &l.epoch); err == nil {
				c.said <- l
			}
		}
	}()
	end := sync.OnceFunc(func() { m.end(syscall.SIGKILL) })
	c.t.Cleanup(end)
	return m
}

func (m *child) end(s syscall.Signal) {
	_ = m.cmd.Process.Signal(s)
	<-m.done
	_ = m.stdin.Close()
	_ = m.cmd.Wait()
}

func (c *cast) next(verb string) line {
	c.t.Helper()
	select {
	case l := <-c.said:
		if l.verb != verb {
			c.t.Fatalf("%s %s, want that somebody %s", l.name, l.verb, verb)
		}
		return l
	case <-time.After(30 * time.Second):
		c.t.Fatalf("nobody %s for 30 s", verb)
		return line{}
	}
}

// One of two processes does the job. Killed, it is the other's; told to stop, it
// hands the job over.
func TestAJobIsDoneByOneMember(t *testing.T) {
	if testing.Short() {
		t.Skip("runs three processes for some seconds")
	}
	server := bustest.Start(t)
	bustest.Connect(t, server.Config(), "watcher")
	c := &cast{t: t, url: server.URL(), said: make(chan line, 100)}
	members := map[string]*child{"a": c.start("a"), "b": c.start("b")}
	first := c.next("took")

	// A killed one is found quickly by a connection that has been up for 5 s.
	<-time.After(6 * time.Second)
	if len(c.said) > 0 {
		t.Fatalf("the job moved for no reason: %v", <-c.said)
	}
	killed := time.Now()
	members[first.name].end(syscall.SIGKILL)
	second := c.next("took")
	if second.name == first.name || second.epoch <= first.epoch {
		t.Errorf("after the death of %v: %v", first, second)
	}
	t.Logf("killed: taken over after %s", second.at.Sub(killed).Round(time.Millisecond))

	members["c"] = c.start("c")
	<-time.After(5 * time.Second) // it has joined
	told := time.Now()
	members[second.name].end(syscall.SIGTERM)
	if gave := c.next("gave"); gave.name != second.name {
		t.Errorf("%s gave the job up, which %s had", gave.name, second.name)
	}
	third := c.next("took")
	if third.name != "c" || third.epoch <= second.epoch {
		t.Errorf("after %v was told to stop: %v", second, third)
	}
	t.Logf("drained: taken over after %s", third.at.Sub(told).Round(time.Millisecond))
	if took := third.at.Sub(told); took > 3*time.Second {
		t.Errorf("handing over took %s", took)
	}
}

// What fails is tried again; what is done is not, and stays where it was done.
func TestAJobThatIsDoneIsDoneOnce(t *testing.T) {
	server := bustest.Start(t)
	b := bustest.Connect(t, server.Config(), "tester")
	e := &Edges{Bus: b, name: "tester", host: "a", env: &process.Env{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}}
	tries := make(chan int, 100)
	n := 0
	e.Job(controller.JobDefinition{Name: "once"}, func(context.Context, *controller.Job) error {
		n++
		tries <- n
		if n == 1 {
			return errors.New("not yet")
		}
		return nil
	})
	serving(t, e, nil)
	for want := 1; want <= 2; want++ {
		select {
		case got := <-tries:
			if got != want {
				t.Errorf("try %d, want %d", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatal("it was not tried")
		}
	}
	select {
	case <-tries:
		t.Error("what was done was done again")
	case <-time.After(time.Second): // ten times the pause after a failure
	}
}

// A job works while what holds for its part is active or shadow, and at no other
// time; with every change of a mode the work is begun anew, and is told.
func TestAJobFollowsTheModes(t *testing.T) {
	server := bustest.Start(t)
	b := bustest.Connect(t, server.Config(), "tester")
	e := &Edges{Bus: b, name: "tester", host: "a", env: &process.Env{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}}
	said := make(chan string, 100)
	e.Job(controller.JobDefinition{Name: "count", Part: "garbage"}, func(ctx context.Context, j *controller.Job) error {
		mode := j.Mode("garbage") // nobody turns it before it was said
		err := j.Guard(ctx, event.Key{Name: "x"}, controller.Harmless)
		if (mode == controller.ModeShadow) != errors.Is(err, controller.ErrShadow) {
			t.Errorf("in %s Guard says %v", mode, err)
		}
		said <- "works in " + mode
		<-ctx.Done()
		said <- "ends"
		return ctx.Err()
	})
	facts := b.KV(bus.Facts)
	turn := func(name, to string) {
		t.Helper()
		_, rev, err := facts.Get(t.Context(), controller.ModeKey(name))
		if err != nil && !errors.Is(err, bus.ErrNone) {
			t.Fatal(err)
		}
		if _, err := facts.Put(t.Context(), controller.ModeKey(name), []byte(to), rev, 0); err != nil {
			t.Fatal(err)
		}
	}
	next := func(want string) {
		t.Helper()
		select {
		case got := <-said:
			if got != want {
				t.Fatalf("the job %s, want that it %s", got, want)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("the job never %s", want)
		}
	}
	turn("tester/garbage", controller.ModeOff)
	c, _ := serving(t, e, map[string]string{"garbage": controller.ModeActive, "other": controller.ModeActive})
	select {
	case got := <-said:
		t.Fatalf("the job %s while its part is off", got)
	case <-time.After(2 * time.Second): // it has been claimed by now
	}
	if jobs := c.Status().GetJobs(); len(jobs) != 1 || jobs[0].GetMode() != controller.ModeOff || jobs[0].GetPart() != "garbage" {
		t.Errorf("status is %v", jobs)
	}
	turn("tester/garbage", controller.ModeActive)
	next("works in active")
	turn("tester", controller.ModeShadow)
	next("ends")
	next("works in shadow")
	turn("tester", controller.ModeOff)
	next("ends")
	turn("tester", controller.ModeActive)
	next("works in active")
	turn("tester/other", controller.ModeShadow) // it may ask for that too
	next("ends")
	next("works in active")
}
