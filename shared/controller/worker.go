package controller

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/millrace-io/millrace/shared/backoff"
	"github.com/millrace-io/millrace/shared/event"
)

// patience is how long a key waits that needs an event to go on, before it is
// looked at without one. Unit: time. Source: ours; the longest backoff.
const patience = 30 * time.Second

// holderWait is how long a key waits whose partition may not be ours any more, give or
// take a quarter. Unit: time. Source: ours; nobody is asked meanwhile.
const holderWait = time.Second

// clockWait is how long a key waits that needs the cluster's time. Unit: time.
// Source: ours; any answer of the API server tells it.
const clockWait = time.Second

// worker works keys off until the queue is closed.
func (c *Controller) worker() {
	for {
		i, closed := c.work.get()
		if closed {
			return
		}
		if i.p.admit(i.key) {
			i.p.run(i.key)
			i.p.leave()
		}
		c.work.done(i)
	}
}

// run reconciles one key and settles what becomes of it.
func (p *Partition) run(key event.Key) {
	begun := time.Now()
	cause := p.ledger.take(key)
	if cause != nil {
		p.c.metrics.age(*cause, begun)
	}
	p.shadow.begin(key)
	ctx, span := p.traced(p.ctx, key, cause, begun)
	result, err := p.reconcile(ctx, key)
	told(span, err)
	p.c.metrics.seconds.Observe(time.Since(begun).Seconds())
	p.reconciles.Add(1)
	p.settle(key, result, err)
}

func (p *Partition) reconcile(ctx context.Context, key event.Key) (result Result, err error) {
	defer p.c.contain(&err)
	return p.reconciler.Reconcile(ctx, key)
}

// settle says what becomes of a key, by the result of its run. This switch is
// the only place that does.
func (p *Partition) settle(key event.Key, result Result, err error) {
	if err == nil {
		p.shadow.settle(key, false)
		p.done(key, result, resultOK)
		if kind := p.kindOf(key); !p.cache.Opaque(kind, key) { // then the letter is about that
			p.c.letters.clear(kind, key)
		}
		return
	}
	p.ledger.failedWith(key, err)
	if panicked, ok := errors.AsType[*panicError](err); ok {
		p.log.Error("reconcile panicked", "key", key, "panic", panicked.value, "stack", string(panicked.stack))
		p.again(key, resultPanic)
		return
	}
	class := Classify(err, p.c.def.Classify)
	if class != Shadow {
		p.shadow.failed(key)
	}
	switch class {
	case Conflict:
		p.c.metrics.conflicts.Inc()
		p.ledger.mustReadLive(key)
		p.conflicted(key)
	case Gone:
		p.c.count(classes[class])
		p.ledger.mustReadLive(key)
		p.pause(key)
	case Final:
		p.log.Error("key cannot be processed", "key", key, "err", err)
		p.c.letters.write(p.kindOf(key), key, err.Error(), p.Member())
		p.done(key, Result{}, classes[class])
	case NotHolder:
		p.c.count(classes[class])
		if p.ended.Load() || p.ctx.Err() != nil {
			p.ledger.back(key)
			return
		}
		p.ledger.back(key) // it has not failed: the lease may hold again at any moment
		p.c.work.addAfter(p.item(key), jittered(holderWait))
	case Waiting:
		p.c.count(classes[class])
		p.await(key, err)
	case Shadow:
		p.shadow.settle(key, true)
		p.done(key, result, classes[class])
	default:
		p.log.Debug("reconcile failed", "key", key, "err", err)
		p.again(key, classes[Retry])
	}
}

// done: key is as it should be, or waits for its next event.
func (p *Partition) done(key event.Key, result Result, as string) {
	p.c.count(as)
	p.ledger.done(key)
	if result.After > 0 {
		p.c.work.addAfter(p.item(key), result.After)
	}
}

// again: key failed and is tried again, for as long as it takes.
func (p *Partition) again(key event.Key, as string) {
	p.c.count(as)
	p.retry(key, p.ledger.failed(key))
}

// conflicted: the first conflict is answered at once, on a live read; what
// conflicts again backs off.
func (p *Partition) conflicted(key event.Key) {
	p.c.count(classes[Conflict])
	if n := p.ledger.failed(key); n > 1 {
		p.retry(key, n-1)
		return
	}
	p.c.work.retry(p.item(key))
}

func (p *Partition) retry(key event.Key, failures int) {
	p.c.work.addAfter(p.item(key), backoff.Delay(failures, p.seed(key)))
}

// seed spreads the retries of keys that failed together.
func (p *Partition) seed(key event.Key) uint64 { return maphash.Comparable(p.c.seed, key) }

// pause: only an event can help; should it have been missed, a live read will.
func (p *Partition) pause(key event.Key) {
	p.ledger.back(key)
	p.c.work.addAfter(p.item(key), patience)
}

// await: key waits for the input that Guard found missing, or for whatever the
// role waits for.
func (p *Partition) await(key event.Key, err error) {
	p.ledger.back(key)
	if paused, ok := errors.AsType[*PausedError](err); ok {
		p.hush(key, paused.Danger)
		return
	}
	stale, isStale := errors.AsType[*StaleError](err)
	if errors.Is(err, ErrClock) {
		p.c.work.addAfter(p.item(key), clockWait)
		return
	}
	if !isStale && !errors.Is(err, ErrNotSynced) {
		p.c.work.addAfter(p.item(key), patience)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if isStale {
		p.park(key, stale.Danger, stale)
	} else {
		p.parked[key] = Harmless
	}
}
