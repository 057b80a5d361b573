package beat

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const s = time.Second

// digestAt is a digest of one node.
func digestAt(epoch, counter uint64, at, age time.Duration) Digest {
	return Digest{Epoch: epoch, Counter: counter, At: at, Beats: []Beat{{Node: "n", UID: "u", Renewed: 7, Heartbeat: 3, Age: age}}}
}

// fed is a judge that has seen three digests: n was silent for 11 s at 100 s.
func fed() *Silence {
	j := NewSilence()
	j.Digest(digestAt(5, 0, 0, 9*s), 98*s)
	j.Digest(digestAt(5, 1, 1*s, 10*s), 99*s)
	j.Digest(digestAt(5, 2, 2*s, 11*s), 100*s)
	return j
}

func TestSilence(t *testing.T) {
	judged := Beat{Node: "n", UID: "u", Renewed: 7, Heartbeat: 3} // by what fed shows
	tests := map[string]struct {
		then func(j *Silence)
		now  time.Duration
		want time.Duration
		why  Reason
	}{
		"silence is the age and the time since": {func(*Silence) {}, 102 * s, 13 * s, ""},
		"a digest is good for 3 s":              {func(*Silence) {}, 103 * s, 14 * s, ""},
		"and no longer":                         {func(*Silence) {}, 103*s + 1, 14*s + 1, Late},
		"a machine that slept finds it late":    {func(*Silence) {}, 5000 * s, 4911 * s, Late},
		"a clock that went back":                {func(*Silence) {}, 99 * s, 11 * s, ClockWentBack},
		"a digest that comes again does not prolong it": {
			func(j *Silence) { j.Digest(digestAt(5, 2, 2*s, 11*s), 103*s) }, 104 * s, 15 * s, Late,
		},
		"a late digest of a lower epoch never wins": {
			func(j *Silence) { j.Digest(digestAt(4, 900, 3*s, 60*s), 101*s) }, 101 * s, 12 * s, LowerEpoch,
		},
		"and is forgotten at the next of the right one": {
			func(j *Silence) {
				j.Digest(digestAt(4, 900, 3*s, 60*s), 101*s)
				j.Digest(digestAt(5, 3, 3*s, 0), 101*s)
			}, 101 * s, 0, "",
		},
		"the first digest of another watcher does not count": {
			func(j *Silence) { j.Digest(digestAt(6, 1, 900*s, 12*s), 101*s) }, 101 * s, 12 * s, Few,
		},
		"nor does the second": {
			func(j *Silence) {
				j.Digest(digestAt(6, 1, 900*s, 12*s), 101*s)
				j.Digest(digestAt(6, 2, 901*s, 13*s), 102*s)
			}, 102 * s, 13 * s, Few,
		},
		"the third does": {
			func(j *Silence) {
				j.Digest(digestAt(6, 1, 900*s, 12*s), 101*s)
				j.Digest(digestAt(6, 2, 901*s, 13*s), 102*s)
				j.Digest(digestAt(6, 3, 902*s, 14*s), 103*s)
			}, 103 * s, 14 * s, "",
		},
		"a digest that was on its way for 1.5 s more than the others does not count": {
			func(j *Silence) { j.Digest(digestAt(5, 3, 3*s, 12*s), 102*s+s/2) }, 102*s + s/2, 12 * s, Delayed,
		},
		"nor does one that came so fast that those before must have waited": {
			func(j *Silence) { j.Digest(digestAt(5, 3, 3*s, 12*s), 100*s+s/10) }, 100*s + s/10, 12 * s, Delayed,
		},
		"a live read that agrees changes nothing": {
			func(j *Silence) { j.Live(judged, Beat{Node: "n", UID: "u", Renewed: 7, Heartbeat: 3}) }, 101 * s, 12 * s, "",
		},
		"a live read of another renewTime contradicts": {
			func(j *Silence) { j.Live(judged, Beat{Node: "n", UID: "u", Renewed: 8, Heartbeat: 3}) }, 101 * s, 12 * s, Contradicted,
		},
		"a live read of another UID too": {
			func(j *Silence) { j.Live(judged, Beat{Node: "n", UID: "v", Renewed: 7, Heartbeat: 3}) }, 101 * s, 12 * s, Contradicted,
		},
		"a live read of a node that the digest has let go since says nothing": {
			func(j *Silence) {
				d := digestAt(5, 3, 3*s, 12*s)
				d.Beats = nil
				j.Digest(d, 101*s)
				if j.Live(judged, Beat{Node: "n"}) {
					t.Error("a node that nobody shows agrees")
				}
				j.Digest(digestAt(5, 4, 4*s, 13*s), 102*s)
			}, 102 * s, 13 * s, "",
		},
		"until a live read agrees": {
			func(j *Silence) {
				j.Live(judged, Beat{Node: "n", UID: "u", Renewed: 8, Heartbeat: 3})
				j.Live(judged, Beat{Node: "n", UID: "u", Renewed: 7, Heartbeat: 3})
			}, 101 * s, 12 * s, "",
		},
		"a digest that shows the same keeps the contradiction": {
			func(j *Silence) {
				j.Live(judged, Beat{Node: "n", UID: "u", Renewed: 8, Heartbeat: 3})
				j.Digest(digestAt(5, 3, 3*s, 12*s), 101*s)
			}, 101 * s, 12 * s, Contradicted,
		},
		"a digest that shows another beat ends it": {
			func(j *Silence) {
				j.Live(judged, Beat{Node: "n", UID: "u", Renewed: 8, Heartbeat: 3})
				d := digestAt(5, 3, 3*s, 0)
				d.Beats[0].Renewed = 8
				j.Digest(d, 101*s)
			}, 101 * s, 0, "",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			j := fed()
			tt.then(j)
			v := j.Of("n", "u", tt.now)
			if v.Silence != tt.want || v.Why != tt.why {
				t.Errorf("silent for %s, %q; want %s, %q", v.Silence, v.Why, tt.want, tt.why)
			}
		})
	}
}

