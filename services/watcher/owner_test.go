package watcher

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// story runs one test in a bubble, with an owner that has been started.
func story(t *testing.T, before func(r *rig), tell func(t *testing.T, r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		if before != nil {
			before(r)
		}
		r.start()
		tell(t, r)
		r.stop()
	})
}

func wantLive(t *testing.T, r *rig, want string) {
	t.Helper()
	if got := r.bus.live(); got != want {
		t.Errorf("the stream holds %q, want %q", got, want)
	}
}

func TestTheFirstListIsComparedWithTheStream(t *testing.T) {
	ghost := event.Message{Op: event.Put, Key: event.Key{Namespace: "n", Name: "ghost"}, UID: "g", Version: 90, Epoch: 3, Projection: 1}
	story(t, func(r *rig) {
		r.bus.put(ghost)
		r.api.pod("a", "1")
		r.api.pod("b", "1")
	}, func(t *testing.T, r *rig) {
		r.after(5 * time.Second)
		if marks := r.bus.marks(); len(marks) != 0 {
			t.Errorf("%d bookmarks before the first list", len(marks))
		}
		r.api.list()
		r.after(2 * time.Second)
		wantLive(t, r, "a@101 b@102")
		m, _ := r.bus.Last(t.Context(), testKind, ghost.Key)
		if m.Op != event.Delete || m.Version != 102 || r.bus.ttl[ghost.Key] != 24*time.Hour {
			t.Errorf("the ghost's last word is %s at %d for %s, want a tombstone at 102 for a day", m.Op, m.Version, r.bus.ttl[ghost.Key])
		}
		var byKey event.Sums
		latest := map[int]event.Message{}
		for _, m := range r.bus.marks() {
			latest[m.Slice] = m
		}
		for _, m := range latest {
			byKey.Count += m.Mark.ByKey.Count
			if m.Upto != 102 || m.Epoch != 7 || m.Projection != projection {
				t.Errorf("bookmark %+v, want upto 102, epoch 7, projection %d", m, projection)
			}
		}
		if len(latest) != testPartitions || byKey.Count != 2 {
			t.Errorf("bookmarks of %d slices count %d objects, want %d and 2", len(latest), byKey.Count, testPartitions)
		}
	})
}

func TestAnEventIsPublishedOnceAndAnEqualOneNotAtAll(t *testing.T) {
	story(t, nil, func(t *testing.T, r *rig) {
		r.api.list()
		r.api.change("a", "1")
		r.after(10 * time.Millisecond)
		sent := r.bus.tries()
		r.api.change("a", "1") // another version, the same body
		r.after(10 * time.Millisecond)
		if got := r.bus.tries() - sent; got != 0 {
			t.Errorf("%d publications of an equal body", got)
		}
		if got := valueOf(r.owner.metrics.suppressed); got != 1 {
			t.Errorf("suppressed = %v, want 1", got)
		}
		wantLive(t, r, "a@101")
		m, _ := r.bus.Last(t.Context(), testKind, event.Key{Namespace: "ns-a", Name: "a"})
		var pod corev1.Pod
		if err := pod.Unmarshal(m.Body); err != nil || pod.Name != "a" || pod.ResourceVersion != "" {
			t.Errorf("body is %+v (%v), want pod a without a version", pod, err)
		}
		if m.Hash != event.HashBody(m.Body) || m.UID != "uid-a" || m.Observed.IsZero() {
			t.Errorf("envelope is %+v", m)
		}
		r.api.events.Changed(r.api.remove("a"), true)
		r.after(10 * time.Millisecond)
		wantLive(t, r, "")
	})
}

func TestARefusedPublicationIsReplacedByTheCurrentObject(t *testing.T) {
	story(t, nil, func(t *testing.T, r *rig) {
		r.api.list()
		key := event.Key{Namespace: "ns-a", Name: "a"}
		// A predecessor's late publish takes the place just before ours.
		r.bus.put(event.Message{Op: event.Put, Key: key, UID: "uid-a", Version: 50, Epoch: 6, Projection: 1})
		r.api.change("a", "1")
		r.api.change("a", "2")
		r.after(time.Second)
		wantLive(t, r, "a@102")
	})
}

