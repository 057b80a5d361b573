package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

func TestOneMemberTakesEverythingInWellUnderASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 256)
		h := c.join()
		took := c.awaitHeld(time.Second)
		if took > 300*time.Millisecond {
			t.Errorf("256 units took %s", took)
		}
		if err := h.Ready(); err != nil {
			t.Errorf("Ready() = %v", err)
		}
		s := h.Snapshot()
		if s.Member != h.Member() || !s.Joined || !s.Complete || len(s.Members) != 1 || s.Members[0].Host != "h" || len(s.Mine) != 256 || s.Holders[7].Member != s.Member {
			t.Errorf("Snapshot() = %+v", s)
		}
		for _, g := range c.grants(h) {
			if c.units[g.Index()] != g.Unit() || g.Epoch() == 0 || g.Member() != h.Member() {
				t.Fatalf("grant %s has index %d, epoch %d, member %s", g.Unit(), g.Index(), g.Epoch(), g.Member())
			}
		}
	})
}

func TestAMemberCountsOnceItsCachesHaveSynced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 4)
		ready := make(chan struct{})
		h := c.join(func(cfg *Config) { cfg.Ready = ready })
		time.Sleep(5 * time.Second)
		if _, idle := c.held(); idle != 4 || h.Ready() == nil {
			t.Fatalf("held before the caches have synced: %d idle, Ready() = %v", idle, h.Ready())
		}
		close(ready)
		c.awaitHeld(100 * time.Millisecond)
	})
}

func TestAMemberJoinsAtLatestAfterTenSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 4)
		c.join(func(cfg *Config) { cfg.Ready = make(chan struct{}) })
		time.Sleep(9900 * time.Millisecond)
		if _, idle := c.held(); idle != 4 {
			t.Fatal("held before ten seconds")
		}
		c.awaitHeld(200 * time.Millisecond)
	})
}

func TestMembersShareTheUnitsAsTheyComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 32)
		c.dawdle = 50 * time.Millisecond
		hands := c.joinMany(1)
		for _, n := range []int{1, 2, 8} {
			for len(hands) < n {
				hands = append(hands, c.join())
			}
			time.Sleep(3 * time.Second)
			c.wantBalanced(n)
		}
		hands[3].leave()
		time.Sleep(3 * time.Second)
		c.wantBalanced(7)
		c.wantNoOverlap()
		c.wantNothingStolen()
		for _, h := range hands {
			if n := h.metric("losses", "taken") + h.metric("rejoins"); n != 0 {
				t.Errorf("%v losses and rejoins in a quiet life", n)
			}
		}
	})
}

func TestTheNewHolderNeverStartsBeforeTheOldHoldHasReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 8)
		c.dawdle = 2 * time.Second
		first := c.join()
		time.Sleep(time.Second)
		second := c.join()
		time.Sleep(time.Second)
		if n := len(c.grants(first)); n != 8 {
			t.Errorf("%d holds while draining, want 8", n)
		}
		for _, g := range c.grants(first) {
			if err := g.Valid(); err != nil {
				t.Errorf("a draining grant has to finish what is in hand: %v", err)
			}
		}
		time.Sleep(2 * time.Second)
		c.wantBalanced(2)
		c.wantNoOverlap()
		if n := second.metric("takeovers", byRelease); n != 4 {
			t.Errorf("%v units taken over by release, want 4", n)
		}
	})
}

func TestAReleasedGrantIsNotValid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 2)
		first := c.join()
		time.Sleep(time.Second)
		grants := c.grants(first)
		c.join()
		time.Sleep(time.Second)
		released := 0
		for _, g := range grants {
			if errors.Is(g.Valid(), ErrReleased) || errors.Is(g.Valid(), ErrLost) {
				released++
			}
		}
		if released != 1 {
			t.Errorf("%d of 2 grants say that they are released, want 1", released)
		}
	})
}

