package nodelifecycle

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// queue is an evictor of one member under fake time, and who was woken when.
type queue struct {
	*evictor
	w    *roletest.World
	p    *roletest.Partition
	line *turnstile

	mu    sync.Mutex
	woken []string
	began time.Time
}

func inBubble(t *testing.T, f func(t *testing.T, q *queue)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		p := defaults()
		q := &queue{w: newWorld(1), line: newTurnstile(), began: time.Now()}
		q.p = q.w.Partition(0)
		q.p.OnWake = func(key event.Key) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.woken = append(q.woken, key.Name)
		}
		r := &registrar{}
		q.p.OnChange = func(c cache.Change) { r.outdated() }
		q.evictor = newEvictor(ctx, &p, q.line.bucket, r)
		f(t, q)
	})
}

// put tells of nodes, and lets the next count see them.
func (q *queue) put(t *testing.T, nodes ...roletest.Object) {
	t.Helper()
	q.w.Put(t, nodes...)
}

func key(name string) event.Key { return event.Key{Name: name} }

// free lets n nodes pass.
func (q *queue) free(t *testing.T, n int) {
	t.Helper()
	for range n {
		select {
		case q.line.free <- roletest.Endless():
		case <-time.After(time.Hour):
			t.Fatalf("nobody asks for a token; woke %q", q.names())
		}
	}
	synctest.Wait()
}

func (q *queue) names() []string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.woken)
}

func (q *queue) asks() int { synctest.Wait(); return q.line.all() }

// Section 10, "Same node enqueued repeatedly -> not stuck, tainted once"; upstream's
// queue: "Add twice -> one item".
func TestANodeStandsInLineOnce(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, q *queue) {
		q.put(t, node("well", ready), node("a", unheard))
		for range 5 {
			q.want(q.p, key("a"), "", q.began)
		}
		time.Sleep(10 * time.Second)
		q.free(t, 1)
		if got := q.names(); !slices.Equal(got, []string{"a"}) {
			t.Errorf("woke %q", got)
		}
		if _, granted := q.claim(q.p, key("a")); !granted {
			t.Error("it has no token")
		}
		if _, granted := q.claim(q.p, key("a")); granted {
			t.Error("it has two tokens")
		}
		before := q.asks()
		time.Sleep(time.Hour)
		if q.asks() != before {
			t.Error("tokens are asked for although nobody waits")
		}
		q.want(q.p, key("a"), "", q.began) // upstream: refused until Remove; ours: its own run decides
		time.Sleep(10 * time.Second)
		q.free(t, 1)
		if got := q.names(); len(got) != 2 {
			t.Errorf("woke %q, want it again", got)
		}
	})
}

// Upstream's queue is in the order of the last look; ours in that of who has been
// sick longest: docs/parity.md.
func TestSickLongestFirst(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, q *queue) {
		q.put(t, node("w1", ready), node("w2", ready), node("w3", ready), node("a", unheard), node("b", unheard), node("c", unheard))
		q.want(q.p, key("a"), "", q.began.Add(-time.Minute))
		q.want(q.p, key("b"), "", q.began.Add(-time.Hour))
		q.want(q.p, key("c"), "", q.began)
		time.Sleep(10 * time.Second)
		q.free(t, 3)
		if got := q.names(); !slices.Equal(got, []string{"b", "a", "c"}) {
			t.Errorf("woke %q", got)
		}
	})
}

// Section 12: "a node changing zone must be removed from the old zone's queue".
func TestANodeThatChangesItsZone(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, q *queue) {
		q.put(t, node("w1", ready, in("a")), node("w2", ready, in("b")), node("n", unheard, in("a")))
		q.want(q.p, key("n"), zoneA, q.began)
		q.put(t, node("n", unheard, in("b")))
		q.want(q.p, key("n"), zoneB, q.began)
		time.Sleep(10 * time.Second)
		if q.line.asks(zoneA, 0.1) != 0 || q.line.asks(zoneB, 0.1) == 0 {
			t.Errorf("asked for %v", q.line.asked)
		}
	})
}

// Remove during an attempt: nobody is woken, and the token is void.
func TestForgottenWhileATokenIsOnItsWay(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, q *queue) {
		q.put(t, node("well", ready), node("a", unheard), node("b", unheard))
		q.want(q.p, key("a"), "", q.began)
		time.Sleep(6 * time.Second)
		q.forget(q.p, key("a"))
		q.free(t, 1)
		if got := q.names(); got != nil {
			t.Errorf("woke %q", got)
		}
		q.want(q.p, key("a"), "", q.began)
		q.want(q.p, key("b"), "", q.began.Add(time.Second))
		time.Sleep(10 * time.Second)
		q.free(t, 2)
		q.forget(q.p, key("a")) // it is Ready again, before its run
		q.leave(q.p)            // and the partition goes
		for _, name := range []string{"a", "b"} {
			if _, granted := q.claim(q.p, key(name)); granted {
				t.Errorf("%s has a token still", name)
			}
		}
	})
}