func TestAnUnknownOutcomeIsReadBack(t *testing.T) {
	tests := map[string]bool{"it had been stored": true, "it had not": false}
	for name, stored := range tests {
		t.Run(name, func(t *testing.T) {
			failed := false
			story(t, func(r *rig) {
				r.bus.judge = func(p bus.Publication) (bool, error) {
					if p.Message.Op == event.Put && !failed {
						failed = true
						return stored, bus.ErrTimeout
					}
					return true, nil
				}
			}, func(t *testing.T, r *rig) {
				r.api.list()
				r.api.change("a", "1")
				r.after(2 * time.Second)
				wantLive(t, r, "a@101")
			})
		})
	}
}

func TestALatePublicationOfAPredecessorIsCorrected(t *testing.T) {
	story(t, func(r *rig) { r.api.pod("a", "new") }, func(t *testing.T, r *rig) {
		r.api.list()
		r.after(time.Second)
		r.bus.put(event.Message{Op: event.Put, Key: event.Key{Namespace: "ns-a", Name: "a"}, UID: "uid-a", Version: 99, Epoch: 6, Projection: 1})
		r.bus.put(event.Message{Op: event.Put, Key: event.Key{Namespace: "n", Name: "ghost"}, UID: "g", Version: 99, Epoch: 6, Projection: 1})
		r.after(time.Second)
		wantLive(t, r, "a@101")
	})
}

func TestAHigherEpochEndsTheRun(t *testing.T) {
	tests := map[string]event.Message{
		"seen in an object":  {Op: event.Put, Key: event.Key{Namespace: "n", Name: "x"}, Version: 99, Epoch: 8, Projection: 1},
		"seen in a bookmark": {Op: event.Bookmark, Slice: 1, Epoch: 8, Mark: &event.Mark{}},
	}
	for name, m := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.start()
				r.api.list()
				r.after(time.Second)
				r.bus.put(m)
				sent := r.bus.tries()
				if err := r.wait(); !errors.Is(err, errLost) {
					t.Errorf("run ended with %v, want %v", err, errLost)
				}
				if r.bus.tries() != sent {
					t.Errorf("%d publications after the kind was lost", r.bus.tries()-sent)
				}
			})
		})
	}
}

func TestNothingIsPublishedWithoutAValidGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.api.list()
		r.after(time.Second)
		gone := errors.New("gone")
		r.grant.lose(gone)
		sent := r.bus.tries()
		r.api.change("a", "1")
		if err := r.wait(); !errors.Is(err, gone) {
			t.Errorf("run ended with %v, want %v", err, gone)
		}
		if r.bus.tries() != sent {
			t.Error("it published without a valid grant")
		}
	})
}

func TestAHistoryThatWentBackIsAskedForTwiceAndThenRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.bus.put(event.Message{Op: event.Put, Key: event.Key{Namespace: "n", Name: "x"}, Version: 5000, Epoch: 3, Projection: 1})
		r.start()
		r.api.pod("a", "1")
		r.api.list()
		if err := r.wait(); !errors.Is(err, protocol.ErrHistory) {
			t.Errorf("run ended with %v, want %v", err, protocol.ErrHistory)
		}
		if r.bus.tries() != 0 || r.api.relists != 1 {
			t.Errorf("%d publications and %d relists, want 0 and 1", r.bus.tries(), r.api.relists)
		}
	})
}

func TestBookmarksStopWithTheWatch(t *testing.T) {
	story(t, nil, func(t *testing.T, r *rig) {
		r.api.list()
		r.after(3 * time.Second)
		if n := len(r.bus.marks()); n < 2*testPartitions {
			t.Errorf("%d bookmarks in 3 s, want one a second and slice", n)
		}
		r.api.set(func() { r.api.alive = false })
		r.after(time.Second)
		n := len(r.bus.marks())
		r.after(5 * time.Second)
		if more := len(r.bus.marks()) - n; more != 0 {
			t.Errorf("%d bookmarks while the watch is dead", more)
		}
		if err := r.owner.status.ready(time.Now()); err == nil || !strings.Contains(err.Error(), "told to be dead") {
			t.Errorf("ready says %v, want the reason", err)
		}
		r.api.list()
		r.after(2 * time.Second)
		if err := r.owner.status.ready(time.Now()); err != nil {
			t.Errorf("ready says %v after the watch came back", err)
		}
	})
}