func TestARefusedRenewalDropsEverythingAndRejoinsUnderANewID(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 8)
		h := c.join()
		time.Sleep(time.Second)
		old, grants := h.Member(), c.grants(h)
		c.sea.change(func() { h.boat.deaf = true }) // the renewal has to find out
		c.sea.mu.Lock()
		_, err := c.sea.put(nil, entry{key: "evictor.m." + old}, c.sea.keys["evictor.m."+old].rev, evictedTTL)
		c.sea.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(protocol.RenewEvery + 200*time.Millisecond)
		for _, g := range grants {
			if !errors.Is(g.Valid(), ErrLost) || g.ctx.Err() == nil {
				t.Errorf("unit %s of the lost membership: Valid() = %v, context %v", g.Unit(), g.Valid(), g.ctx.Err())
			}
		}
		c.sea.change(func() { h.boat.deaf = false })
		c.awaitHeld(time.Second)
		c.wantBalanced(1)
		if h.Member() == old || h.metric("rejoins") != 1 || h.metric("losses", "refused") != 8 || h.metric("held") != 8 {
			t.Errorf("member %s → %s, %v rejoins, %v losses, %v held", old, h.Member(), h.metric("rejoins"), h.metric("losses", "refused"), h.metric("held"))
		}
		c.wantNoOverlap()
	})
}

func TestAnEvictionThatIsSeenEndsTheMembershipAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 8)
		h := c.join()
		time.Sleep(time.Second)
		grants := c.grants(h)
		c.sea.mu.Lock()
		key := "evictor.m." + h.Member()
		_, err := c.sea.put(nil, entry{key: key}, c.sea.keys[key].rev, evictedTTL)
		c.sea.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if err := grants[0].Valid(); !errors.Is(err, ErrLost) {
			t.Errorf("Valid() = %v, want ErrLost", err)
		}
		c.awaitHeld(time.Second)
	})
}

// Two holds of one unit must not meet in one process: the reconcilers of a
// partition share a cache.
func TestARejoinedMemberWaitsForItsOwnOldHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 1)
		c.work = func(ctx context.Context, g *Grant) error {
			select {
			case <-ctx.Done():
				time.Sleep(3 * time.Second) // slow to notice
			case <-g.Draining():
			}
			return nil
		}
		h := c.join()
		time.Sleep(time.Second)
		h.current().mu.Lock()
		h.current().lose(lostRefused)
		h.current().mu.Unlock()
		time.Sleep(2 * time.Second)
		if n := len(c.grants(h)); n != 1 {
			t.Errorf("%d holds, want the old one alone", n)
		}
		time.Sleep(2 * time.Second)
		c.wantBalanced(1)
		c.wantNoOverlap()
	})
}

func TestARenewalOfUnknownOutcomeIsNotALoss(t *testing.T) {
	for name, written := range map[string]bool{"it was written": true, "it was not written": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrew(t, 4)
				h := c.join()
				time.Sleep(time.Second)
				id, faults := h.Member(), 0
				c.sea.change(func() {
					h.boat.deaf = true // the view tells late
					c.sea.fault = func(*boat, string) (bool, error) {
						if faults++; faults > 3 {
							return false, nil
						}
						return written, errUnknown
					}
				})
				time.Sleep(4 * time.Second)
				c.sea.change(func() { h.boat.deaf = false })
				time.Sleep(10 * time.Second)
				if h.Member() != id || h.metric("renewals", resultError) == 0 {
					t.Errorf("member %s → %s after %v renewals of unknown outcome", id, h.Member(), h.metric("renewals", resultError))
				}
				c.wantBalanced(1)
			})
		})
	}
}

