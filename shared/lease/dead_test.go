package lease

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-io/millrace/shared/protocol"
)

// settled returns a crew whose members have shared units and have been connected
// for long enough to judge others.
func settled(t *testing.T, members, units int) (*crew, []*hand) {
	t.Helper()
	c := newCrew(t, units)
	hands := c.joinMany(members)
	time.Sleep(probeUp + 3*time.Second)
	c.wantBalanced(members)
	return c, hands
}

func evictions(hands []*hand) (n float64) {
	for _, h := range hands {
		n += h.metric("evictions")
	}
	return n
}

func TestAKilledMemberIsFoundAtOnce(t *testing.T) {
	for _, members := range []int{2, 3, 8} {
		synctest.Test(t, func(t *testing.T) {
			c, hands := settled(t, members, 32)
			hands[1].die()
			took := c.awaitHeld(time.Second)
			t.Logf("%d members: all units held %s after a kill", members, took)
			if n := evictions(hands); n != 1 {
				t.Errorf("%v evictions, want 1", n)
			}
			living := slices.DeleteFunc(slices.Clone(hands), func(h *hand) bool { return h == hands[1] })
			var taken float64
			for _, h := range living {
				taken += h.metric("takeovers", byEviction)
			}
			if taken == 0 {
				t.Error("no take-over by eviction was counted")
			}
			c.wantNothingStolen()
		})
	}
}

func TestNeighboursThatDieTogetherAreFound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hands := settled(t, 8, 32)
		slices.SortFunc(hands, func(a, b *hand) int { return strings.Compare(a.Member(), b.Member()) })
		hands[2].die()
		hands[3].die()
		hands[4].die()
		t.Logf("three neighbours of eight: %s", c.awaitHeld(2*time.Second))
		c.wantNothingStolen()
	})
}

// A frozen process has its connection: its server says nothing about it.
func TestAFrozenMemberIsOnlyFoundByItsTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hands := settled(t, 3, 32)
		before := time.Now()
		thaw := c.freeze(hands[1])
		frozen := hands[1].Member()
		time.Sleep(3 * time.Second)
		if n := evictions(hands); n != 0 || c.sea.claims(before) != 0 {
			t.Fatalf("%v evictions and %d claims after time-outs alone", n, c.sea.claims(before))
		}
		time.Sleep(5 * time.Second)
		if _, idle := c.held(); idle != 0 {
			t.Errorf("%d units are idle 8 s after a freeze", idle)
		}
		for _, g := range c.grants(hands[1]) {
			if g.Valid() == nil {
				t.Error("a grant of the frozen member is valid")
			}
		}
		thaw()
		time.Sleep(3 * time.Second)
		c.wantBalanced(3)
		if hands[1].Member() == frozen {
			t.Error("the thawed member goes on under its old id")
		}
		c.wantNothingStolen()
	})
}

// ⚠ Without the eviction by CAS, whoever does not hear of renewals would take
// the units of the living. Here it does not hear, and nobody tells it so.
func TestTheLivingAreNotTakenFromByOneWhoDoesNotHear(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hands := settled(t, 2, 8)
		c.sea.change(func() { hands[0].boat.deaf = true })
		time.Sleep(3 * protocol.MemberTTL)
		c.sea.change(func() { hands[0].boat.deaf = false })
		time.Sleep(time.Second)
		if n := evictions(hands); n != 0 {
			t.Errorf("%v evictions of the living", n)
		}
		c.wantBalanced(2)
		c.wantNothingStolen()
	})
}

// ⚠ After a restart of NATS everybody looks dead to the first one back, by any
// clock but connected time.
func TestAfterARestartTheFirstOneBackTakesNothing(t *testing.T) {
	for name, outage := range map[string]time.Duration{
		"a blink":                     300 * time.Millisecond,
		"less than a TTL":             3 * time.Second,
		"much longer than a TTL":      30 * time.Second,
		"ten minutes, keys preserved": 10 * time.Minute,
	} {
		for feeds, quiet := range map[string]bool{"feeds are broken": false, "feeds go on": true} {
			t.Run(name+", "+feeds, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { restart(t, outage, quiet) })
			})
		}
	}
}

