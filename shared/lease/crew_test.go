package lease

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// crew is the members of one role on one sea, and a ledger of who works on what.
type crew struct {
	t     *testing.T
	sea   *sea
	units []string

	mu       sync.Mutex
	active   map[string][]*Grant
	overlaps []string
	// dawdle is how long a hold takes to finish when asked to.
	dawdle time.Duration
	hands  []*hand
	// work replaces the hold; nil: wait to be asked.
	work Hold
}

// hand is one member of a crew.
type hand struct {
	*Lease
	boat *boat
	reg  *prometheus.Registry
	dead *atomic.Bool
	// suspended is time that only the clock which counts suspension has seen.
	suspended *atomic.Int64
	stop      func() // asks Run to end
	done      chan struct{}
}

func newCrew(t *testing.T, units int) *crew {
	c := &crew{t: t, sea: newSea(), active: map[string][]*Grant{}}
	for i := range units {
		c.units = append(c.units, fmt.Sprint(i))
	}
	return c
}

func (c *crew) join(change ...func(*Config)) *hand {
	ctx, cancel := context.WithCancel(c.t.Context())
	cfg := Config{Role: "evictor", Cluster: "test", Units: c.units, Host: "h", Version: "v"}
	for _, fn := range change {
		fn(&cfg)
	}
	h := &hand{boat: c.sea.boat(), dead: &atomic.Bool{}, suspended: &atomic.Int64{}, reg: prometheus.NewRegistry(), stop: cancel, done: make(chan struct{})}
	var log *slog.Logger
	if os.Getenv("LEASE_LOG") != "" {
		log = slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	h.Lease = New(cfg, h.boat, h.boat, log, h.reg)
	begun := time.Now()
	h.boot = func() time.Duration { return time.Since(begun) + time.Duration(h.suspended.Load()) }
	c.mu.Lock()
	c.hands = append(c.hands, h)
	c.mu.Unlock()
	go func() {
		defer close(h.done)
		if err := h.Run(ctx, c.hold); err != nil {
			c.t.Errorf("Run() = %v", err)
		}
	}()
	c.t.Cleanup(h.leave)
	return h
}

func (c *crew) joinMany(n int) []*hand {
	hands := make([]*hand, n)
	for i := range hands {
		hands[i] = c.join()
	}
	return hands
}

// leave ends Run and waits for it.
func (h *hand) leave() {
	h.stop()
	<-h.done
}

// freeze is SIGSTOP, thaw SIGCONT.
func (c *crew) freeze(h *hand) (thaw func()) {
	thaw = h.boat.freeze()
	c.t.Cleanup(thaw)
	return thaw
}

// die is SIGKILL: the connection is gone, and nothing is ever sent again.
func (h *hand) die() {
	h.boat.cut()
	h.dead.Store(true)
}

func (c *crew) hold(ctx context.Context, g *Grant) error {
	c.mu.Lock()
	if len(c.active[g.Unit()]) > 0 {
		c.overlaps = append(c.overlaps, g.Unit())
	}
	c.active[g.Unit()] = append(c.active[g.Unit()], g)
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		for i, other := range c.active[g.Unit()] {
			if other == g {
				c.active[g.Unit()] = append(c.active[g.Unit()][:i:i], c.active[g.Unit()][i+1:]...)
			}
		}
	}()
	if c.work != nil {
		return c.work(ctx, g)
	}
	select {
	case <-g.Draining():
		time.Sleep(c.dawdle)
	case <-ctx.Done():
	}
	return nil
}

// held counts the units each member holds validly; idle those that nobody does.
func (c *crew) held() (byMember map[string]int, idle int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	byMember = map[string]int{}
	for _, u := range c.units {
		found := false
		for _, g := range c.active[u] {
			if g.Valid() == nil && !c.dead(g) {
				found = true
				byMember[g.Member()]++
			}
		}
		if !found {
			idle++
		}
	}
	return byMember, idle
}

func (c *crew) dead(g *Grant) bool {
	for _, h := range c.hands {
		if h.Lease == g.t.lease {
			return h.dead.Load()
		}
	}
	return false
}

func (c *crew) grants(h *hand) []*Grant {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []*Grant
	for _, grants := range c.active {
		for _, g := range grants {
			if g.t.lease == h.Lease {
				out = append(out, g)
			}
		}
	}
	return out
}

// wantBalanced fails unless all units are held, by members members, none of
// which holds more than its share.
func (c *crew) wantBalanced(members int) {
	c.t.Helper()
	byMember, idle := c.held()
	most := (len(c.units) + members - 1) / members
	if idle > 0 || len(byMember) != members {
		c.t.Fatalf("%d members hold units and %d units are idle, want %d and 0: %v", len(byMember), idle, members, byMember)
	}
	for id, n := range byMember {
		if n > most {
			c.t.Errorf("member %s holds %d units, want at most %d", id, n, most)
		}
	}
}

func (c *crew) wantNoOverlap() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.overlaps) > 0 {
		c.t.Errorf("two holds at once of units %v", c.overlaps)
	}
}

// awaitHeld returns how long it took until no unit was idle.
func (c *crew) awaitHeld(limit time.Duration) time.Duration {
	c.t.Helper()
	begun := time.Now()
	for {
		if _, idle := c.held(); idle == 0 {
			return time.Since(begun)
		}
		if time.Since(begun) > limit {
			_, idle := c.held()
			c.t.Fatalf("%d units are idle after %s", idle, limit)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stolen returns the leases that were written over while the member key of
// their holder stood in the bucket and did not say that it was dead.
func (s *sea) stolen() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var out []string
	living := map[string]bool{}
	for _, w := range s.writes {
		if id, ok := strings.CutPrefix(w.key, "evictor.m."); ok {
			living[id] = !w.deleted && len(w.value) > 0
			continue
		}
		if old, now := holderOf(w.before), holderOf(w.entry); old != now && now != "" && living[old] {
			out = append(out, fmt.Sprintf("%s from %s by %s", w.key, old, now))
		}
	}
	return out
}

func holderOf(e entry) string {
	var l millracev1.Lease
	_ = proto.Unmarshal(e.value, &l)
	return l.GetHolder()
}

// claims counts the writes of leases that name a holder, from a moment on.
func (s *sea) claims(since time.Time) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range s.writes {
		if strings.HasPrefix(w.key, "evictor.p.") && holderOf(w.entry) != "" && w.at.After(since) {
			n++
		}
	}
	return n
}

func (c *crew) wantNothingStolen() {
	c.t.Helper()
	if stolen := c.sea.stolen(); len(stolen) > 0 {
		c.t.Errorf("stolen from the living: %v", stolen)
	}
}

// metric reads one counter or gauge; values are label values.
func (h *hand) metric(name string, values ...string) float64 {
	m := h.metrics
	switch name {
	case "rejoins":
		return valueOf(m.rejoins)
	case "evictions":
		return valueOf(m.evictions)
	case "releases":
		return valueOf(m.releases)
	case "held":
		return valueOf(m.held)
	case "members":
		return valueOf(m.members)
	case "claims":
		return valueOf(m.claims.WithLabelValues(values...))
	case "losses":
		return valueOf(m.losses.WithLabelValues(values...))
	case "takeovers":
		return valueOf(m.takeovers.WithLabelValues(values...))
	case "renewals":
		return valueOf(m.renewals.WithLabelValues(values...))
	}
	panic("no such metric: " + name)
}

func valueOf(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		panic(err)
	}
	return out.GetCounter().GetValue() + out.GetGauge().GetValue()
}
