package rates

import (
	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

// Status is what this member knows of its buckets.
func (r *Rates) Status() []*millracev1.RateStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []*millracev1.RateStatus
	for _, b := range r.order {
		all = append(all, b.status())
	}
	return all
}

func (b *Bucket) status() *millracev1.RateStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := &millracev1.RateStatus{Scope: b.scope, Rate: b.own.rate, Burst: b.own.burst, Waiting: uint64(len(b.queue))}
	_, up := b.r.wire.Connected()
	switch {
	case !up:
		s.Problem = errAway.Error()
	case b.problem != nil:
		s.Problem = b.problem.Error()
	}
	if !b.known || b.sight.rev == 0 {
		return s
	}
	now := slow(b.r.boot())
	force := b.sight.force(b.own, now)
	s.Rate, s.Burst = force.rate, force.burst
	s.Spent, s.Taker = b.sight.account.spent, b.sight.account.taker
	if s.Problem == "" {
		s.Tokens = uint64(b.sight.bucket(force, now).Tokens(force.bucket(), now)) //nolint:gosec // not negative
	}
	return s
}