func restart(t *testing.T, outage time.Duration, quiet bool) {
	c, hands := settled(t, 8, 32)
	before := time.Now()
	c.sea.change(func() {
		c.sea.ashore = true
		for _, h := range hands {
			h.boat.quiet = quiet
		}
	})
	for _, h := range hands {
		h.boat.cut()
	}
	time.Sleep(outage)
	hands[5].boat.mend()
	time.Sleep(500 * time.Millisecond)
	for _, h := range hands {
		if h != hands[5] {
			h.boat.mend()
		}
	}
	c.sea.change(func() { c.sea.ashore = false })
	time.Sleep(10 * time.Second)
	if n := evictions(hands); n != 0 || c.sea.claims(before) != 0 {
		t.Errorf("%v evictions, %d claims", n, c.sea.claims(before))
	}
	c.wantBalanced(8)
	c.wantNothingStolen()
}

// When the keys have run out during an outage everybody rejoins, and nobody
// takes from one who is still there.
func TestAfterAnOutageLongerThanATTLEverybodyRejoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hands := settled(t, 8, 32)
		before := time.Now()
		for _, h := range hands {
			h.boat.cut()
		}
		time.Sleep(20 * time.Second)
		for _, h := range hands {
			h.boat.mend()
			time.Sleep(50 * time.Millisecond)
		}
		took := c.awaitHeld(5 * time.Second)
		t.Logf("all units held %s after the last one was back", took)
		time.Sleep(3 * time.Second)
		if n := c.sea.claims(before); n > 36 {
			t.Errorf("%d claims of 32 units, want them shared at once", n)
		}
		c.wantBalanced(8)
		c.wantNothingStolen()
		c.wantNoOverlap()
	})
}

// One that was cut off alone must not call the others dead, whatever it missed.
func TestAMemberThatWasCutOffTakesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hands := settled(t, 3, 9)
		hands[0].boat.cut()
		time.Sleep(time.Minute)
		before := evictions(hands[:1])
		hands[0].boat.mend()
		time.Sleep(5 * time.Second)
		if n := evictions(hands[:1]); n != before {
			t.Errorf("%v evictions by the one that was cut off", n)
		}
		c.wantBalanced(3)
		c.wantNothingStolen()
	})
}

func TestAYoungConnectionDoesNotJudge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 8)
		hands := c.joinMany(3)
		time.Sleep(2 * time.Second)
		hands[2].die()
		time.Sleep(2500 * time.Millisecond) // all connections are younger than 5 s
		if n := evictions(hands); n != 0 {
			t.Errorf("%v evictions within 5 s of connecting", n)
		}
		c.awaitHeld(2 * time.Second)
	})
}

func TestAMinorityDoesNotEvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hands := settled(t, 4, 8)
		// Of the three others of each, two time out: one of three answers.
		for _, h := range hands[1:3] {
			c.freeze(h)
		}
		hands[3].die()
		time.Sleep(3 * time.Second)
		if n := evictions(hands); n != 0 {
			t.Errorf("%v evictions by one of three", n)
		}
		c.wantNothingStolen()
	})
}

// The first probe unanswered, the second answered: a reconnect.
func TestOneUnansweredProbeIsNotEnough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, hands := settled(t, 3, 9)
		c.sea.change(func() { hands[0].boat.quiet = true }) // or its renewal would refuse the eviction
		for range 20 {
			hands[0].boat.cut()
			time.Sleep(probeGap - 10*time.Millisecond)
			hands[0].boat.mend()
			time.Sleep(337 * time.Millisecond)
		}
		if n := evictions(hands); n != 0 {
			t.Errorf("%v evictions", n)
		}
		c.wantBalanced(3)
	})
}