func TestTheLeaseRunsFromBeforeTheRenewalWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 1)
		h := c.join()
		time.Sleep(time.Second)
		g := c.grants(h)[0]
		const delay = 700 * time.Millisecond
		c.sea.change(func() { c.sea.delay = delay })
		before := h.metric("renewals", resultOK)
		for begun := time.Now(); h.metric("renewals", resultOK) == before; {
			if time.Since(begun) > 4*time.Second {
				t.Fatal("no renewal")
			}
			time.Sleep(time.Millisecond)
		}
		sent := time.Now().Add(-delay) // or 2 ms before
		c.sea.change(func() { c.sea.fault = func(*boat, string) (bool, error) { return false, errUnknown } })
		time.Sleep(time.Until(sent.Add(protocol.MemberTTL - protocol.Margin - 10*time.Millisecond)))
		if err := g.Valid(); err != nil {
			t.Errorf("%s after it was sent: %v", time.Since(sent), err)
		}
		time.Sleep(10 * time.Millisecond)
		if err := g.Valid(); !errors.Is(err, ErrExpired) {
			t.Errorf("%s after it was sent: Valid() = %v, want ErrExpired", time.Since(sent), err)
		}
		if h.Ready() == nil {
			t.Error("ready though the lease may have run out")
		}
	})
}

func TestAThawedMemberDistrustsItselfBeforeAnythingElse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 1)
		h := c.join()
		time.Sleep(time.Second)
		g := c.grants(h)[0]
		if err := g.Valid(); err != nil {
			t.Fatal(err)
		}
		h.suspended.Store(int64(protocol.MemberTTL)) // no other clock has moved
		if err := g.Valid(); !errors.Is(err, ErrExpired) {
			t.Errorf("Valid() = %v, want ErrExpired", err)
		}
	})
}

// Others find a member dead by two unanswered probes, so one that is cut off for
// longer must not act, though its TTL runs.
func TestAMemberThatIsCutOffDoesNotAct(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 1)
		h := c.join()
		time.Sleep(time.Second)
		g := c.grants(h)[0]
		h.boat.cut()
		time.Sleep(cutOff)
		if err := g.Valid(); !errors.Is(err, ErrCutOff) {
			t.Errorf("Valid() = %v, want ErrCutOff", err)
		}
		h.boat.mend()
		time.Sleep(300 * time.Millisecond)
		if err := g.Valid(); err != nil {
			t.Errorf("after the connection has come back: %v", err)
		}
	})
}

func TestOnEndEveryHoldDrainsAndNobodyHasToWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 8)
		c.dawdle = time.Second
		first := c.join()
		time.Sleep(time.Second)
		c.join()
		time.Sleep(3 * time.Second)
		id, left := first.Member(), time.Now()
		first.leave()
		if took := time.Since(left); took > 1100*time.Millisecond {
			t.Errorf("leaving took %s, want what the holds take", took)
		}
		c.awaitHeld(50 * time.Millisecond)
		c.wantBalanced(1)
		c.wantNoOverlap()
		c.wantNothingStolen()
		c.sea.mu.Lock()
		defer c.sea.mu.Unlock()
		if e := c.sea.keys["evictor.m."+id]; e.deleted || len(e.value) > 0 {
			t.Errorf("member key after leaving: %+v, want empty", e)
		}
		if first.metric("held") != 0 || first.metric("losses", "expired") != 0 {
			t.Errorf("%v held, %v lost after leaving", first.metric("held"), first.metric("losses", "expired"))
		}
	})
}

// One slow hold must not keep the other units of a leaving member idle.
func TestUnitsOfALeavingMemberMoveOneByOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 8)
		c.work = func(ctx context.Context, g *Grant) error {
			select {
			case <-g.Draining():
			case <-ctx.Done():
			}
			if g.Index() == 0 {
				pause(ctx, 4*time.Second)
			}
			return nil
		}
		first := c.join()
		time.Sleep(time.Second)
		second := c.join()
		time.Sleep(6 * time.Second)
		c.wantBalanced(2)
		leaver := first
		if slices.ContainsFunc(c.grants(second), func(g *Grant) bool { return g.Index() == 0 }) {
			leaver = second
		}
		leaver.stop()
		time.Sleep(200 * time.Millisecond)
		if _, idle := c.held(); idle != 0 {
			t.Errorf("%d units idle while one hold is slow", idle)
		}
		c.wantNoOverlap()
	})
}

func TestAHoldThatOutlivesTheLeaseIsCutOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 1)
		c.work = func(ctx context.Context, _ *Grant) error { <-ctx.Done(); return nil } // deaf to draining
		h := c.join()
		time.Sleep(time.Second)
		begun := time.Now()
		h.leave()
		if took := time.Since(begun); took < 4900*time.Millisecond || took > 5100*time.Millisecond {
			t.Errorf("leaving took %s, want what is left of the lease after a last renewal, 5 s", took)
		}
	})
}

func TestRunEndsThoughTheBucketIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 4)
		h := c.join()
		time.Sleep(time.Second)
		h.boat.cut()
		begun := time.Now()
		h.leave()
		if took := time.Since(begun); took > protocol.MemberTTL {
			t.Errorf("leaving took %s", took)
		}
	})
}

func TestAHoldThatReturnsUnaskedIsCalledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 1)
		var calls []time.Duration
		begun := time.Now()
		c.work = func(context.Context, *Grant) error {
			calls = append(calls, time.Since(begun))
			return errors.New("broken")
		}
		h := c.join()
		time.Sleep(time.Minute)
		h.leave()
		if len(calls) < 12 || len(calls) > 30 {
			t.Errorf("%d calls in a minute", len(calls))
		}
		for i := 1; i < len(calls); i++ {
			if gap := calls[i] - calls[i-1]; gap > retryPolicy.Max || gap < retryPolicy.Base/2 {
				t.Errorf("call %d came %s after the one before", i, gap)
			}
		}
		if h.metric("claims", resultOK) != 1 {
			t.Errorf("%v claims, want the lease to be kept", h.metric("claims", resultOK))
		}
	})
}

func TestClaimsThatAreRefusedOrUnknownAreTriedAgain(t *testing.T) {
	for name, fault := range map[string]struct {
		written bool
		err     error
	}{
		"another write came first":       {false, event.ErrRefused},
		"no answer, and it was not seen": {false, errUnknown},
		"no answer, and it was written":  {true, errUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newCrew(t, 32)
				tries := map[string]int{}
				c.sea.fault = func(_ *boat, key string) (bool, error) {
					if tries[key]++; strings.Contains(key, ".p.") && tries[key] == 1 {
						return fault.written, fault.err
					}
					return false, nil
				}
				h := c.join()
				c.awaitHeld(time.Second)
				time.Sleep(5 * time.Second)
				c.wantBalanced(1)
				c.wantNoOverlap()
				for key, n := range tries {
					if strings.Contains(key, ".p.") && n > 2 {
						t.Errorf("%d claims of %s, want no hot loop", n, key)
					}
				}
				if h.metric("held") != 32 {
					t.Errorf("%v held, want 32", h.metric("held"))
				}
			})
		})
	}
}

// A release may be written though nobody says so; the view must not make the
// unit held again until it tells.
func TestAReleaseOfUnknownOutcomeIsNotTakenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 8)
		first := c.join()
		time.Sleep(time.Second)
		tries := map[string]int{}
		c.sea.change(func() {
			c.sea.fault = func(b *boat, key string) (bool, error) {
				if tries[key]++; b == first.boat && strings.Contains(key, ".p.") && tries[key] == 1 {
					b.deaf = true
					return true, errUnknown
				}
				return false, nil
			}
		})
		second := c.join()
		time.Sleep(time.Second)
		for range 2000 {
			if n := len(first.Snapshot().Mine); n != 4 {
				t.Fatalf("%d units held by the one that gave up 4 of 8", n)
			}
			time.Sleep(time.Millisecond)
		}
		c.sea.change(func() { first.boat.deaf = false })
		time.Sleep(time.Second)
		c.wantBalanced(2)
		c.wantNoOverlap()
		if n := first.metric("losses", "taken") + second.metric("losses", "taken"); n != 0 {
			t.Errorf("%v units lost, want them given up", n)
		}
	})
}

func TestManyAtOnceSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 64)
		c.dawdle = 20 * time.Millisecond
		c.joinMany(8)
		time.Sleep(3 * time.Second)
		c.wantBalanced(8)
		before := time.Now()
		time.Sleep(time.Minute)
		if n := c.sea.claims(before); n != 0 {
			t.Errorf("%d claims in a quiet minute", n)
		}
		c.wantNoOverlap()
		c.wantNothingStolen()
	})
}

