package e2e

import (
	"context"
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

// shared is the one installation of this package: API server and NATS. Each test
// starts its own members and stops them.
var shared struct {
	once  sync.Once
	fleet *fleet.Fleet
	err   error
	dir   string
	names sync.Map // how many members have had a name's stem
}

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	code := m.Run()
	if shared.fleet != nil {
		ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
		if err := shared.fleet.Stop(ctx); err != nil {
			fmt.Fprintln(os.Stderr, "stopping the installation:", err)
			code = max(code, 1)
		}
	}
	if code == 0 {
		_ = os.RemoveAll(shared.dir)
	} else if shared.dir != "" {
		fmt.Fprintln(os.Stderr, "logs are in", shared.dir)
	}
	return code
}

// installation returns the shared API server and NATS, both up.
func installation(ctx context.Context, t *testing.T) *fleet.Fleet {
	t.Helper()
	shared.once.Do(func() {
		if shared.dir, shared.err = os.MkdirTemp("", "millrace-e2e-"); shared.err != nil {
			return
		}
		shared.fleet, shared.err = fleet.Start(context.WithoutCancel(ctx), fleet.Options{Dir: shared.dir, Progress: os.Stderr, Env: quick})
	})
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	return shared.fleet
}

// begin is the start of a test: bounded, on the shared installation.
func begin(t *testing.T, within time.Duration) (context.Context, *fleet.Fleet) {
	t.Helper()
	f := installation(t.Context(), t)
	ctx, cancel := context.WithTimeout(t.Context(), within)
	t.Cleanup(cancel)
	return ctx, f
}

// start starts a member under a new name and stops it when the test ends.
func start(ctx context.Context, t *testing.T, f *fleet.Fleet, role string, env ...string) *fleet.Member {
	t.Helper()
	n, _ := shared.names.LoadOrStore(role, new(counter))
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