// Without the rule a digest that a broken feed brings again and again would be
// good for ever.
func TestARepeatedDigestIsNoFreshOne(t *testing.T) {
	for name, tt := range map[string]struct {
		without rule
		why     Reason
	}{"as it is": {0, Late}, "without the rule": {ruleRepeated, ""}} {
		t.Run(name, func(t *testing.T) {
			j := fed()
			j.without = tt.without
			j.Digest(digestAt(5, 2, 2*s, 11*s), 100*s+9*s/10)
			if v := j.Of("n", "u", 103*s+s/2); v.Why != tt.why {
				t.Errorf("%q, want %q", v.Why, tt.why)
			}
		})
	}
}

// Without the rule a node that beat while nobody watched would keep its age until
// it beats again, which may take ten seconds.
func TestABeatThatWasMissedIsOne(t *testing.T) {
	for name, tt := range map[string]struct {
		without rule
		want    time.Duration
	}{"as it is": {0, 0}, "without the rule": {ruleMissed, 30 * s}} {
		t.Run(name, func(t *testing.T) {
			a := NewAges(1, 5, 0)
			a.without = tt.without
			a.Adopt(Digest{Epoch: 4, Beats: []Beat{{Node: "n", UID: "u", Renewed: 7, Heartbeat: 3, Age: 30 * s}}})
			both(a, Beat{Node: "n", UID: "u", Renewed: 8, Heartbeat: 3})
			if got := agesOf(t, a, 0, 100*s)["n"]; got != tt.want {
				t.Errorf("age %s, want %s", got, tt.want)
			}
		})
	}
}

// Without the rule a watcher that was replaced would be believed again: its
// third late digest would count.
func TestEpochsNeverGoBack(t *testing.T) {
	for name, tt := range map[string]struct {
		without rule
		want    uint64
	}{"as it is": {0, 5}, "without the rule": {ruleEpoch, 4}} {
		t.Run(name, func(t *testing.T) {
			j := fed()
			j.without = tt.without
			j.Digest(digestAt(4, 900, 3*s, 60*s), 101*s)
			j.Digest(digestAt(4, 901, 4*s, 61*s), 102*s)
			j.Digest(digestAt(4, 902, 5*s, 62*s), 103*s)
			if v := j.Of("n", "u", 103*s); j.digest.Epoch != tt.want || v.Why == "" != (tt.without != 0) {
				t.Errorf("epoch %d, silent for %s, %q", j.digest.Epoch, v.Silence, v.Why)
			}
		})
	}
}

