package controller

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// operatorsWord is what is paused, as a test says; a cut API says nothing, as
// shared/role does.
type operatorsWord struct {
	mu        sync.Mutex
	role      bool
	evictions bool
	cut       bool
	expected  int
}

func (o *operatorsWord) say(role, evictions, cut bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.role, o.evictions, o.cut = role, evictions, cut
}

func (o *operatorsWord) Expect(context.Context) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.expected++
}

func (o *operatorsWord) expectations() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.expected
}

func (o *operatorsWord) Paused(_ context.Context, d Danger) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.cut && d >= Destructive:
		return errors.New("the API server does not answer")
	case o.role:
		return errors.New("the role is paused")
	case o.evictions && d == Evicting:
		return errors.New("evictions are paused")
	}
	return nil
}

// 10. What is paused waits, and goes on when it is not any more, without an
// event; evictions alone stop nothing else; with the API server away nothing
// destructive happens.
func TestPausedWritesWait(t *testing.T) {
	dangers := map[string]Danger{"harmless": Harmless, "destructive": Destructive, "evicting": Evicting}
	type says struct{ role, evictions, cut bool }
	for name, tt := range map[string]struct {
		says  says
		waits []string
	}{
		"nothing is paused":         {},
		"the role is paused":        {says{role: true}, []string{"harmless", "destructive", "evicting"}},
		"evictions are paused":      {says{evictions: true}, []string{"evicting"}},
		"the API server is cut off": {says{cut: true}, []string{"destructive", "evicting"}},
	} {
		t.Run(name, func(t *testing.T) {
			word := &operatorsWord{}
			word.say(tt.says.role, tt.says.evictions, tt.says.cut)
			var mu sync.Mutex
			acts := map[string]int{}
			play(t, 1, func(r *rig) {
				r.def.Pause = word
				r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
					p.ReadLive(k)
					if err := p.Guard(ctx, k, dangers[k.Name]); err != nil {
						return Result{}, err
					}
					mu.Lock()
					defer mu.Unlock()
					acts[k.Name]++
					return Result{}, nil
				}
				for k := range dangers {
					r.Put(things, key(k), "x")
				}
			}, func(r *rig) {
				r.lease.Claim(0)
				settle(time.Minute)
				waits := map[string]bool{}
				for _, k := range tt.waits {
					waits[k] = true
				}
				for k := range dangers {
					if got := acts[k] > 0; got == waits[k] {
						r.Errorf("%s acted: %t, paused: %t", k, got, waits[k])
					}
				}
				for k := range waits {
					if s := r.wantState(key(k), StatePaused); s.GetWaitsFor() == "" {
						r.Errorf("%s waits for nothing", k)
					}
				}
				if got := int(r.c.Status().GetPartitions()[0].GetQueued()); got != len(waits) {
					r.Errorf("%d keys wait, want %d", got, len(waits))
				}
				word.say(false, false, false)
				settle(time.Second)
				for k := range dangers {
					if acts[k] != 1 {
						r.Errorf("%s acted %d times once nothing is paused, want once", k, acts[k])
					}
				}
			})
		})
	}
}

// A look that takes long must not let a write out that lost its lease meanwhile.
func TestTheLeaseIsAskedAgainAfterTheLook(t *testing.T) {
	slow := pauseFunc(func(ctx context.Context, _ Danger) error {
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
		return nil
	})
	play(t, 1, func(r *rig) { r.def.Pause = slow }, func(r *rig) {
		g := r.lease.Claim(0)
		settle(5 * time.Second)
		p, answer := r.c.partitions()[0], make(chan error, 1)
		go func() { answer <- p.Guard(context.Background(), key("a"), Harmless) }()
		settle(500 * time.Millisecond)
		g.SetValid(false)
		if err := <-answer; !errors.Is(err, ErrNotHolder) {
			r.Errorf("Guard() = %v, want ErrNotHolder", err)
		}
	})
}

// A change lets the look begin before its key is taken in hand.
func TestAChangeExpectsAWrite(t *testing.T) {
	word := &operatorsWord{}
	play(t, 1, func(r *rig) { r.def.Pause = word }, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		before := word.expectations()
		r.Put(things, key("a"), "x")
		settle(time.Second)
		if word.expectations() == before {
			r.Error("no look was begun")
		}
	})
}

type pauseFunc func(ctx context.Context, d Danger) error

func (f pauseFunc) Expect(context.Context) {}

func (f pauseFunc) Paused(ctx context.Context, d Danger) error { return f(ctx, d) }
