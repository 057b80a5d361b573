package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

func (r *rig) moves() []uint64 {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return slices.Clone(r.Moves[0])
}

// 6.3. The durable position follows the lowest sequence that is not reconciled,
// about every 16 s and at release.
func TestTheDurablePositionIsMoved(t *testing.T) {
	play(t, 1, func(r *rig) {
		mirror := r.reconcile
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			if r.isFailing() && k == key("a") {
				return Result{}, errors.New("not yet")
			}
			return mirror(ctx, p, k)
		}
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		g := r.lease.Claim(0)
		settle(11 * time.Second)
		if got := r.moves(); len(got) != 0 {
			r.Errorf("moved to %v within 12 s", got)
		}
		settle(10 * time.Second)
		if got := r.moves(); len(got) != 1 {
			r.Errorf("moved to %v within 21 s, want one move", got)
		}
		r.fail(true)
		stuck := r.Seq() + 1
		r.Put(things, key("a"), "y")
		r.Put(things, key("b"), "x")
		settle(5 * time.Minute)
		if got := r.moves(); got[len(got)-1] != stuck {
			r.Errorf("position %d, want %d, where a is stuck", got[len(got)-1], stuck)
		}
		r.fail(false)
		settle(31 * time.Second)
		g.Drain()
		if got := r.moves(); got[len(got)-1] < r.Seq()-6 {
			r.Errorf("position %d at release, the stream ends at %d", got[len(got)-1], r.Seq())
		}
	})
}

// 5. Planned hand-over: no new keys, those in hand are finished, milliseconds.
func TestDrainFinishesTheKeysInHand(t *testing.T) {
	finished := 0
	play(t, 1, func(r *rig) {
		r.cfg.Workers = 2
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			time.Sleep(time.Second)
			if err := p.Guard(ctx, k, Harmless); err != nil && !errors.Is(err, ErrLiveFirst) {
				r.Errorf("Guard of a key in hand: %v", err)
			}
			r.mu.Lock()
			finished++
			r.mu.Unlock()
			return Result{}, nil
		}
		for i := range 20 {
			r.Put(things, key(fmt.Sprint("k", i)), "x")
		}
	}, func(r *rig) {
		g := r.lease.Claim(0)
		settle(2500 * time.Millisecond)
		r.mu.Lock()
		before := finished
		r.mu.Unlock()
		begun := time.Now()
		g.Drain()
		if took := time.Since(begun); took > time.Second {
			r.Errorf("the hand-over took %s", took)
		}
		settle(time.Minute)
		if finished != before+2 {
			r.Errorf("%d keys were finished after Drain, want the 2 in hand", finished-before)
		}
		if n := r.c.work.queue.Len(); n != 0 {
			r.Errorf("%d keys of the old claim wait", n)
		}
	})
}

// 5. Loss: what is in hand is told at once, the rest is dropped, and a new claim
// starts afresh.
func TestLossDropsEverythingNow(t *testing.T) {
	cancelled := 0
	play(t, 1, func(r *rig) {
		r.reconcile = func(ctx context.Context, _ *Partition, _ event.Key) (Result, error) {
			select {
			case <-ctx.Done():
				cancelled++
				return Result{}, ctx.Err()
			case <-time.After(time.Hour):
				return Result{}, nil
			}
		}
		r.cfg.Workers = 1
		r.Put(things, key("a"), "x")
		r.Put(things, key("b"), "x")
	}, func(r *rig) {
		g := r.lease.Claim(0)
		settle(3 * time.Second)
		begun := time.Now()
		g.Lose()
		if took := time.Since(begun); took > 0 {
			r.Errorf("letting go took %s", took)
		}
		if cancelled != 1 {
			r.Errorf("%d keys in hand were told, want 1", cancelled)
		}
		if got := r.moves(); len(got) != 0 {
			r.Errorf("the position was moved to %v without a lease", got)
		}
		r.reconcile = r.mirror
		r.lease.Claim(0)
		settle(5 * time.Second)
		r.wantMirrored()
	})
}

type closingReconciler struct {
	mirror
	closed *bool
}

func (c *closingReconciler) Close() error { *c.closed = true; return nil }

func TestAReconcilerThatIsACloserIsClosed(t *testing.T) {
	closed := false
	play(t, 1, func(r *rig) {
		r.def.New = func(p *Partition) Reconciler { return &closingReconciler{mirror{r, p}, &closed} }
	}, func(r *rig) {
		r.lease.Claim(0).Drain()
		if !closed {
			r.Error("not closed")
		}
	})
}

// I8. A claim on a quiet stream is complete in a fraction of a second: a
// bookmark is asked for at once.
func TestAClaimAsksForABookmark(t *testing.T) {
	play(t, 1, func(r *rig) { r.Put(things, key("a"), "x") }, func(r *rig) {
		settle(3100 * time.Millisecond) // between two bookmarks
		r.Put(things, key("a"), "y")    // superseded: the last one tells of more than comes before it
		r.lease.Claim(0)
		settle(250 * time.Millisecond)
		r.wantMirrored()
	})
}

// Two claims in one process share the workers and nothing else.
func TestStatusTellsWhatIsHeld(t *testing.T) {
	play(t, 2, func(r *rig) { r.Put(things, key("a"), "x") }, func(r *rig) {
		r.lease.Claim(0)
		r.lease.Claim(1)
		settle(5 * time.Second)
		s := r.c.Status()
		if len(s.GetPartitions()) != 2 || len(s.GetKinds()) != 3 || len(s.GetNotReady()) != 0 {
			r.Fatalf("status %v", s)
		}
		var objects, reconciles uint64
		for _, p := range s.GetPartitions() {
			objects += p.GetObjects()
			reconciles += p.GetReconciles()
			if !p.GetSynced() || p.GetQueued() != 0 {
				r.Errorf("partition %v", p)
			}
		}
		if objects != 2 || reconciles == 0 {
			r.Errorf("%d objects and %d reconciles, want 2 and some", objects, reconciles)
		}
		if r.value("millrace_controller_partitions_complete") != 2 {
			r.Error("partitions_complete is not 2")
		}
		if age := r.value("millrace_controller_freshness_seconds", "kind=things"); age > 1 {
			r.Errorf("things are %v s old", age)
		}
	})
}

// 6.1, 6.2. Complete is not enough: until all keys have been named, it is not
// known which of them need a live read.
func TestNoKeyIsDecidedBeforeAllKeysHaveBeenNamed(t *testing.T) {
	r := newRig(t, 1)
	r.def.Wide = nil
	var err error
	if r.c, err = New(r.cfg, r.def, r.World, nil, nil); err != nil {
		t.Fatal(err)
	}
	defer r.c.work.close()
	p := newPartition(t.Context(), r.c, &benchGrant{})
	p.feed.Begin(1)
	for i, kind := range []event.Kind{things, outs} {
		p.feed.Deliver(event.Message{Kind: kind, Op: event.Bookmark, Seq: uint64(i + 1), Projection: 1, Mark: &event.Mark{}})
	}
	if _, complete := p.complete(); !complete {
		t.Fatal("the inputs are not complete")
	}
	if err := p.Guard(t.Context(), key("a"), Harmless); !errors.Is(err, ErrNotSynced) {
		t.Errorf("Guard before the keys were named: %v, want ErrNotSynced", err)
	}
	p.open(0)
	if err := p.Guard(t.Context(), key("a"), Harmless); err != nil {
		t.Errorf("Guard after it: %v", err)
	}
}