func TestKindsWithDotsAreUnits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 0)
		c.units = []string{"pods", "endpointslices.discovery.k8s.io"}
		c.join()
		c.awaitHeld(time.Second)
		if _, ok := c.sea.keys["evictor.p.endpointslices/discovery/k8s/io"]; !ok {
			t.Errorf("keys: %v", c.sea.keys)
		}
	})
}

func TestMembersAnswerForThemselves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 1)
		h := c.join(func(cfg *Config) { cfg.Status = func() []byte { return []byte("fine") } })
		time.Sleep(time.Second)
		for _, ask := range []struct{ subject, data, want string }{
			{MemberSubject("test", "evictor", h.Member()), "ping", "ok"},
			{MemberSubject("test", "evictor", h.Member()), "status", "fine"},
			{StatusSubject("test"), "", "fine"},
		} {
			got, err := c.sea.boat().Ask(t.Context(), ask.subject, []byte(ask.data))
			if err != nil || string(got) != ask.want {
				t.Errorf("asking %s %q: %q, %v, want %q", ask.subject, ask.data, got, err, ask.want)
			}
		}
		h.leave()
		if _, err := c.sea.boat().Ask(t.Context(), StatusSubject("test"), nil); !errors.Is(err, event.ErrNoResponders) {
			t.Errorf("after leaving: %v, want nobody to answer", err)
		}
	})
}

func TestAWipedBucketIsFilledAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCrew(t, 16)
		hands := c.joinMany(3)
		time.Sleep(3 * time.Second)
		c.sea.mu.Lock()
		c.sea.keys = map[string]entry{}
		c.sea.mu.Unlock()
		for _, h := range hands {
			h.boat.cut()
			h.boat.mend()
		}
		time.Sleep(3 * time.Second)
		c.wantBalanced(3)
	})
}

func TestSeriesExistAtZero(t *testing.T) {
	s := newSea()
	h := &hand{Lease: New(Config{Role: "r"}, s.boat(), s.boat(), nil, nil)}
	for _, labels := range [][]string{
		{"claims", resultOK}, {"claims", resultRefused}, {"claims", resultError},
		{"takeovers", byRelease}, {"takeovers", byExpiry}, {"takeovers", byEviction},
	} {
		if n := h.metric(labels[0], labels[1]); n != 0 {
			t.Errorf("%v = %v", labels, n)
		}
	}
	if err := h.Ready(); err == nil || h.Member() != "" || h.Snapshot().Joined {
		t.Errorf("before Run: Ready() = %v, member %q", err, h.Member())
	}
}

func BenchmarkValid(b *testing.B) {
	l := New(Config{Role: "r"}, newSea().boat(), newSea().boat(), nil, nil)
	t := newTenure(b.Context(), l, nil, false)
	t.deadline.Store(1 << 62)
	g := newGrant(t, "0", 1)
	for b.Loop() {
		if err := g.Valid(); err != nil {
			b.Fatal(err)
		}
	}
}

// A role of 64 members with 256 partitions judges four times a second, and at
// every change.
func BenchmarkStep(b *testing.B) {
	c := newCrew(nil, 256)
	l := New(Config{Role: "r", Units: c.units}, newSea().boat(), newSea().boat(), nil, nil)
	t := newTenure(b.Context(), l, nil, false)
	v := view{t}
	v.Begin(1)
	for i := range 64 {
		v.Entry(fmt.Sprintf("r.m.%016x", i), t.memberValue(), uint64(i+1), false)
	}
	for i, u := range c.units {
		v.Entry("r.p."+u, leaseValue(fmt.Sprintf("%016x", i%64)), uint64(i+100), false)
	}
	v.Caught()
	t.mu.Lock()
	t.renewed(1000, l.boot())
	t.mu.Unlock()
	for b.Loop() {
		t.deadline.Store(1 << 62)
		t.step()
	}
}

func ExampleMemberSubject() {
	fmt.Println(MemberSubject("prod", "evictor", "00ff"))
	// Output: millrace.prod.evictor.00ff
}
