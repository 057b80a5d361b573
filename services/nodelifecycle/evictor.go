package nodelifecycle

import (
	"context"
	"errors"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/rates"
)

// bucket is the fleet-wide bucket of one zone; *rates.Bucket.
type bucket interface {
	Set(rate float64, burst int)
	Take(ctx context.Context) (rates.Token, error)
}

// bucketsOf makes the bucket of a zone under a rate in nodes per second.
func bucketsOf(r *rates.Rates) func(zone string, rate float64) bucket {
	return func(zone string, rate float64) bucket { return r.Bucket("zone:"+nameOf(zone), rate, evictBurst) }
}

// evictBurst is how many nodes of a zone may be tainted at once. Unit: nodes.
// Source: contract 1, section 2.
const evictBurst = 1

// evictor holds the sick nodes of this process's partitions that wait for a token
// of their zone, and wakes one of them, that which has been sick longest, with
// each token.
//
// No token is asked for a node before it has been seen sick for a period, and as
// long as more nodes fall sick ⚠: when all fall silent together, that has to be
// known before the first is tainted. It waits so for a grace period at most.
type evictor struct {
	lines   *rates.Lines[candidate]
	policy  *policy
	buckets func(zone string, rate float64) bucket
	census  *registrar
}

// candidate is one sick node of one partition.
type candidate struct {
	p   held
	key event.Key
}

func newEvictor(ctx context.Context, p *policy, buckets func(zone string, rate float64) bucket, c *registrar) *evictor {
	c.period = p.NodeMonitorPeriod
	e := &evictor{policy: p, buckets: buckets, census: c}
	e.lines = rates.NewLines(ctx, rates.Rules[candidate]{
		Wait: e.wait, Take: e.take, Wake: func(c candidate) { c.p.Wake(c.key) },
	})
	return e
}

// want puts a node in its zone's line, and nowhere else.
func (e *evictor) want(p held, key event.Key, zone string, sick time.Time) {
	e.lines.Want(candidate{p, key}, zone, sick)
}

// forget takes a node out of the line, and a token that it has not used.
func (e *evictor) forget(p held, key event.Key) { e.lines.Forget(candidate{p, key}) }

// leave takes all nodes of a partition out.
func (e *evictor) leave(p held) { e.lines.Leave(func(c candidate) bool { return c.p == p }) }

// claim returns the token with which a node was woken, if that can still be used; it
// is the caller's then.
func (e *evictor) claim(p held, key event.Key) (rates.Token, bool) {
	return e.lines.Claim(candidate{p, key})
}

// place says where a node stands, for people; waiting is 0 for one in no line.
func (e *evictor) place(p held, key event.Key) (zone string, ahead, waiting int) {
	return e.lines.Place(candidate{p, key})
}

// wait returns for how long yet nobody of a zone may be tainted.
func (e *evictor) wait(zone string, first candidate, sick time.Time) time.Duration {
	now := time.Now()
	period := e.policy.NodeMonitorPeriod
	e.census.take(first.p)
	quiet := e.census.quiet(e.policy.NodeMonitorGracePeriod)
	if wait := max(0, sick.Add(period).Sub(now), quiet.Sub(now)); wait > 0 {
		return min(wait, soon)
	}
	if e.rate(zone, first) <= 0 {
		return soon
	}
	return 0
}

func (e *evictor) rate(zone string, first candidate) float64 {
	return e.census.take(first.p).rate(zone, e.policy)
}

// take waits for a token of a zone, at the rate at which it may be tainted now.
func (e *evictor) take(ctx context.Context, zone string, first candidate) (rates.Token, error) {
	rate := e.rate(zone, first)
	if rate <= 0 {
		return rates.Token{}, errNoRate
	}
	return e.buckets(zone, rate).Take(ctx)
}

// errNoRate: since it was asked, the zone may not be tainted any more.
var errNoRate = errors.New("the zone may not be tainted")
