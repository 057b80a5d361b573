package bench

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// long reports whether the long forms were asked for.
func long() bool { return os.Getenv("LONG") == "1" }

// pick returns the long form's value or the short one's.
func pick[T any](short, longer T) T {
	if long() {
		return longer
	}
	return short
}

// binaries are built once for all tests.
var binaries struct {
	once sync.Once
	dir  string
	err  error
}

func TestMain(m *testing.M) {
	code := m.Run()
	_ = os.RemoveAll(binaries.dir)
	os.Exit(code)
}

// beside lets a short form run beside others: of a test that judges no time, or
// one that is many times longer than another.
func beside(t *testing.T) {
	t.Helper()
	if !long() {
		t.Parallel()
	}
}

// launch starts an API server and NATS for one test.
func launch(ctx context.Context, t *testing.T, opts fleet.Options) *fleet.Fleet {
	t.Helper()
	binaries.once.Do(func() {
		if binaries.dir, binaries.err = os.MkdirTemp("", "millrace-bench-"); binaries.err == nil {
			binaries.err = fleet.Build(ctx, binaries.dir, true)
		}
	})
	if binaries.err != nil {
		t.Fatal(binaries.err)
	}
	opts.Dir, opts.Binaries = t.ArtifactDir(), binaries.dir
	opts.Progress = os.Stderr
	f, err := fleet.Start(ctx, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		if err := f.Stop(ctx); err != nil {
			t.Errorf("stopping the fleet: %v", err)
		}
	})
	return f
}

// join starts a member and waits until it is ready.
func join(ctx context.Context, t *testing.T, f *fleet.Fleet, role, name string, env ...string) *fleet.Member {
	t.Helper()
	m, err := f.Member(ctx, role, name, env...)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.AwaitReady(ctx); err != nil {
		t.Fatalf("%v\n%s", err, tail(m.Output()))
	}
	return m
}

// tail returns the last lines of a log.
func tail(log string) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	return strings.Join(lines[max(0, len(lines)-20):], "\n")
}

// spread is what is told of many durations.
type spread struct {
	N                  int
	P50, P90, P99, Max time.Duration
}

func spreadOf(ds []time.Duration) spread {
	if len(ds) == 0 {
		return spread{}
	}
	sorted := slices.Sorted(slices.Values(ds))
	at := func(q float64) time.Duration { return sorted[min(len(sorted)-1, int(q*float64(len(sorted))))] }
	return spread{len(sorted), at(0.50), at(0.90), at(0.99), sorted[len(sorted)-1]}
}

func (s spread) String() string {
	ms := func(d time.Duration) string { return fmt.Sprintf("%.1f", float64(d)/float64(time.Millisecond)) }
	return fmt.Sprintf("n=%d p50=%s p90=%s p99=%s max=%s ms", s.N, ms(s.P50), ms(s.P90), ms(s.P99), ms(s.Max))
}
