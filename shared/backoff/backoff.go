// Package backoff turns a count of failures into a delay. It is pure: the
// jitter comes from a seed, so a test repeats and two keys that fail together
// do not return together. It keeps no count and no clock.
package backoff

import "time"

// Policy is an exponential backoff. Delays lie in [d/2, d] with
// d = min(Base·2^(failures-1), Max); Max is a bound on the delay itself, jitter
// included.
type Policy struct {
	Base time.Duration
	Max  time.Duration
}

// Default is the retry policy of the frame. Base is that of client-go's
// DefaultTypedControllerRateLimiter (5 ms); Max is ours (30 s, upstream: 1000 s),
// because a suppressed publish means that no event may ever follow.
var Default = Policy{Base: 5 * time.Millisecond, Max: 30 * time.Second}

// Delay returns how long to wait after the given number of failures in a row;
// zero for none. The seed names who waits (a hash of the key, say); the same
// arguments give the same delay. A policy without Base never waits; one without
// Max never grows beyond Base.
func (p Policy) Delay(failures int, seed uint64) time.Duration {
	if failures <= 0 || p.Base <= 0 {
		return 0
	}
	limit := max(p.Base, p.Max)
	if p.Max > 0 {
		limit = p.Max
	}
	d := min(p.Base, limit)
	for i := 1; i < failures && d < limit; i++ {
		if d > limit/2 {
			d = limit
			break
		}
		d *= 2
	}
	half := d / 2
	span := uint64(d-half) + 1                                                      //nolint:gosec // d-half is not negative
	return half + time.Duration(mix(seed+uint64(failures)*0x9e3779b97f4a7c15)%span) //nolint:gosec // below span
}

// Delay is Default.Delay.
func Delay(failures int, seed uint64) time.Duration { return Default.Delay(failures, seed) }

// mix is the finalizer of SplitMix64 (public domain): seeds that differ by one
// give unrelated delays.
func mix(x uint64) uint64 {
	x ^= x >> 30
	x *= 0xbf58476d1ce4e5b9
	x ^= x >> 27
	x *= 0x94d049bb133111eb
	return x ^ x>>31
}
