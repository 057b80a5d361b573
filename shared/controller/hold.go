package controller

import (
	"context"
	"io"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

const (
	// quiet is how long a feed must have been silent before a bookmark is asked
	// for: the replay has come to its end. Unit: time. Source: ours.
	quiet = 50 * time.Millisecond
	// askEvery is how often it is asked for again. Unit: time. Source:
	// bookmarks come once a second without asking.
	askEvery = time.Second
	// maxAsks is how often in all, per replay. Source: ours; the first finds a
	// quiet stream complete, the second is for a message that overtook it.
	maxAsks = 2
	// lostWait is how long a lost partition waits for keys in hand to notice.
	// Unit: time. Source: ours; a claim of the same partition waits for that.
	lostWait = 5 * time.Second
	// moveWait bounds the last move of the durable position. Unit: time.
	// Source: ours; a release must take milliseconds, and correctness does not
	// rest on it.
	moveWait = time.Second
	// mendWait is how long after a panic in All it is tried again.
	mendWait = 5 * time.Second
)

// hold works on one partition until it is to be handed over or is lost.
func (c *Controller) hold(ctx context.Context, g Grant) error {
	p := newPartition(ctx, c, g)
	c.enter(p)
	c.letters.reload()

	following, stop := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { p.feed.follow(following) })
	drained := p.loop(ctx)
	p.release(ctx, drained)
	stop()
	tasks.Wait()

	c.leave(p)
	c.work.drop(p)
	c.giveBack()
	if closer, ok := p.reconciler.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// giveBackAfter is how long after the last beginning or end of a partition memory
// is given back. Unit: time. Source: a hand-over of many takes a fraction of that.
const giveBackAfter = time.Second

// giveBack returns to the system what replays have left behind, and what
// partitions have held that ended: the first replica of many holds everything
// for a moment, and the runtime alone would keep that for minutes. One collection
// serves all that begin and end together.
func (c *Controller) giveBack() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.giving == nil {
		c.giving = time.AfterFunc(giveBackAfter, debug.FreeOSMemory)
		return
	}
	c.giving.Reset(giveBackAfter)
}

// loop opens the partition whenever its inputs have become complete, and does
// what is due, until the partition is to be handed over (true) or is lost.
func (p *Partition) loop(ctx context.Context) (drained bool) {
	move := time.NewTimer(jittered(p.c.cfg.MoveEvery))
	sweep := time.NewTimer(jittered(p.c.cfg.SweepEvery))
	nudge := time.NewTimer(quiet)
	defer func() { move.Stop(); sweep.Stop(); nudge.Stop() }()
	mover, asks := mover{p: p}, asks{p: p}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-p.grant.Draining():
			return true
		case <-p.wake:
			nudge.Reset(p.open(quiet))
		case <-nudge.C:
			asks.nudge()
			if wait := p.open(quiet); wait > 0 {
				nudge.Reset(wait)
			}
		case <-move.C:
			mover.move(ctx)
			move.Reset(jittered(p.c.cfg.MoveEvery))
		case <-sweep.C:
			p.feed.readAgain(replaySweep)
			sweep.Reset(jittered(p.c.cfg.SweepEvery))
		}
	}
}

// open looks at every key once, if the inputs have become complete since that
// was last done. It returns when to look again; while the inputs are complete,
// nothing is to be looked at until wake says so.
func (p *Partition) open(soon time.Duration) time.Duration {
	const never = 24 * time.Hour
	at, complete := p.complete()
	if !complete {
		p.close()
		return soon
	}
	opened := p.isOpen(at)
	if opened && !p.anew.Load() {
		if !p.mend.Load() {
			return never
		}
		if left := mendWait - time.Since(p.surveyed); left > 0 {
			return left
		}
	}
	p.mend.Store(false)
	anew := p.anew.Swap(false)
	p.mapped.Store(true) // before All: what changes from now on is mapped
	keys, err := p.all()
	if err != nil {
		p.log.Error("naming all keys panicked", "err", err)
		p.anew.Store(true) // whatever it was for is still to be done
		return mendWait
	}
	first := p.surveyed.IsZero()
	p.surveyed = time.Now()
	// After a replay the next write of each key is decided on a live read ⚠: what
	// the others wrote may be on its way, and the bookmark that proved an input
	// complete may be of any age, before what another input shows already.
	p.ledger.wakeAll(keys, anew || !opened)
	for key := range p.openAt(at) {
		p.c.work.add(p.item(key), live)
	}
	for _, key := range keys {
		p.c.work.add(p.item(key), sweep)
	}
	if first {
		p.c.giveBack()
	}
	p.log.Info("partition is complete", "keys", len(keys), "seconds", time.Since(p.begun).Seconds(), "first", first)
	return never
}

func (p *Partition) isOpen(at generation) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.opened == at
}

// close notes since when the inputs are incomplete.
func (p *Partition) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed.IsZero() {
		p.closed = time.Now()
	}
}

// openAt lets keys be taken and returns those that were parked until then.
func (p *Partition) openAt(at generation) (parked map[event.Key]Danger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.opened, p.closed = at, time.Time{}
	parked, p.parked = p.parked, make(map[event.Key]Danger)
	return parked
}

// release takes no more keys, waits for those in hand, and moves the durable
// position if the partition is still ours.
func (p *Partition) release(ctx context.Context, drained bool) {
	idle := p.stop()
	if drained {
		select {
		case <-idle:
			bounded, cancel := context.WithTimeout(ctx, moveWait)
			defer cancel()
			(&mover{p: p}).move(bounded)
			p.ended.Store(true)
			return
		case <-ctx.Done():
		}
	}
	p.ended.Store(true)
	p.log.Info("partition is lost")
	select {
	case <-idle:
	case <-time.After(lostWait):
		p.log.Warn("keys in hand do not notice that their partition is lost")
	}
}

// mover moves the durable position.
type mover struct {
	p    *Partition
	last uint64
}

func (m *mover) move(ctx context.Context) {
	seq, known := m.p.ledger.lowest()
	if !known || seq == m.last || m.p.grant.Valid() != nil {
		return
	}
	if err := m.p.c.bus.MoveDurable(ctx, m.p.c.def.Role, m.p.Number(), seq); err != nil {
		m.p.log.Debug("durable position was not moved", "seq", seq, "err", err)
		return
	}
	m.last = seq
}

// asks asks watchers for a bookmark when a replay has come to its end and none
// has proved it complete. What does not help is not asked for again: bookmarks
// come by themselves, and drift is counted in bookmarks.
type asks struct {
	p     *Partition
	seq   uint64
	count int
	asked time.Time
}

func (a *asks) nudge() {
	seq := a.p.cache.Seq()
	if seq < a.seq {
		a.count = 0 // a new replay
	}
	still := seq == a.seq
	a.seq = seq
	if !still || a.count >= maxAsks || time.Since(a.asked) < askEvery {
		return
	}
	a.count++
	a.asked = time.Now()
	for _, st := range a.p.cache.Status() {
		if !st.Synced {
			a.p.c.asker.mark(st.Kind, a.p.Number())
		}
	}
}

// jittered spreads d by a quarter to either side.
func jittered(d time.Duration) time.Duration {
	return d*3/4 + rand.N(d/2+1) //nolint:gosec // spreading, not secrecy
}