func TestAFullStreamStopsTheBookmarks(t *testing.T) {
	full := false
	story(t, func(r *rig) {
		r.bus.judge = func(p bus.Publication) (bool, error) {
			if full && p.Message.Op == event.Put {
				return false, bus.ErrFull
			}
			return true, nil
		}
	}, func(t *testing.T, r *rig) {
		r.api.list()
		r.after(2 * time.Second)
		r.bus.mu.Lock()
		full = true
		r.bus.mu.Unlock()
		r.api.change("a", "1")
		r.after(500 * time.Millisecond)
		n, sent := len(r.bus.marks()), r.bus.tries()
		r.after(10 * time.Second)
		if more := len(r.bus.marks()) - n; more != 0 {
			t.Errorf("%d bookmarks while the stream is full", more)
		}
		if tries := r.bus.tries() - sent; tries > 25 {
			t.Errorf("%d tries in 10 s", tries)
		}
		r.bus.mu.Lock()
		full = false
		r.bus.mu.Unlock()
		r.after(6 * time.Second)
		wantLive(t, r, "a@101")
		if len(r.bus.marks()) == n {
			t.Error("no bookmarks after the stream has room again")
		}
	})
}

func TestAnObjectThatIsTooLargeIsMarkedAndStopsNothing(t *testing.T) {
	tests := map[string]func(r *rig){
		"known beforehand": func(r *rig) { r.bus.state.MaxPayload = 8 << 10 },
		"refused by the bus": func(r *rig) {
			r.bus.judge = func(p bus.Publication) (bool, error) {
				if len(p.Message.Body) > 6<<10 {
					return false, bus.ErrTooLarge
				}
				return true, nil
			}
		},
	}
	for name, before := range tests {
		t.Run(name, func(t *testing.T) {
			story(t, before, func(t *testing.T, r *rig) {
				r.api.list()
				r.api.change("big", strings.Repeat("x", 20<<10))
				r.api.change("small", "1")
				r.after(2 * time.Second)
				wantLive(t, r, "big@101 small@102")
				key := event.Key{Namespace: "ns-big", Name: "big"}
				if m, _ := r.bus.Last(t.Context(), testKind, key); m.Op != event.Opaque || m.Body != nil {
					t.Errorf("the stream holds %s with %d bytes, want an empty marker", m.Op, len(m.Body))
				}
				if r.bus.letters[key] == "" {
					t.Error("no dead letter")
				}
				if len(r.bus.marks()) == 0 {
					t.Error("no bookmarks")
				}
				r.api.change("big", "small again")
				r.after(time.Second)
				if m, _ := r.bus.Last(t.Context(), testKind, key); m.Op != event.Put {
					t.Errorf("the stream holds %s, want the object", m.Op)
				}
				if reason, has := r.bus.letters[key]; has {
					t.Errorf("the dead letter %q was not cleared", reason)
				}
			})
		})
	}
}

func TestAWipedStreamIsFilledFromOneList(t *testing.T) {
	story(t, func(r *rig) {
		for i := range 200 {
			r.api.pod(string(rune('a'+i%26))+strings.Repeat("x", i/26), "1")
		}
	}, func(t *testing.T, r *rig) {
		r.api.list()
		r.after(2 * time.Second)
		want := r.bus.live()
		r.bus.reconnect(func(last map[string]event.Message) { clear(last) })
		r.after(5 * time.Second)
		wantLive(t, r, want)
		if r.api.relists == 0 || r.api.gets > fetchLimit {
			t.Errorf("%d lists and %d single reads, want a list and at most %d", r.api.relists, r.api.gets, fetchLimit)
		}
	})
}

func TestAComparisonFindsWhatNobodyTold(t *testing.T) {
	key := event.Key{Namespace: "ns-a", Name: "a"}
	tests := map[string]func(r *rig){
		"after a reconnect": func(r *rig) { r.bus.reconnect(func(map[string]event.Message) {}) },
		"when asked":        func(r *rig) { r.bus.ask("compare", "") },
		"after a gap":       func(r *rig) { r.bus.gap <- struct{}{} },
		"in ten minutes":    func(r *rig) { r.after(11 * time.Minute) },
	}
	for name, trigger := range tests {
		t.Run(name, func(t *testing.T) {
			story(t, func(r *rig) { r.api.pod("a", "1"); r.api.pod("b", "1") }, func(t *testing.T, r *rig) {
				r.api.list()
				r.after(2 * time.Second)
				ghost := event.Message{Kind: testKind, Op: event.Put, Key: event.Key{Namespace: "n", Name: "ghost"}, Seq: 5, UID: "g", Version: 3, Epoch: 6, Projection: 1}
				r.bus.mu.Lock()
				delete(r.bus.last, r.bus.place(key))
				r.bus.last[r.bus.place(ghost.Key)] = ghost // revived: no follower hears of it
				r.bus.mu.Unlock()
				r.after(time.Second)
				trigger(r)
				r.after(3 * time.Second)
				wantLive(t, r, "a@101 b@102")
				if got := valueOf(r.owner.metrics.differences); got != 2+2 {
					t.Errorf("differences = %v, want 2 at the start and 2 now", got)
				}
			})
		})
	}
}

