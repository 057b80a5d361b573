// Package tokenbucket counts what may be spent: a rate, a burst, and how much of
// it is left at an instant. It is the generic cell rate algorithm (GCRA): a
// bucket is one number, the instant at which it will be full again. It is pure:
// whoever asks says what time it is, on whatever clock it keeps the bucket by,
// and no clock of another has to agree with that.
package tokenbucket

import (
	"math"
	"time"
)

// Limit is a spending limit.
type Limit struct {
	// Rate is how fast the bucket fills. Unit: tokens/s, positive.
	Rate float64
	// Burst is what it holds when full. Unit: tokens, at least 1 to be of use.
	Burst float64
}

// BurstOf is the burst of a limit of which only the rate was set (0): a second's worth,
// and at least 1. A bucket that holds less than what flows in while a token is on its
// way, a quarter of a second, loses some.
func BurstOf(rate float64, burst int) int {
	if burst == 0 {
		return max(1, int(rate))
	}
	return burst
}

// cost is how long n tokens take to flow in, rounded up: what is rounded never
// makes a token.
func (l Limit) cost(n float64) time.Duration {
	ns := math.Ceil(n * float64(time.Second) / l.Rate)
	if !(ns < math.MaxInt64/4) { // also where it is not a number
		return math.MaxInt64 / 4
	}
	return time.Duration(ns)
}

// Bucket is the state of a bucket on one clock. The zero value is full.
type Bucket struct {
	// full is the instant at which it will be full, in GCRA's words the
	// theoretical arrival time; one that has passed means full.
	full time.Duration
}

// Empty returns a bucket without a token at now.
func Empty(l Limit, now time.Duration) Bucket { return Owing(l.cost(l.Burst), now) }

// Owing returns a bucket that will be full after debt. It is how a bucket moves
// to another clock: see Debt.
func Owing(debt, now time.Duration) Bucket { return Bucket{full: now + max(debt, 0)} }

// Debt is how long the bucket takes to be full, 0 if it is.
func (b Bucket) Debt(now time.Duration) time.Duration { return max(0, b.full-now) }

// Tokens is how many whole tokens there are at now.
func (b Bucket) Tokens(l Limit, now time.Duration) int {
	free := l.cost(l.Burst) - b.Debt(now)
	if free <= 0 {
		return 0
	}
	n := int(min(float64(free)*l.Rate/float64(time.Second), l.Burst))
	for n > 0 && l.cost(float64(n)) > free {
		n-- // the division was rounded
	}
	if n < math.MaxInt32 && float64(n+1) <= l.Burst && l.cost(float64(n+1)) <= free {
		n++
	}
	return n
}

// Take takes n tokens at now, all or none.
func (b Bucket) Take(l Limit, n int, now time.Duration) (Bucket, bool) {
	if n < 0 || n > 0 && b.Wait(l, n, now) > 0 {
		return b, false
	}
	return Owing(b.Debt(now)+l.cost(float64(n)), now), true
}

// Wait is how long it takes until n tokens are there if nobody takes any; Never
// if the bucket does not hold as many.
func (b Bucket) Wait(l Limit, n int, now time.Duration) time.Duration {
	ready := b.Ready(l, n)
	if ready == Never {
		return Never
	}
	return max(0, ready-now)
}

// Ready is the instant at which n tokens were or will be there if nobody takes
// any; Never if the bucket does not hold as many.
func (b Bucket) Ready(l Limit, n int) time.Duration {
	cost, room := l.cost(float64(n)), l.cost(l.Burst)
	if cost > room {
		return Never
	}
	return b.full + cost - room
}

// Never is an instant that does not come, and the wait for it.
const Never time.Duration = math.MaxInt64

// Change returns the bucket under another limit. It never holds more tokens than
// under the old one: what has not flowed in has not flowed in.
func (b Bucket) Change(from, to Limit, now time.Duration) Bucket {
	if from == to {
		return b
	}
	missing := float64(b.Debt(now)) * from.Rate / float64(time.Second)
	left := min(max(0, from.Burst-missing), to.Burst)
	return Owing(to.cost(to.Burst-left), now)
}