// ⚠ Architecture 8: no token before a period has passed since the node was seen sick,
// nor before one has since more fell sick; at most a grace period.
func TestWhenTheFirstTokenIsAskedFor(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		story func(t *testing.T, q *queue)
		after time.Duration // first token, since the bubble began
	}{
		"seen sick a moment ago: a period": {func(t *testing.T, q *queue) {
			t.Helper()
			q.put(t, node("n", unheard))
			q.want(q.p, key("n"), "", time.Now())
		}, 5 * time.Second},
		"another falls sick 3 s later: a period from then": {func(t *testing.T, q *queue) {
			t.Helper()
			q.put(t, node("n", unheard))
			q.want(q.p, key("n"), "", time.Now())
			time.Sleep(3 * time.Second)
			q.put(t, node("m", unheard))
		}, 8 * time.Second},
		"⚠ one comes back as the next falls sick, so that the count does not grow: a period": {func(t *testing.T, q *queue) {
			t.Helper()
			q.put(t, node("m", unheard), node("n", ready))
			q.census.take(q.p)
			time.Sleep(time.Minute)
			q.put(t, node("m", ready), node("n", unheard))
			q.want(q.p, key("n"), "", time.Now())
		}, 65 * time.Second},
		"one falls sick every 3 s: a grace period, not for ever": {func(t *testing.T, q *queue) {
			t.Helper()
			q.put(t, node("n", unheard))
			q.want(q.p, key("n"), "", time.Now())
			go func() {
				for i := range 100 {
					time.Sleep(3 * time.Second)
					q.put(t, node("m"+string(rune('A'+i)), unheard))
				}
			}()
		}, 50 * time.Second},
		"a zone whose rate is 0: when it has another": {func(t *testing.T, q *queue) {
			t.Helper()
			q.put(t, node("n", unheard), node("m", unheard), node("o", unheard))
			q.want(q.p, key("n"), "", time.Now())
			time.Sleep(time.Minute) // 3 of 4 are sick
			q.put(t, node("m", ready))
		}, time.Minute},
		"⚠ it has waited for an hour when more fall sick: a period from then": {func(t *testing.T, q *queue) {
			t.Helper()
			q.put(t, node("n", unheard), node("m", unheard), node("o", unheard))
			q.want(q.p, key("n"), "", time.Now())
			time.Sleep(time.Hour) // 3 of 4 are sick: rate 0
			q.put(t, node("m", ready), node("b1", unheard, in("b")), node("b2", unheard, in("b")))
		}, time.Hour + 5*time.Second},
		"all zones down: when one is back": {func(t *testing.T, q *queue) {
			t.Helper()
			q.put(t, node("well", unheard), node("n", unheard))
			q.want(q.p, key("n"), "", time.Now())
			time.Sleep(time.Hour)
			q.put(t, node("well", ready))
		}, time.Hour},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, func(t *testing.T, q *queue) {
				q.put(t, node("well", ready), node("well2", ready, in("b")))
				if tt.after == 50*time.Second {
					for _, n := range crowd("w", 200, ready) {
						q.put(t, n)
					}
				}
				if name == "a zone whose rate is 0: when it has another" {
					q.w.Drop(t, node("well2"))
				}
				if name == "all zones down: when one is back" {
					q.w.Drop(t, node("well2"))
				}
				tt.story(t, q)
				for q.asks() == 0 && time.Since(q.began) < 2*time.Hour {
					time.Sleep(100 * time.Millisecond)
				}
				// It looks again within a second, and counts ten times in one.
				if got := time.Since(q.began); got < tt.after || got > tt.after+1300*time.Millisecond {
					t.Errorf("the first token was asked for after %s, want %s", got, tt.after)
				}
				if tt.after == 50*time.Second {
					time.Sleep(6 * time.Minute) // until the last has fallen
				}
			})
		})
	}
}

// A token that comes when the zone has no rate any more wakes nobody: it is thrown
// away.
func TestATokenForAZoneThatHasNoRateAnyMore(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, q *queue) {
		q.put(t, node("w1", ready), node("w2", ready), node("n", unheard))
		q.want(q.p, key("n"), "", q.began)
		time.Sleep(6 * time.Second)
		if q.asks() == 0 {
			t.Fatal("nobody asks")
		}
		q.put(t, node("w1", unheard), node("w2", unheard)) // all zones are down
		time.Sleep(200 * time.Millisecond)
		q.free(t, 1)
		if got := q.names(); got != nil {
			t.Errorf("woke %q", got)
		}
	})
}

// Each zone has its own line at its own rate: one that waits holds up no other.
func TestZonesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, q *queue) {
		q.put(t, node("w", ready, in("a")), node("n", unheard, in("a")))
		for _, name := range []string{"x", "y", "z"} {
			q.put(t, node(name, unheard, in("b")))
		}
		q.put(t, node("v", ready, in("b")))
		q.want(q.p, key("x"), zoneB, q.began.Add(-time.Hour)) // 3 of 4: rate 0
		q.want(q.p, key("n"), zoneA, q.began)
		time.Sleep(10 * time.Second)
		if q.asks(); q.line.asks(zoneA, 0.1) == 0 || len(q.line.asked) != 1 {
			t.Errorf("asked for %v", q.line.asked)
		}
	})
}

// ⚠ A node that has waited for an hour, because its zone had no rate, waits on while
// more fall silent: they may be all.
func TestWhoHasWaitedForLongWaitsWhileMoreFallSilent(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, q *queue) {
		for i := range 5 {
			q.put(t, node("a"+string(rune('0'+i)), ready, in("a")))
		}
		q.put(t, node("b0", ready, in("b")))
		q.census.take(q.p)
		for i := range 3 { // partial: the rate is 0
			name := "a" + string(rune('0'+i))
			q.put(t, node(name, unheard, in("a")))
			q.want(q.p, key(name), zoneA, time.Now())
		}
		time.Sleep(time.Hour)
		if q.asks() > 0 {
			t.Fatal("a token was asked for of a zone that has no rate")
		}
		// All the others go silent together, and are seen one after the other.
		for _, name := range []string{"a3", "a4"} {
			q.put(t, node(name, unheard, in("a")))
		}
		time.Sleep(4 * time.Second)
		q.put(t, node("b0", unheard, in("b")))
		time.Sleep(10 * time.Minute)
		if n := q.asks(); n > 0 {
			t.Errorf("%d tokens were asked for before all were seen to be down", n)
		}
	})
}
