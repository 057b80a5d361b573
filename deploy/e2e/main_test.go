package e2e

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// slicesHold is how many endpoints a slice may hold here: few, so that services
// have several slices.
const slicesHold = 4

// quick lifts the limit on requests, and makes services have several slices:
// these tests look at what is written, not at how fast.
var quick = []string{
	"MILLRACE_KUBE_QPS=200", "MILLRACE_KUBE_BURST=200",
	fmt.Sprintf("MILLRACE_ENDPOINTS_MAX_ENDPOINTS_PER_SLICE=%d", slicesHold),
}

// lanesHere is how many tests run at a time unless -parallel says otherwise: each
// keeps about a third of two cores at work and waits for the rest of its time.
const lanesHere = 3

// lanes are the installations of this package: API server and NATS. A test has
// one to itself for as long as it lasts, starts its own members and stops them.
var lanes struct {
	built sync.Once
	err   error
	dir   string // with the binaries, and a folder for each installation

	mu   sync.Mutex
	all  []*fleet.Fleet
	free []*fleet.Fleet

	names sync.Map // how many members have had a name's stem
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	flag.Parse()
	const parallel = "test.parallel"
	asked := false
	flag.Visit(func(f *flag.Flag) { asked = asked || f.Name == parallel })
	if !asked {
		_ = flag.Set(parallel, strconv.Itoa(lanesHere)) // it takes any number
	}
	code := m.Run()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for _, f := range lanes.all {
		if err := f.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "stopping an installation:", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		_ = os.RemoveAll(lanes.dir)
	} else if lanes.dir != "" {
		fmt.Fprintln(os.Stderr, "logs are in", lanes.dir)
	}
	return code
}

// begin is the start of a test: bounded, in a lane of its own, beside tests in
// other lanes. What it finds there other tests have left, and at rest.
func begin(t *testing.T, within time.Duration) (context.Context, *fleet.Fleet) {
	t.Helper()
	return beginAt(t, within, easy)
}

// beginStrict is begin for a test that judges times of a second or so: one other
// runs beside it at most.
func beginStrict(t *testing.T, within time.Duration) (context.Context, *fleet.Fleet) {
	t.Helper()
	return beginAt(t, within, strict)
}

func beginAt(t *testing.T, within time.Duration, p pace) (context.Context, *fleet.Fleet) {
	t.Helper()
	t.Parallel()
	t.Cleanup(machine.enter(p))
	f := enter(t)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return ctx, f
}

// enter takes a lane, a new one when none is free, and leaves it when the test
// ends. Nobody enters one in which a test has failed: it may have left anything
// broken.
func enter(t *testing.T) *fleet.Fleet {
	t.Helper()
	lanes.built.Do(func() {
		lanes.dir, lanes.err = os.MkdirTemp("", "millrace-e2e-") //nolint:usetesting // longer than one test
		if lanes.err == nil {
			lanes.err = fleet.Build(context.WithoutCancel(t.Context()), lanes.dir, true)
		}
	})
	if lanes.err != nil {
		t.Fatal(lanes.err)
	}
	f := freeLane()
	if f == nil {
		f = newLane(t)
	}
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		lanes.mu.Lock()
		defer lanes.mu.Unlock()
		lanes.free = append(lanes.free, f)
	})
	return f
}

func freeLane() (f *fleet.Fleet) {
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	if n := len(lanes.free); n > 0 {
		f, lanes.free = lanes.free[n-1], lanes.free[:n-1]
	}
	return f
}

func newLane(t *testing.T) *fleet.Fleet {
	t.Helper()
	dir, err := os.MkdirTemp(lanes.dir, "lane-") //nolint:usetesting // longer than this test
	if err != nil {
		t.Fatal(err)
	}
	f, err := fleet.Start(context.WithoutCancel(t.Context()), fleet.Options{
		Dir: dir, Binaries: lanes.dir, Progress: os.Stderr, Env: quick,
	})
	if err != nil {
		t.Fatal(err)
	}
	lanes.mu.Lock()
	defer lanes.mu.Unlock()
	lanes.all = append(lanes.all, f)
	return f
}

// start starts a member under a new name and stops it when the test ends.
func start(ctx context.Context, t *testing.T, f *fleet.Fleet, role string, env ...string) *fleet.Member {
	t.Helper()
	n, _ := lanes.names.LoadOrStore(role, new(counter))
	name := fmt.Sprintf("%s-%d", role, n.(*counter).next()) //nolint:forcetypeassert // stored above
	m, err := f.Member(ctx, role, name, env...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { leave(t, m) })
	return m
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) next() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.n++
	return c.n
}