func TestSilenceOfWhomTheDigestDoesNotName(t *testing.T) {
	j := NewSilence()
	if why := j.Of("n", "u", 0).Why; why != NoDigest {
		t.Errorf("before any digest: %q", why)
	}
	j = fed()
	for name, v := range map[string]Verdict{"another name": j.Of("m", "", 101*s), "another UID": j.Of("n", "v", 101*s)} {
		if v.Why != Unknown {
			t.Errorf("%s: %+v", name, v)
		}
	}
	if _, ok := j.Deadline("m", s); ok {
		t.Error("a node that the digest does not name has a deadline")
	}
}

func TestDeadlineIsExact(t *testing.T) {
	j := fed()
	at, ok := j.Deadline("n", 50*s)
	if !ok || at != 139*s {
		t.Fatalf("deadline %s, %t; want 139s", at, ok)
	}
	// The next digests, made on time, do not move it.
	j.Digest(digestAt(5, 3, 3*s, 12*s), 101*s)
	if again, _ := j.Deadline("n", 50*s); again != at {
		t.Errorf("the deadline moved from %s to %s", at, again)
	}
	if v := j.Of("n", "u", at); v.Silence != 50*s {
		t.Errorf("silent for %s at the deadline", v.Silence)
	}
}

// both tells of nothing but the nodes given and lets the first tick pass at 100 s.
func both(a *Ages, nodes ...Beat) {
	a.Leases(nodes)
	a.Nodes(nodes)
	a.Tick(100*s, 100*s)
}

func agesOf(t *testing.T, a *Ages, slice int, now time.Duration) map[string]time.Duration {
	t.Helper()
	d, ok := a.Digest(slice, now)
	if !ok {
		t.Fatal("no digest")
	}
	out := map[string]time.Duration{}
	for _, b := range d.Beats {
		out[b.Node] = b.Age
	}
	return out
}

func TestAges(t *testing.T) {
	n := Beat{Node: "n", UID: "u", Renewed: 7, Heartbeat: 3}
	tests := map[string]struct {
		then func(a *Ages)
		want time.Duration
	}{
		"time passes up to the proof":                {func(a *Ages) { a.Tick(103*s, 101*s) }, s},
		"and not beyond now":                         {func(a *Ages) { a.Tick(101*s, 103*s) }, s},
		"one tick adds at most 2 s":                  {func(a *Ages) { a.Tick(160*s, 160*s) }, 2 * s},
		"without a watch no time passes":             {func(a *Ages) { a.Tick(101*s, 0); a.Tick(102*s, 102*s); a.Tick(103*s, 103*s) }, s},
		"a later renewTime is a beat":                {func(a *Ages) { a.Tick(101*s, 101*s); a.Lease("n", 8); a.Tick(102*s, 102*s) }, 0},
		"an earlier one too":                         {func(a *Ages) { a.Tick(101*s, 101*s); a.Lease("n", 6); a.Tick(102*s, 102*s) }, 0},
		"the same is none":                           {func(a *Ages) { a.Lease("n", 7); a.Tick(101*s, 101*s) }, s},
		"the node's own heartbeat is a beat":         {func(a *Ages) { a.Tick(101*s, 101*s); a.Node("n", "u", 4); a.Tick(102*s, 102*s) }, 0},
		"a Ready condition that vanishes is a beat":  {func(a *Ages) { a.Tick(101*s, 101*s); a.Node("n", "u", 0); a.Tick(102*s, 102*s) }, 0},
		"an update without a heartbeat is none":      {func(a *Ages) { a.Node("n", "u", 3); a.Tick(101*s, 101*s) }, s},
		"a Lease deleted is none":                    {func(a *Ages) { a.LeaseGone("n"); a.Tick(101*s, 101*s) }, s},
		"a Lease made anew is one":                   {func(a *Ages) { a.Tick(101*s, 101*s); a.LeaseGone("n"); a.Lease("n", 7); a.Tick(102*s, 102*s) }, 0},
		"another UID is another node":                {func(a *Ages) { a.Tick(101*s, 101*s); a.Node("n", "v", 3); a.Tick(102*s, 102*s) }, 0},
		"a node deleted and made anew starts afresh": {func(a *Ages) { a.Tick(101*s, 101*s); a.NodeGone("n"); a.Node("n", "v", 3); a.Tick(102*s, 102*s) }, 0},
		"a relist changes no age":                    {func(a *Ages) { a.Leases([]Beat{n}); a.Nodes([]Beat{n}); a.Tick(101*s, 101*s) }, s},
		"a relist that shows a change is a beat": {func(a *Ages) {
			a.Tick(101*s, 101*s)
			a.Leases([]Beat{{Node: "n", Renewed: 9}})
			a.Tick(102*s, 102*s)
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			a := NewAges(1, 5, 0)
			both(a, n)
			tt.then(a)
			if got := agesOf(t, a, 0, a.heard)["n"]; got != tt.want {
				t.Errorf("age %s, want %s", got, tt.want)
			}
		})
	}
}

