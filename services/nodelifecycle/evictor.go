package nodelifecycle

import (
	"context"
	"sync"
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

const (
	// evictBurst is how many nodes of a zone may be tainted at once. Unit: nodes.
	// Source: contract 1, section 2.
	evictBurst = 1
	// takeFor is how long one wait for a token lasts before it is asked again
	// whether, and at which rate, there is anything to be tainted. Unit: time.
	// Source: ours.
	takeFor = 5 * time.Second
)

// evictor holds the sick nodes of this process's partitions that wait for a token
// of their zone, and wakes one of them, that which has been sick longest, with
// each token.
//
// No token is asked for a node before it has been seen sick for a period, and as
// long as more nodes fall sick ⚠: when all fall silent together, that has to be
// known before the first is tainted. It waits so for a grace period at most.
type evictor struct {
	ctx     context.Context //nolint:containedctx // of the lines
	policy  *policy
	buckets func(zone string, rate float64) bucket
	census  *registrar

	mu      sync.Mutex
	lines   map[string]*line
	in      map[candidate]string // the zone in whose line it stands
	granted map[candidate]rates.Token
}

// candidate is one sick node of one partition.
type candidate struct {
	p   held
	key event.Key
}

// line are the candidates of one zone, by when they fell sick.
type line struct {
	zone    string
	waiting map[candidate]time.Time
	kick    chan struct{}
}

func newEvictor(ctx context.Context, p *policy, buckets func(zone string, rate float64) bucket, c *registrar) *evictor {
	c.period = p.NodeMonitorPeriod
	return &evictor{
		ctx: ctx, policy: p, buckets: buckets, census: c,
		lines: make(map[string]*line), in: make(map[candidate]string), granted: make(map[candidate]rates.Token),
	}
}

// want puts a node in its zone's line, and nowhere else.
func (e *evictor) want(p held, key event.Key, zone string, sick time.Time) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := candidate{p, key}
	if in, waits := e.in[c]; waits && in == zone {
		return
	}
	e.remove(c)
	l := e.lines[zone]
	if l == nil {
		l = &line{zone: zone, waiting: make(map[candidate]time.Time), kick: make(chan struct{}, 1)}
		e.lines[zone] = l
		go e.serve(l)
	}
	l.waiting[c], e.in[c] = sick, zone
	l.wake()
}

// forget takes a node out of the line, and a token that it has not used.
func (e *evictor) forget(p held, key event.Key) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := candidate{p, key}
	delete(e.granted, c)
	e.remove(c)
}

// leave takes all nodes of a partition out.
func (e *evictor) leave(p held) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.in {
		if c.p == p {
			e.remove(c)
		}
	}
	for c := range e.granted {
		if c.p == p {
			delete(e.granted, c)
		}
	}
}

// remove takes a node out of its line. e.mu is held.
func (e *evictor) remove(c candidate) {
	if zone, waits := e.in[c]; waits {
		delete(e.lines[zone].waiting, c)
		delete(e.in, c)
	}
}

// claim returns the token with which a node was woken, if that can still be used; it
// is the caller's then.
func (e *evictor) claim(p held, key event.Key) (rates.Token, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := candidate{p, key}
	t, ok := e.granted[c]
	delete(e.granted, c)
	return t, ok && t.Valid() == nil
}

// place says where a node stands, for people; empty: in no line.
func (e *evictor) place(p held, key event.Key) (zone string, ahead, waiting int) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := candidate{p, key}
	zone, waits := e.in[c]
	if !waits {
		return "", 0, 0
	}
	l := e.lines[zone]
	for _, sick := range l.waiting {
		if sick.Before(l.waiting[c]) {
			ahead++
		}
	}
	return zone, ahead, len(l.waiting)
}

func (l *line) wake() {
	select {
	case l.kick <- struct{}{}:
	default:
	}
}

// serve grants the tokens of one zone until the process ends.
func (e *evictor) serve(l *line) {
	for e.ctx.Err() == nil {
		rate, wait := e.ready(l)
		if wait > 0 {
			e.pause(l, wait)
			continue
		}
		if token, ok := e.take(l.zone, rate); ok {
			e.grant(l, token)
		}
	}
}

// ready returns the rate at which the zone may be tainted now; or when to ask
// again.
func (e *evictor) ready(l *line) (rate float64, wait time.Duration) {
	e.mu.Lock()
	defer e.mu.Unlock()
	_, rate, wait = e.first(l, time.Now())
	return rate, wait
}

// first returns the node that has been sick longest and the rate of its zone; or
// when to ask again. e.mu is held.
func (e *evictor) first(l *line, now time.Time) (first candidate, rate float64, wait time.Duration) {
	var since time.Time
	for c, sick := range l.waiting {
		if since.IsZero() || sick.Before(since) {
			first, since = c, sick
		}
	}
	if since.IsZero() {
		return first, 0, time.Hour
	}
	c := e.census.take(first.p)
	period := e.policy.NodeMonitorPeriod
	quiet := e.census.quiet(e.policy.NodeMonitorGracePeriod)
	if wait = max(0, since.Add(period).Sub(now), quiet.Sub(now)); wait > 0 {
		return first, 0, min(wait, soon)
	}
	if rate = c.rate(l.zone, e.policy); rate <= 0 {
		return first, 0, soon
	}
	return first, rate, 0
}

// take waits for a token of a zone.
func (e *evictor) take(zone string, rate float64) (rates.Token, bool) {
	ctx, cancel := context.WithTimeout(e.ctx, takeFor)
	defer cancel()
	token, err := e.buckets(zone, rate).Take(ctx)
	return token, err == nil
}

// grant wakes the first in line with a token; with none there it is void.
func (e *evictor) grant(l *line, token rates.Token) {
	e.mu.Lock()
	first, _, wait := e.first(l, time.Now())
	if wait > 0 {
		e.mu.Unlock()
		return
	}
	e.remove(first)
	e.granted[first] = token
	e.mu.Unlock()
	first.p.Wake(first.key)
}

func (e *evictor) pause(l *line, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-e.ctx.Done():
	case <-l.kick:
	case <-t.C:
	}
}