// leaveWithin is the grace that Kubernetes gives a pod. Unit: time.
const leaveWithin = 30 * time.Second

// leave ends a member by SIGTERM; it must end by itself and without complaint.
func leave(t *testing.T, m *fleet.Member) {
	t.Helper()
	if !m.Running() {
		return
	}
	_ = m.Thaw()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), leaveWithin)
	defer cancel()
	if err := m.Stop(ctx); err != nil {
		t.Errorf("%v; see %s", err, m.Log)
	}
}

// startReady starts a watcher and some replicas, and waits until all are ready.
func startReady(ctx context.Context, t *testing.T, f *fleet.Fleet, replicas int, env ...string) (watcher *fleet.Member, members []*fleet.Member) {
	t.Helper()
	watcher = start(ctx, t, f, "watcher", env...)
	for range replicas {
		members = append(members, start(ctx, t, f, "endpoints", env...))
	}
	ready(ctx, t, append([]*fleet.Member{watcher}, members...)...)
	return watcher, members
}

func ready(ctx context.Context, t *testing.T, members ...*fleet.Member) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	for _, m := range members {
		if err := m.AwaitReady(ctx); err != nil {
			t.Fatalf("%v; see %s", err, m.Log)
		}
	}
}

// carried is how many kinds a watcher carries by default.
const carried = 11

// whole waits until every kind and every partition has a holder that has read
// all of it and has nothing left to do.
func whole(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	t.Helper()
	eventually(ctx, t, 60*time.Second, "the installation is whole", func() (bool, string) {
		s, missing := lacking(ctx, f)
		for _, u := range s.Units() {
			if missing == "" && u.Queued > 0 {
				missing = fmt.Sprintf("partition %s has %d keys queued", u.Unit, u.Queued)
			}
		}
		return missing == "", missing
	})
}

// held is whole for an installation that others keep at work.
func held(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	t.Helper()
	eventually(ctx, t, 60*time.Second, "everything is held and read", func() (bool, string) {
		_, missing := lacking(ctx, f)
		return missing == "", missing
	})
}

// lacking says what has no holder that has read all of it.
func lacking(ctx context.Context, f *fleet.Fleet) (s fleet.Status, missing string) {
	s, err := f.Status(ctx)
	if err != nil {
		return s, err.Error()
	}
	held := map[string]int{}
	for _, r := range s.Roles {
		held[r.Role] = r.Held
	}
	if held["watcher"] < carried || held["endpoints"] != partitions {
		return s, fmt.Sprintf("held: %v", held)
	}
	for _, u := range s.Units() {
		if !u.Synced {
			return s, fmt.Sprintf("partition %s is not synced", u.Unit)
		}
		if u.OldestSeconds > 20 {
			return s, fmt.Sprintf("a key of partition %s has waited for %.0f s", u.Unit, u.OldestSeconds)
		}
	}
	for _, k := range s.Kinds {
		if !k.Synced || k.Problem != "" {
			return s, fmt.Sprintf("%s of %s: synced %t %s", k.Kind, k.Role, k.Synced, k.Problem)
		}
	}
	return s, ""
}

// pause waits for d, or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// number reads a setting of these tests: CHANGES, ROUNDS, SEED.
func number(t *testing.T, name string, otherwise int) int {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		t.Fatalf("%s is %q; it must be a whole number above 0", name, text)
	}
	return n
}

func numbers(t *testing.T, name string, otherwise ...int) (out []int) {
	t.Helper()
	text := os.Getenv(name)
	if text == "" {
		return otherwise
	}
	for one := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(one)
		if err != nil || n < 1 {
			t.Fatalf("%s is %q; it must be whole numbers with commas", name, text)
		}
		out = append(out, n)
	}
	return out
}

// long reports whether a long form was asked for by any of its settings.
func long(names ...string) bool {
	for _, n := range names {
		if os.Getenv(n) != "" {
			return true
		}
	}
	return false
}

// eventually waits until ok, and fails with what it said last.
func eventually(ctx context.Context, t *testing.T, within time.Duration, what string, ok func() (bool, string)) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		done, says := ok()
		if done {
			return time.Since(began)
		}
		if time.Since(began) > within || ctx.Err() != nil {
			t.Fatalf("%s: not after %s: %s", what, time.Since(began).Round(time.Millisecond), says)
		}
		time.Sleep(20 * time.Millisecond) // the processes are real, and so is their time
	}
}

// prefixOf names the namespaces of a test.
func prefixOf(t *testing.T) string {
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-", "=", "-").Replace(t.Name()))
	return strings.TrimPrefix(name, "test") + "-"
}
