package rates

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
)

// aheadOf is how many tokens are taken ahead at most, as the time they take to
// flow in. Unit: time. Source: ours; half of what a token lives at least.
const aheadOf = 250 * time.Millisecond

// ErrVoid means that a token was not used in time.
var ErrVoid = errors.New("token is void")

// Bucket is one token bucket of the fleet, as this member uses it. It is safe
// for concurrent use.
type Bucket struct {
	r     *Rates
	scope string
	key   string
	log   *slog.Logger
	kick  chan struct{} // serve looks again

	mu    sync.Mutex
	own   limit
	queue []*waiter
	stock []lot // taken and not handed out, oldest first
	// ahead is how many tokens are taken besides those that somebody waits for.
	ahead int
	// taken is when the bucket was last taken from here, by boot.
	taken time.Duration

	known bool // sight is of something
	sight sight
	since time.Time // of the connection that sight is from
	// doubt: since then the connection was another, so the past may be too.
	doubt bool
	// reread: the leader has to be asked before the next write.
	reread  bool
	problem error
	failed  int // calls in a row
}

// lot is tokens that die together.
type lot struct {
	n     int
	until time.Duration // by boot
}

// waiter is one caller of Take.
type waiter struct{ token chan Token }

func newBucket(r *Rates, scope, key string, own limit) *Bucket {
	r.metrics.zero(scope)
	return &Bucket{
		r: r, scope: scope, key: key, log: r.log.With("scope", scope), own: own,
		kick: make(chan struct{}, 1), reread: true,
	}
}

// Set changes this member's setting. Less holds at once, for the whole fleet;
// more once those who still have less have not taken for half a minute.
func (b *Bucket) Set(rate float64, burst int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.own = limit{rate, float64(burst)}
	b.wake()
}

// Take waits for a token until ctx ends, whose cause it then returns. While NATS
// cannot be reached there is none.
func (b *Bucket) Take(ctx context.Context) (Token, error) {
	begun := time.Now()
	w := b.enter()
	select {
	case t := <-w.token:
		b.r.metrics.waited.WithLabelValues(b.scope).Observe(time.Since(begun).Seconds())
		return t, nil
	case <-ctx.Done():
	}
	b.leave(w)
	b.r.metrics.refusals.WithLabelValues(b.scope, refusedCanceled).Inc()
	err := context.Cause(ctx)
	if why := b.trouble(); why != nil {
		err = fmt.Errorf("%w (%w)", err, why)
	}
	return Token{}, fmt.Errorf("waiting for a token of %s: %w", b.scope, err)
}

// enter puts a caller in line, unless there is a token for it already.
func (b *Bucket) enter() *waiter {
	w := &waiter{token: make(chan Token, 1)}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = append(b.queue, w)
	b.handOut()
	if len(b.queue) == 0 {
		return w
	}
	if b.taken > 0 && b.r.boot()-b.taken < handy { // so soon: the next come as fast
		b.ahead = min(2*b.ahead+1, int(b.own.rate*aheadOf.Seconds()))
	}
	b.wake()
	return w
}

// leave takes a caller out; a token that it has just been given is another's.
func (b *Bucket) leave(w *waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.queue = slices.DeleteFunc(b.queue, func(other *waiter) bool { return other == w })
	select {
	case t := <-w.token:
		b.stock = slices.Insert(b.stock, 0, lot{1, t.until})
		b.handOut()
	default:
	}
}

// handOut gives what is in stock to those who wait longest. b.mu is held.
func (b *Bucket) handOut() {
	b.clear()
	for len(b.queue) > 0 && len(b.stock) > 0 {
		first := &b.stock[0]
		n := min(len(b.queue), first.n)
		for _, w := range b.queue[:n] {
			w.token <- Token{b: b, until: first.until} // it has room for one
		}
		b.queue = slices.Delete(b.queue, 0, n)
		if first.n -= n; first.n == 0 {
			b.stock = slices.Delete(b.stock, 0, 1)
		}
	}
}

// clear throws away tokens that have not long enough to live. b.mu is held.
func (b *Bucket) clear() {
	now := b.r.boot()
	for len(b.stock) > 0 && b.stock[0].until-now < handy {
		b.r.metrics.voided.WithLabelValues(b.scope).Add(float64(b.stock[0].n))
		b.stock = slices.Delete(b.stock, 0, 1)
		b.ahead = 0
	}
}

// wake makes serve look. b.mu is held, or need not be.
func (b *Bucket) wake() {
	select {
	case b.kick <- struct{}{}:
	default:
	}
}

func (b *Bucket) trouble() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.problem
}

// Token is the right to act once, soon.
type Token struct {
	b     *Bucket
	until time.Duration // by the bucket's boot
	with  *Token        // needed besides; nil: none
}

// With is the right to act that needs both tokens.
func (t Token) With(other Token) Token {
	t.with = &other
	return t
}

// lives reports whether the token can still be used, without counting the question.
func (t Token) lives() bool {
	return t.b.r.boot() < t.until && (t.with == nil || t.with.lives())
}

// Valid is asked right before the act; ErrVoid if it is too late for it.
func (t Token) Valid() error {
	if late := t.b.r.boot() - t.until; late >= 0 {
		t.b.r.metrics.refusals.WithLabelValues(t.b.scope, refusedVoid).Inc()
		return fmt.Errorf("using a token of %s: %w: %s too late", t.b.scope, ErrVoid, late)
	}
	if t.with != nil {
		return t.with.Valid()
	}
	return nil
}