func TestTakeOverChangesNoAge(t *testing.T) {
	last := Digest{Epoch: 4, Counter: 77, Beats: []Beat{
		{Node: "gone", UID: "g", Renewed: 1, Age: 30 * s},
		{Node: "moved", UID: "m", Renewed: 1, Age: 30 * s},
		{Node: "new", UID: "old", Renewed: 1, Age: 30 * s},
		{Node: "quiet", UID: "q", Renewed: 1, Heartbeat: 2, Age: 30 * s},
		{Node: "status", UID: "s", Heartbeat: 2, Age: 30 * s},
	}}
	a := NewAges(1, 5, 0)
	a.Adopt(last)
	a.Leases([]Beat{{Node: "moved", Renewed: 2}, {Node: "new", Renewed: 1}, {Node: "quiet", Renewed: 1}})
	if _, ok := a.Digest(0, 0); ok {
		t.Error("a digest before the nodes were listed")
	}
	a.Nodes([]Beat{
		{Node: "moved", UID: "m"}, {Node: "new", UID: "new"}, {Node: "quiet", UID: "q", Heartbeat: 2}, {Node: "status", UID: "s", Heartbeat: 3},
	})
	a.Tick(900*s, 900*s) // whatever the clock shows: nobody has watched
	want := map[string]time.Duration{"moved": 0, "new": 0, "quiet": 30 * s, "status": 0}
	if diff := cmp.Diff(want, agesOf(t, a, 0, 900*s)); diff != "" {
		t.Error(diff)
	}
}

func TestDigest(t *testing.T) {
	a := NewAges(2, 5, 40)
	both(a)
	for slice := range 2 {
		d, ok := a.Digest(slice, 100*s)
		if want := (Digest{Epoch: 5, Counter: 41, At: 100 * s}); !ok || len(d.Beats) != 0 || d.Counter != want.Counter || d.Epoch != want.Epoch || d.At != want.At {
			t.Errorf("an empty partition: %+v, %t", d, ok)
		}
	}
	if _, ok := a.Digest(0, 101*s); ok {
		t.Error("a second digest on the same proof")
	}
	a.Tick(102*s, 101*s)
	if d, ok := a.Digest(0, 102*s); !ok || d.Counter != 42 {
		t.Errorf("after a newer proof: %+v, %t", d, ok)
	}
	a.Tick(160*s, 102*s) // thawed: nothing that was sent meanwhile has been read
	if _, ok := a.Digest(0, 160*s); ok {
		t.Error("a digest on a proof from before a freeze")
	}
	a.Tick(161*s, 0)
	if _, ok := a.Digest(1, 161*s); ok {
		t.Error("a digest without a watch")
	}
}

// An owner that starts anew under the same lease goes on counting.
func TestCounterGoesOn(t *testing.T) {
	a := NewAges(1, 5, 0)
	a.Adopt(Digest{Epoch: 5, Counter: 9})
	both(a)
	if d, _ := a.Digest(0, 100*s); d.Counter != 10 || a.Counter() != 10 {
		t.Errorf("counter %d after 9", d.Counter)
	}
}
