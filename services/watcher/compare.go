package watcher

import (
	"math/rand/v2"
	"time"

	"github.com/millrace-io/millrace/shared/protocol"
)

// Why the stream is compared with the records, as label values.
const (
	reasonStart     = "start"     // the first list
	reasonRelist    = "relist"    // every further list, the hourly one too
	reasonReconnect = "reconnect" // another connection, perhaps another server
	reasonGap       = "gap"       // the follower lost its place
	reasonAsked     = "asked"     // a reader's sums do not agree
	reasonPeriodic  = "periodic"
)

var reasons = []string{reasonStart, reasonRelist, reasonReconnect, reasonGap, reasonAsked, reasonPeriodic}

const (
	// comparePeriod is how often the stream is compared without a reason, and
	// relistPeriod how often with a list. Unit: time. Source: architecture
	// section 4. Both are spread by a tenth.
	comparePeriod = 10 * time.Minute
	relistPeriod  = time.Hour
	// compareGap is the least time between two comparisons. Unit: time. A reason
	// that comes earlier waits for the next second's tick.
	compareGap = time.Second
)

// compares is when to compare next.
type compares struct {
	running bool
	// waiting is a reason that came too early; empty for none.
	waiting  string
	failures int
	earliest time.Time
	next     time.Time
	relist   time.Time
}

func (c *compares) begin(now time.Time) {
	c.next, c.relist = now.Add(spread(comparePeriod)), now.Add(spread(relistPeriod))
}

// spread keeps many kinds and watchers from doing the same at the same time.
func spread(d time.Duration) time.Duration {
	return d - d/20 + rand.N(d/10) //nolint:gosec // spreading, not secrecy
}

// compareWhenDue is called once a second.
func (o *owner) compareWhenDue(now time.Time) {
	c := &o.compares
	if now.After(c.relist) {
		c.relist = now.Add(spread(relistPeriod))
		o.watch.Relist()
	}
	switch {
	case c.running || !o.listed || now.Before(c.earliest):
	case c.waiting != "":
		o.compare(c.waiting)
	case now.After(c.next):
		o.compare(reasonPeriodic)
	}
}

// compare takes a snapshot of the stream's headers and puts right what differs
// from the records. One at a time: a reason that comes meanwhile asks for
// another, because it may speak of what came after the snapshot began.
func (o *owner) compare(reason string) {
	c := &o.compares
	now := time.Now()
	if c.running || !o.listed || now.Before(c.earliest) {
		c.waiting = reason
		return
	}
	c.running, c.waiting = true, ""
	c.earliest = now.Add(compareGap)
	c.next = now.Add(spread(comparePeriod))
	comparison := o.pub.BeginCompare()
	o.tasks.Go(func() {
		err := o.bus.Snapshot(o.ctx, o.kind, comparison.Found)
		o.send(func() { o.compared(reason, comparison, err) })
	})
}

func (o *owner) compared(reason string, comparison *protocol.Comparison, err error) {
	c := &o.compares
	c.running = false
	if err != nil {
		c.failures++
		c.waiting = reason
		c.earliest = time.Now().Add(retryPolicy.Delay(c.failures, o.grant.Epoch()))
		o.log.Debug("comparing again", "reason", reason, "err", err)
		return
	}
	c.failures = 0
	differences := o.pub.EndCompare(comparison)
	o.metrics.compared(reason, differences)
	if differences > 0 {
		o.log.Info("stream differed from what was published", "reason", reason, "differences", differences)
	}
}
