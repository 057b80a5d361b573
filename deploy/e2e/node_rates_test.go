package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"
)

// lateBy is by how much a watch may bring two writes closer together than they
// were. Unit: time.
const lateBy = 300 * time.Millisecond

// dying is a zone that dies beside one that lives.
type dying struct {
	*nodeWorld
	rate  float64 // NoExecute taints per second
	dead  []string
	began time.Time
}

// disturbance is what happens once a share of the zone is tainted.
type disturbance struct {
	share float64
	name  string
	do    func(ctx context.Context, d *dying)
}

var disturbances = []disturbance{
	{0.2, "one is added", func(ctx context.Context, d *dying) { ready(ctx, d.t, d.addMember(ctx)) }},
	{0.25, "one is killed", func(_ context.Context, d *dying) { d.kill(d.members[0]) }},
	{0.3, "one is frozen", func(ctx context.Context, d *dying) {
		if len(d.members) == 1 { // somebody has to go on
			ready(ctx, d.t, d.addMember(ctx))
		}
		d.must(d.members[0].Freeze())
	}},
	{0.5, "NATS is wiped", func(ctx context.Context, d *dying) {
		d.f.NATS.Kill()
		d.must(d.f.NATS.Wipe())
		d.must(d.f.NATS.Restart(ctx))
	}},
	{0.7, "the frozen one thaws", func(_ context.Context, d *dying) { d.must(d.members[0].Thaw()) }},
	{0.8, "the whole fleet is restarted", func(ctx context.Context, d *dying) {
		replicas := len(d.members)
		d.kill(slices.Clone(d.members)...)
		for range replicas {
			d.addMember(ctx)
		}
	}},
}

// Contract: I3, "rate" of issue 4. A zone dies beside one that lives: NoExecute
// taints appear at the rate that is set, whoever is added, killed or frozen, and
// after a restart of all or a wipe of NATS no more at once than ever. Long form:
// REPLICAS=1,2,4,8.
func TestNodeRates(t *testing.T) {
	t.Parallel() // as its parts do
	nodes, rate, share := 56, 4.0, 0.7
	if long("REPLICAS") {
		nodes, rate, share = 300, 5, 0.95
	}
	for _, replicas := range numbers(t, "REPLICAS", 2) {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			d := dyingZone(t, nodes, replicas, rate, 15*time.Minute)
			d.run(t, share, disturbances...)
		})
	}
}

// dyingZone makes a zone of n nodes die; a ninth as many in another live on.
func dyingZone(t *testing.T, n, replicas int, rate float64, within time.Duration) *dying {
	t.Helper()
	ctx, f := beginStrict(t, within)
	w := nodesIn(ctx, t, f, nodeSetup{
		nodes: n + n/9, zones: append(slices.Repeat([]string{"dying"}, 9), "living"), beat: time.Second, grace: 4 * time.Second,
		replicas: replicas, env: append(evictions(rate), unlimited...),
	})
	d := &dying{nodeWorld: w, rate: rate}
	for i, name := range w.names {
		if i%10 != 9 {
			d.dead = append(d.dead, name)
		}
	}
	return d
}

// run lets the zone die under disturbances, and looks at every window.
func (d *dying) run(t *testing.T, share float64, disturb ...disturbance) {
	ctx := t.Context()
	d.began = time.Now()
	d.silence(d.dead...)
	reach := func(n int) {
		t.Helper()
		eventually(ctx, t, 90*time.Second+time.Duration(float64(n)/d.rate)*time.Second, fmt.Sprintf("%d nodes tainted", n),
			func() (bool, string) { got := len(d.tainted()); return got >= n, fmt.Sprint(got) })
	}
	calm := len(d.dead)
	for i, step := range disturb {
		at := int(step.share * float64(len(d.dead)))
		if reach(at); i == 0 {
			calm = at
		}
		t.Logf("%3d nodes tainted after %s: %s", len(d.tainted()), time.Since(d.began).Round(100*time.Millisecond), step.name)
		step.do(ctx, d)
	}
	reach(len(d.dead))
	got := d.tainted()
	seen := float64(calm-1) / got[calm-1].Sub(got[0]).Seconds()
	t.Logf("%d nodes tainted after %s; %.2f/s while nothing disturbed, want %g/s", len(got), got[len(got)-1].Sub(d.began).Round(100*time.Millisecond), seen, d.rate)
	if seen < share*d.rate {
		t.Errorf("%.2f taints per second while work waited, want at least %g of %g", seen, share, d.rate)
	}
	withinRate(t, d.rate, got)
	d.await(ctx, t, time.Second, "the other zone is untouched", d.living(), healthyNow)
	d.log.judge(t)
}

func (d *dying) living() (names []string) {
	for _, name := range d.names {
		if !slices.Contains(d.dead, name) {
			names = append(names, name)
		}
	}
	return names
}

// tainted is when NoExecute taints were added, in order.
func (d *dying) tainted() []time.Time { return d.log.additions(d.dead, d.began) }

// additions is when NoExecute taints were added where there was none, in order.
func (l *nodeLog) additions(names []string, since time.Time) (times []time.Time) {
	for _, name := range names {
		bore := false
		for _, r := range l.since(name, time.Time{}) {
			bears := !r.deleted && anyNoExecute(r.node)
			if bears && !bore && !r.at.Before(since) {
				times = append(times, r.at)
			}
			bore = bears
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

// withinRate: in no window more than rate·(t + 1 s) + 1. Source: I3.
func withinRate(t *testing.T, rate float64, times []time.Time) {
	t.Helper()
	for i := range times {
		for j := i; j < len(times); j++ {
			window := times[j].Sub(times[i])
			if n := float64(j - i + 1); n > rate*(window+time.Second+lateBy).Seconds()+1 {
				t.Fatalf("%g taints within %s, at %g per second", n, window, rate)
			}
		}
	}
}
