package rates

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/millrace-io/millrace/shared/backoff"
	"github.com/millrace-io/millrace/shared/event"
)

const (
	// handy is how long a token must have left to be worth handing out. Unit:
	// time. Source: ours; an act follows in milliseconds.
	handy = 100 * time.Millisecond
	// callWait bounds one read or write of the bucket. Unit: time. Source: what
	// takes longer gives tokens that are dead.
	callWait = second - handy
	// awayPause is how often a connection that is down is looked at. Unit: time.
	awayPause = 50 * time.Millisecond
	// batchOf is how many tokens are waited for at a fast rate, as the time they
	// take to flow in: ten writes a second from all members. Unit: time.
	batchOf = 100 * time.Millisecond
	// courtesyOf is what part of the time its tokens take to flow in who took last
	// lets the others go first, and courtesyMost at most. Source: ours; within
	// it the others have heard of the write.
	courtesyOf   = 50
	courtesyMost = 20 * time.Millisecond
)

// errAway means that there can be no token, because NATS is away.
var errAway = errors.New("NATS is away")

// errElsewhere means that the bucket was taken from over another connection than
// the one it was read from.
var errElsewhere = errors.New("connection has changed")

var failPolicy = backoff.Policy{Base: 20 * time.Millisecond, Max: time.Second}

// serve takes tokens while somebody waits for one, until ctx ends.
func (b *Bucket) serve(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		timer.Reset(b.step(ctx))
		select {
		case <-ctx.Done():
		case <-b.kick:
		case <-timer.C:
		}
	}
}

// idle is how often a bucket looks at itself that nobody wants anything of.
const idle = time.Hour

// slow is the clock by which the bucket fills, see drift.
func slow(boot time.Duration) time.Duration { return boot - boot/drift }

// step does one thing towards the tokens that are waited for and returns when to
// look again.
func (b *Bucket) step(ctx context.Context) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.handOut()
	if len(b.queue) == 0 {
		return idle
	}
	since, up := b.r.wire.Connected()
	if !up {
		b.problem = errAway
		return awayPause
	}
	if !since.Equal(b.since) {
		b.doubt = b.known && !b.since.IsZero()
		b.since, b.reread = since, true
	}
	if b.reread {
		return b.after(b.read(ctx))
	}
	asked := b.r.boot()
	if b.sight.rev == 0 {
		return b.after(b.write(ctx, opened(b.own, b.r.cfg.Taker), 0, asked))
	}
	n, wait := b.affordable(slow(asked))
	if wait > 0 {
		return wait
	}
	a, ok := b.sight.take(b.own, n, slow(asked), b.r.cfg.Taker)
	if !ok { // never: they are affordable
		return time.Millisecond
	}
	return b.after(b.write(ctx, a, n, asked))
}

// after says when to look again after a call. b.mu is held.
func (b *Bucket) after(err error) time.Duration {
	b.problem = err
	if err == nil {
		b.failed = 0
		return 0
	}
	b.failed++
	b.log.Debug("token bucket cannot be used", "err", err)
	return failPolicy.Delay(b.failed, rand.Uint64())
}

// affordable returns how many tokens to take now, or how long to wait for them.
// b.mu is held.
func (b *Bucket) affordable(now time.Duration) (n int, wait time.Duration) {
	force := b.sight.force(b.own, now)
	limit, bucket := force.bucket(), b.sight.bucket(force, now)
	want := len(b.queue)
	// At a fast rate one write is for several; at a slow one, for the next.
	need := min(want, max(1, int(min(limit.Burst, force.rate*batchOf.Seconds()))))
	due := bucket.Ready(limit, need) + b.courtesy(need, force.rate)
	if now < due {
		return 0, due - now + due/drift - now/drift // by a clock that is not slow
	}
	return min(bucket.Tokens(limit, now), want+b.ahead), 0
}

// courtesy is how long after its tokens have come a member takes them: some
// first, who took last later than all others. b.mu is held.
func (b *Bucket) courtesy(need int, rate float64) time.Duration {
	whole := min(courtesyMost, time.Duration(float64(need)/rate*float64(time.Second))/courtesyOf)
	if b.sight.account.taker == b.r.cfg.Taker {
		return whole
	}
	luck := (b.r.seed ^ b.sight.rev) * 0x9e3779b97f4a7c15 >> 40 // 24 bits
	return whole / 2 * time.Duration(luck) >> 24                //nolint:gosec // small
}

// read asks the leader what the bucket holds. b.mu is held, but not meanwhile.
func (b *Bucket) read(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	before, since := b.sight.rev, b.since
	b.mu.Unlock()
	value, rev, err := b.r.store.Get(ctx, b.key)
	b.mu.Lock()
	now := slow(b.r.boot())
	switch absent := errors.Is(err, event.ErrNone); {
	case err != nil && !absent:
		return err
	case absent:
		// Not an instant to count from, since it says nothing of what was there
		// between: whoever finds no bucket makes one. ⚠
		b.known, b.sight, b.reread, b.doubt = true, sight{}, false, b.doubt && !since.Equal(b.since)
		return nil
	}
	b.reread = false
	switch back := rev < before; {
	case b.doubt || back:
		// It may be older than what was taken from since. ⚠
		b.doubt = false
		b.sight = sight{}.after(rev, b.parsed(value).empty(), now)
	case rev > b.sight.rev || !b.known:
		b.sight = b.sight.after(rev, b.parsed(value), now)
	}
	b.known = true
	return nil
}

// write takes n tokens by making a what the bucket holds. They were asked for at
// asked, by boot: from then on they live, and from then on what flows in is
// counted. b.mu is held, but not meanwhile.
func (b *Bucket) write(ctx context.Context, a account, n int, asked time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, callWait)
	defer cancel()
	before, since := b.sight, b.since
	b.mu.Unlock()
	begun := time.Now()
	rev, err := b.r.store.Put(ctx, b.key, a.marshal(), before.rev, 0)
	b.r.metrics.seconds.WithLabelValues(b.scope).Observe(time.Since(begun).Seconds())
	b.r.metrics.writes.WithLabelValues(b.scope, resultOf(err)).Inc()
	now, _ := b.r.wire.Connected()
	b.mu.Lock()
	switch {
	case errors.Is(err, event.ErrRefused):
		b.reread = b.reread || b.sight.rev == before.rev // unless the feed has told
		return nil
	case err != nil:
		// Written or not, nobody has these tokens. ⚠
		b.reread = true
		return err
	case !now.Equal(since):
		return errElsewhere
	}
	if rev >= b.sight.rev {
		b.sight, b.known = before.wrote(rev, a, slow(asked)), true
	}
	b.taken = asked
	b.r.metrics.tokens.WithLabelValues(b.scope).Add(float64(n))
	if n > 0 {
		b.stock = append(b.stock, lot{n, asked + a.limit.life()})
	}
	b.handOut()
	return nil
}

// heard takes what the feed tells.
func (b *Bucket) heard(rev uint64, value []byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.known && rev <= b.sight.rev {
		return
	}
	b.sight, b.known = b.sight.after(rev, b.parsed(value), slow(b.r.boot())), true
	if len(b.queue) > 0 {
		b.wake()
	}
}

// parsed reads what the bucket holds; what cannot be read is an empty one.
func (b *Bucket) parsed(value []byte) account {
	a, err := parse(value)
	if err != nil {
		b.log.Warn("token bucket cannot be read, taken for empty", "err", err)
		return opened(b.own, "")
	}
	return a
}
