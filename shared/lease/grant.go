package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/shared/backoff"
)

var (
	// ErrLost means that the unit is, or may be, another member's.
	ErrLost = errors.New("lease is lost")
	// ErrReleased means that the unit has been given up on purpose.
	ErrReleased = errors.New("lease is released")
	// ErrExpired means that the member's lease may have run out for others.
	ErrExpired = errors.New("lease may have run out")
	// ErrCutOff means that the connection has been down for so long that others
	// may have found this member dead.
	ErrCutOff = errors.New("connection is down")
)

// Grant is the right to work on one unit, for as long as it lasts.
type Grant struct {
	t        *tenure
	unit     string
	epoch    uint64
	ctx      context.Context // the life of the grant
	cancel   context.CancelCauseFunc
	draining chan struct{}
	drain    sync.Once
	done     chan struct{} // closed when hold has returned for good and the lease is given up
	ended    atomic.Bool
}

// Unit returns the unit as Config.Units names it.
func (g *Grant) Unit() string { return g.unit }

// Index returns the unit's place in Config.Units.
func (g *Grant) Index() int { return g.t.lease.index[g.unit] }

// Epoch grows with every new holder of the unit and never repeats.
func (g *Grant) Epoch() uint64 { return g.epoch }

// Member returns the id of the member that holds the unit.
func (g *Grant) Member() string { return g.t.id }

// Draining is closed when the unit is to be given up on purpose: finish what is
// in hand and return from hold; then the lease is released.
func (g *Grant) Draining() <-chan struct{} { return g.draining }

// Valid is asked before every side effect. It returns nil while no other member
// can have come by the unit: the last renewal was sent less than a TTL minus a
// margin ago, by a clock that counts suspension, and the connection is up, or
// has been down for less than others need to find a member dead.
func (g *Grant) Valid() error {
	switch {
	case g.ctx.Err() != nil:
		return fmt.Errorf("checking lease on %s: %w", g.unit, ErrLost)
	case g.ended.Load():
		return fmt.Errorf("checking lease on %s: %w", g.unit, ErrReleased)
	}
	if err := g.t.valid(); err != nil {
		return fmt.Errorf("checking lease on %s: %w", g.unit, err)
	}
	return nil
}

func newGrant(t *tenure, unit string, epoch uint64) *Grant {
	g := &Grant{t: t, unit: unit, epoch: epoch, draining: make(chan struct{}), done: make(chan struct{})}
	g.ctx, g.cancel = context.WithCancelCause(t.ctx)
	return g
}

// live works on the unit, then gives it up unless it was lost.
func (g *Grant) live(before <-chan struct{}) {
	defer close(g.done)
	defer g.cancel(nil)
	g.run(before)
	if g.ctx.Err() == nil {
		g.t.giveUp(g.unit, g.epoch)
	}
	g.t.done(g)
}

// askToDrain closes Draining.
func (g *Grant) askToDrain() { g.drain.Do(func() { close(g.draining) }) }

func (g *Grant) asked() bool {
	select {
	case <-g.draining:
		return true
	case <-g.ctx.Done():
		return true
	default:
		return false
	}
}

// retryPolicy spaces the calls of a hold that returns without being asked to.
var retryPolicy = backoff.Policy{Base: 100 * time.Millisecond, Max: 5 * time.Second}

// run calls hold, again where it returns unasked, until the unit is to be given
// up or lost.
func (g *Grant) run(before <-chan struct{}) {
	if before != nil {
		<-before
	}
	for failures := 0; !g.asked(); {
		begun := time.Now()
		err := g.t.hold(g.ctx, g)
		if g.asked() {
			break
		}
		if failures++; time.Since(begun) > stable {
			failures = 1
		}
		delay := retryPolicy.Delay(failures, g.epoch)
		g.t.log.Warn("hold returned without being asked", "unit", g.unit, "epoch", g.epoch, "err", err, "retry", delay)
		g.wait(delay)
	}
	g.ended.Store(true)
}

func (g *Grant) wait(d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-g.draining:
	case <-g.ctx.Done():
	case <-timer.C:
	}
}
