package controller

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Danger is what a side effect may do.
type Danger uint8

const (
	// Harmless: a later run puts it right.
	Harmless Danger = iota + 1
	// Destructive: a node written Unknown, and what is worse.
	Destructive
	// Evicting: a pod deleted or evicted, a NoExecute taint added. It is
	// destructive, and can be paused by itself.
	Evicting
)

func (d Danger) String() string {
	switch d {
	case Evicting:
		return "evicting"
	case Destructive:
		return "destructive"
	default:
		return "harmless"
	}
}

// Cause is the oldest change that woke a key and has not been reconciled since.
type Cause struct {
	// Message is the change, headers only.
	Message event.Message
	// Received is when it came, by the monotonic clock.
	Received time.Time
}

// Partition is one partition that this member has claimed: what a Reconciler
// may look at and whom it asks. It is safe for concurrent use.
type Partition struct {
	c      *Controller
	grant  Grant
	ctx    context.Context    // ends with the claim: that of every Reconcile
	drain  context.CancelFunc // ends what UntilDraining returns
	log    *slog.Logger
	begun  time.Time
	cache  *cache.Cache
	feed   *feed
	ledger *ledger
	// reconciler is set before the first key is taken.
	reconciler Reconciler
	surveyed   time.Time     // when all keys were last looked at; zero: never; loop's
	wake       chan struct{} // something that loop looks at has changed
	mapped     atomic.Bool   // the inputs have been complete once: changes are mapped to keys
	mend       atomic.Bool   // a change could not be mapped: all keys must be looked at
	anew       atomic.Bool   // the role may write again: all keys must be looked at
	ended      atomic.Bool
	reconciles atomic.Uint64
	shadow     *shadow

	mu      sync.Mutex
	taking  bool
	opened  generation
	closed  time.Time // since when keys wait for inputs; zero while they do not
	running int
	idle    chan struct{} // closed when nothing runs; nil unless somebody waits
	parked  map[event.Key]Danger
	echoes  map[object]map[event.Key]struct{}
	paused  map[event.Key]Danger // keys that wait for the end of a pause
	stale   bool                 // keys wait for a fresh input
}

// generation says which complete state of the inputs has been looked at whole.
type generation struct{ own, wide uint64 }

// object names one object of one kind.
type object struct {
	kind event.Kind
	key  event.Key
}

// Number returns the partition's number.
func (p *Partition) Number() int { return p.grant.Index() }

// Epoch returns the epoch of the lease.
func (p *Partition) Epoch() uint64 { return p.grant.Epoch() }

// Member returns the id of this member.
func (p *Partition) Member() string { return p.grant.Member() }

// View calls fn with one consistent look at the partition's inputs and the wide
// ones. fn must not call View or Guard, nor block.
func (p *Partition) View(fn func(r Reader)) { cache.View(fn, p.cache, p.c.wide) }

// Guard is asked before every side effect of key; nil allows it now. Returned
// from Reconcile, its errors make the key wait for what was missing:
// ErrNotHolder, ErrPaused, ErrNotSynced, ErrStale, ErrClock, ErrLiveFirst (decide again on a
// live read, call ReadLive, ask again), ErrShadow.
func (p *Partition) Guard(ctx context.Context, key event.Key, d Danger) error {
	return p.GuardPart(ctx, key, "", d)
}

// GuardPart is Guard for a write of a part of the role, whose mode counts too.
func (p *Partition) GuardPart(ctx context.Context, key event.Key, part string, d Danger) error {
	err := p.guard(ctx, key, part, d)
	if err == nil && p.c.def.Pause != nil {
		if err = p.c.pausedFor(ctx, d); err == nil {
			err = p.guard(ctx, key, part, d) // the look may have taken its time
		}
	}
	if err != nil {
		p.c.metrics.refused(err)
		return fmt.Errorf("guarding a %s write of %s: %w", d, key, err)
	}
	return nil
}

func (p *Partition) guard(ctx context.Context, key event.Key, part string, d Danger) error {
	if p.ended.Load() || p.ctx.Err() != nil {
		return ErrNotHolder
	}
	if err := p.grant.Valid(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotHolder, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if d >= Destructive {
		if _, err := p.c.now(); err != nil {
			return err
		}
	}
	p.mu.Lock()
	err := p.gate(d)
	p.mu.Unlock()
	if err == nil {
		err = p.before(key)
	}
	mode := p.Mode(part)
	switch {
	case err != nil:
		return err
	case mode == ModeOff, mode == "" && part != "": // the role's is known: else nothing is held
		return errOff
	case p.ledger.liveFirst(key):
		return ErrLiveFirst
	case mode == ModeShadow:
		return ErrShadow
	}
	return nil
}

// LiveFirst reports whether what key writes next must be decided on a live read
// ⚠: the first write after the claim, because a predecessor's last writes may
// not be in the stream yet (not for a key first seen later), and after a
// conflict or a write that did not come back. Guard refuses until ReadLive.
func (p *Partition) LiveFirst(key event.Key) bool { return p.ledger.liveFirst(key) }

// ReadLive says that key's caller has read live what it is about to write.
func (p *Partition) ReadLive(key event.Key) { p.ledger.readLive(key) }

// Wrote says what key has written. Its next run waits until the inputs show
// each write, or something later; at most Config.WriteWait, then LiveFirst is
// true. Writes to kinds that are no inputs are not waited for. It is for the
// Reconcile of that key to call.
func (p *Partition) Wrote(key event.Key, w protocol.Write) {
	if p.cache.Has(w.Kind) || p.c.wide.Has(w.Kind) {
		p.ledger.wrote(key, w)
	}
}

// Wake makes key run soon, for a reason that no input shows: a timer of the
// role's own, a token.
func (p *Partition) Wake(key event.Key) { p.c.work.add(p.item(key), live) }

// Changed returns why key runs: the oldest change not reconciled before; false
// where no event did it (after a claim, a retry timer, Result.After).
func (p *Partition) Changed(key event.Key) (Cause, bool) { return p.ledger.cause(key) }

// Shadow reports whether the role only watches.
func (p *Partition) Shadow() bool { return p.c.modes.mode() == ModeShadow }

func newPartition(ctx context.Context, c *Controller, g Grant) *Partition {
	draining, drain := context.WithCancel(ctx)
	p := &Partition{
		c: c, grant: g, ctx: context.WithValue(ctx, drainingKey{}, draining), drain: drain, begun: time.Now(), closed: time.Now(),
		log:    c.log.With("partition", g.Index(), "epoch", g.Epoch()),
		ledger: newLedger(),
		shadow: newShadow(),
		wake:   make(chan struct{}, 1),
		taking: true,
		parked: make(map[event.Key]Danger),
		paused: make(map[event.Key]Danger),
		echoes: make(map[object]map[event.Key]struct{}),
	}
	p.feed = c.newFeed(p.log, c.feedOf(g))
	p.feed.saw = p.ledger.saw
	p.feed.moved = p.look
	scope := protocol.Scope{By: c.def.By, Partition: g.Index(), Partitions: c.bus.Partitions()}
	p.cache = p.feed.fill(scope, c.def.Inputs, p.changed, p.marked)
	p.reconciler = c.def.New(p)
	return p
}

// look makes loop look at the partition.
func (p *Partition) look() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

// kindOf returns the kind of the object that a key names.
func (p *Partition) kindOf(key event.Key) event.Kind {
	if p.c.def.KindOf == nil {
		return p.c.def.Kind
	}
	return p.c.def.KindOf(key)
}

func (p *Partition) item(key event.Key) item { return item{p, key} }
