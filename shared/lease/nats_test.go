package lease_test

import (
	"context"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/lease"
)

// These are the interfaces' only real implementations.
var (
	_ lease.Bucket = (*bus.KV)(nil)
	_ lease.Wire   = (*bus.Bus)(nil)
)

// role is a few members on a real server, each over a line of its own.
type role struct {
	t       *testing.T
	units   []string
	mu      sync.Mutex
	holding map[string]map[*lease.Grant]*member
	starts  int // holds begun
}

type member struct {
	*lease.Lease
	line *bustest.Proxy
	gone bool
}

func newRole(t *testing.T, units int) *role {
	t.Helper()
	if testing.Short() {
		t.Skip("runs a NATS server for some seconds")
	}
	r := &role{t: t, holding: map[string]map[*lease.Grant]*member{}}
	for i := range units {
		r.units = append(r.units, strconv.Itoa(i))
	}
	return r
}

func (r *role) join(cfg bus.Config) *member {
	r.t.Helper()
	m := &member{line: bustest.NewProxy(r.t, cfg.URL)}
	cfg.URL = m.line.URL()
	b := bustest.Connect(r.t, cfg, "evictor")
	m.Lease = lease.New(lease.Config{Role: "evictor", Cluster: cfg.Cluster, Units: r.units}, b.KV(bus.Own), b, nil, prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = m.Run(ctx, func(ctx context.Context, g *lease.Grant) error { return r.hold(ctx, g, m) })
	}()
	r.t.Cleanup(func() {
		m.line.Thaw()
		m.line.Mend()
		cancel()
		<-done
	})
	return m
}

func (r *role) hold(ctx context.Context, g *lease.Grant, m *member) error {
	r.mu.Lock()
	r.starts++
	if r.holding[g.Unit()] == nil {
		r.holding[g.Unit()] = map[*lease.Grant]*member{}
	}
	r.holding[g.Unit()][g] = m
	r.mu.Unlock()
	select {
	case <-g.Draining():
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.holding[g.Unit()], g)
	return nil
}

// idle counts the units that nobody holds validly.
func (r *role) idle() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.units)
	for _, holders := range r.holding {
		for g, m := range holders {
			if !m.gone && g.Valid() == nil {
				n--
				break
			}
		}
	}
	return n
}

func (r *role) count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.starts
}

func (r *role) await(limit time.Duration, what string, done func() bool) time.Duration {
	r.t.Helper()
	begun := time.Now()
	ticker := time.NewTicker(2 * time.Millisecond)
	defer ticker.Stop()
	for range ticker.C {
		if done() {
			break
		}
		if time.Since(begun) > limit {
			r.t.Fatalf("after %s, still not: %s (%d units idle)", limit, what, r.idle())
		}
	}
	return time.Since(begun)
}

func (r *role) held() bool { return r.idle() == 0 }

// balance waits until every member holds its share, and for long enough after
// that for all of them to judge others.
func (r *role) balance(members []*member) {
	r.t.Helper()
	share := (len(r.units) + len(members) - 1) / len(members)
	r.await(15*time.Second, "balanced", func() bool {
		for _, m := range members {
			if n := len(m.Snapshot().Mine); n > share || n == 0 {
				return false
			}
		}
		return r.held()
	})
	pause(6 * time.Second)
}

func pause(d time.Duration) { <-time.After(d) }

func (r *role) joinMany(n int, cfg bus.Config) []*member {
	members := make([]*member, n)
	for i := range members {
		members[i] = r.join(cfg)
	}
	return members
}

func TestRealClaims(t *testing.T) {
	r := newRole(t, 256)
	begun := time.Now()
	r.join(bustest.Start(t).Config())
	connected := time.Since(begun)
	took := r.await(3*time.Second, "held", r.held)
	t.Logf("256 units claimed in %s (connecting took %s)", took.Round(time.Millisecond), connected.Round(time.Millisecond))
}

func TestRealTakeOver(t *testing.T) {
	r := newRole(t, 32)
	members := r.joinMany(3, bustest.Start(t).Config())
	r.balance(members)
	for _, victim := range members[:2] { // of three, then of three with one back
		r.mu.Lock()
		victim.gone = true
		r.mu.Unlock()
		victim.line.Cut()
		took := r.await(2*time.Second, "units of the cut-off member taken over", r.held)
		t.Logf("cut off: units held again after %s", took.Round(time.Millisecond))
		if took > time.Second {
			t.Errorf("take-over took %s, want at most 1 s", took)
		}
		victim.line.Mend()
		r.mu.Lock()
		victim.gone = false
		r.mu.Unlock()
		r.balance(members)
	}
	victim := members[2]
	r.mu.Lock()
	victim.gone = true
	r.mu.Unlock()
	victim.line.Freeze()
	took := r.await(10*time.Second, "units of the frozen member taken over", r.held)
	t.Logf("frozen: units held again after %s", took.Round(time.Millisecond))
	if took > 8*time.Second {
		t.Errorf("take-over took %s, want at most 8 s", took)
	}
}

// The living keep what they hold over restarts of the server, clean or not.
func TestRealRestart(t *testing.T) {
	r := newRole(t, 32)
	server := bustest.StartProcess(t)
	members := r.joinMany(8, server.Config())
	r.balance(members)
	ids, starts := map[*member]string{}, r.count()
	for _, m := range members {
		ids[m] = m.Member()
	}
	for name, stop := range map[string]func(){"SIGKILL": server.Kill, "SIGTERM": server.Stop, "SIGKILL, 2 s away": func() { server.Kill(); pause(2 * time.Second) }} {
		begun := time.Now()
		stop()
		server.Restart()
		up, last := time.Since(begun), time.Duration(0)
		for time.Since(begun) < 8*time.Second {
			if !r.held() {
				last = time.Since(begun)
			}
			pause(2 * time.Millisecond)
		}
		if !r.held() {
			t.Errorf("%s: %d units idle after 8 s", name, r.idle())
		}
		t.Logf("%s: server back after %s, every lease valid for good after %s", name, up.Round(time.Millisecond), last.Round(time.Millisecond))
	}
	for _, m := range members {
		if m.Member() != ids[m] {
			t.Errorf("member %s rejoined", ids[m])
		}
	}
	if n := r.count() - starts; n != 0 {
		t.Errorf("%d units changed hands", n)
	}
}