func TestABookmarkIsMadeAtOnceForWhoAsks(t *testing.T) {
	story(t, nil, func(t *testing.T, r *rig) {
		r.api.list()
		r.after(2100 * time.Millisecond)
		count := func() int {
			n := 0
			for _, m := range r.bus.marks() {
				if m.Slice == 2 {
					n++
				}
			}
			return n
		}
		before := count()
		r.bus.ask("mark", "2")
		r.after(5 * time.Millisecond)
		if got := count() - before; got != 1 {
			t.Errorf("%d bookmarks at once, want 1", got)
		}
		for range 1000 {
			r.bus.ask("mark", "2")
			r.after(time.Millisecond)
		}
		if got := count() - before; got > 13 {
			t.Errorf("%d bookmarks for 1000 requests in a second, want about 11", got)
		}
	})
}

// Who asks too soon after another gets one as soon as that is allowed, not when
// the clock says: a replica that has taken over asks for every key.
func TestABookmarkAskedForTooSoonComesAfterTheGap(t *testing.T) {
	story(t, nil, func(t *testing.T, r *rig) {
		r.api.list()
		r.after(2100 * time.Millisecond)
		last := func() event.Message {
			for _, m := range slices.Backward(r.bus.marks()) {
				if m.Slice == 2 {
					return m
				}
			}
			return event.Message{}
		}
		r.bus.ask("mark", "2")
		r.after(5 * time.Millisecond)
		first := last()
		answer := r.bus.ask("mark", "2")
		if want := fmt.Sprintf("%d %d", first.Epoch, first.Mark.Counter); answer != want {
			t.Errorf("the last bookmark is said to be %q, want %q", answer, want)
		}
		r.after(10 * time.Millisecond)
		if now := last(); now.Mark.Counter != first.Mark.Counter {
			t.Error("a second bookmark came within the gap")
		}
		r.after(askedGap + tickFloor + 50*time.Millisecond)
		if now := last(); now.Mark.Counter != first.Mark.Counter+1 {
			t.Errorf("the last bookmark is number %d, want %d", now.Mark.Counter, first.Mark.Counter+1)
		}
	})
}

func TestAKindThatIsNotServedIsWithdrawnUntilItIs(t *testing.T) {
	story(t, func(r *rig) {
		r.bus.put(event.Message{Op: event.Put, Key: event.Key{Namespace: "ns-a", Name: "a"}, UID: "old", Version: 50, Epoch: 6, Projection: 1})
		r.api.absent = true
	}, func(t *testing.T, r *rig) {
		r.after(4 * time.Second)
		wantLive(t, r, "")
		marks := r.bus.marks()
		if len(marks) == 0 || !marks[len(marks)-1].Mark.Absent {
			t.Errorf("%d bookmarks, want ones that say absent", len(marks))
		}
		if err := r.owner.status.ready(time.Now()); err != nil {
			t.Errorf("ready says %v of an absent kind", err)
		}
		r.api.pod("a", "1")
		r.api.list()
		r.after(3 * time.Second)
		wantLive(t, r, "a@101")
		marks = r.bus.marks()
		if marks[len(marks)-1].Mark.Absent {
			t.Error("bookmarks still say absent")
		}
	})
}

func TestDrainingWaitsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.start()
		r.api.list()
		r.after(time.Second)
		r.api.change("a", "1")
		synctest.Wait()
		close(r.grant.draining)
		if err := r.wait(); err != nil {
			t.Errorf("run ended with %v", err)
		}
		wantLive(t, r, "a@101")
		if r.owner.flying != 0 {
			t.Errorf("%d publications without an answer", r.owner.flying)
		}
	})
}
