package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/clock"
)

// leaseNamespace is where kubelets keep their Leases.
const leaseNamespace = "kube-node-lease"

// beater says once a second, partition by partition, how long each node has not
// beaten, while the kind nodes is held here. All judgement is beat.Ages'; one
// goroutine owns it, and the watches of nodes and Leases only send it what they
// see.
type beater struct {
	grant   grant
	api     server
	bus     stream
	log     *slog.Logger
	metrics *beatMetrics
	status  *beatStatus
	missing func(error)
	// nodes and leases are the two watches; a beat may come by either.
	nodes, leases watch

	inputs  chan func(*beat.Ages)
	results chan func()

	// answered is when the newest question was sent that the API server has
	// answered, by boot; 0: none.
	answered atomic.Int64
	// boot is a clock that counts suspension; a field because testing/synctest
	// cannot replace a system call.
	boot func() time.Duration
	// base is the highest counter that an earlier run of this epoch has used.
	base    uint64
	ages    *beat.Ages
	encoder beat.Encoder
	marks   marks // when which partition is due
	due     []bool
	flying  []bool
	bytes   []int
	// withheld is since when digests are due that must not be made.
	withheld time.Time
	failures int
	done     <-chan struct{}
}

func newBeater(o *owner, of *beats) *beater {
	p := o.bus.Partitions()
	return &beater{
		boot: clock.Boot, grant: o.grant, api: o.api, bus: o.bus, log: o.log, metrics: of.metrics, status: of.status, missing: o.missing,
		inputs: make(chan func(*beat.Ages), backlog), results: make(chan func(), p),
		marks: newMarks(p), due: make([]bool, p), flying: make([]bool, p), bytes: make([]int, p),
	}
}

// adopt starts from what the predecessor knew; o is asked for its patience. A
// digest that cannot be read is as good as none.
func (b *beater) adopt(o *owner) error {
	b.ages = beat.NewAges(len(b.due), b.grant.Epoch(), b.base)
	for slice := range b.due {
		err := o.retried("reading the last digest", func() error {
			body, err := b.bus.LastDigest(o.ctx, slice)
			if err != nil {
				if errors.Is(err, bus.ErrNone) {
					return nil
				}
				return err
			}
			last, err := beat.Decode(body)
			if err != nil {
				b.log.Warn("last digest cannot be read, its nodes start at age 0", "slice", slice, "err", err)
				return nil
			}
			b.ages.Adopt(last)
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// counter is the highest that this run or an earlier one of the epoch has used.
func (b *beater) counter() uint64 {
	if b.ages == nil {
		return b.base
	}
	return max(b.base, b.ages.Counter())
}

// start prepares the second watch and returns what is to run beside the owner's
// loop until ctx ends.
func (b *beater) start(ctx context.Context, o *owner) []func() {
	b.done, b.nodes = ctx.Done(), o.watch
	b.leases = o.api.Watch(heartbeats, leaseNamespace, false, leaseEvents{b})
	return []func(){
		func() { _ = b.leases.Run(ctx) }, // ends with ctx only
		func() { b.ask(ctx) },
		b.loop,
	}
}

const (
	// askEvery is how often the API server is asked whether it works. Unit: time.
	// Source: ours; a few times per answerLife.
	askEvery = 500 * time.Millisecond
	// answerLife is how old the last question may be that was answered, for the
	// proofs of the watches to count. Unit: time. Source: ours; by so much a node
	// may age while the API server hangs.
	answerLife = 1500 * time.Millisecond
)

// ask asks the API server whether it works, until ctx ends. An answered ping shows
// that a connection lives ⚠: the proxy at its other end may answer for a server
// that hangs, and then nobody can beat.
func (b *beater) ask(ctx context.Context) {
	ticker := time.NewTicker(askEvery)
	defer ticker.Stop()
	for {
		sent := b.boot()
		if err := b.api.Answers(ctx); err == nil {
			b.answered.Store(int64(sent))
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

func (b *beater) loop() {
	b.marks.begin(time.Now())
	ticker := time.NewTicker(b.marks.interval())
	defer ticker.Stop()
	for {
		select {
		case <-b.done:
			return
		case f := <-b.inputs:
			f(b.ages)
		case f := <-b.results:
			f()
		case now := <-ticker.C:
			b.takeWaiting()
			b.tick(now)
		}
	}
}

// takeWaiting takes what had come before a tick: a beat that waits here is no
// silence.
func (b *beater) takeWaiting() {
	for range backlog {
		select {
		case f := <-b.inputs:
			f(b.ages)
		default:
			return
		}
	}
}

func (b *beater) tick(now time.Time) {
	boot := b.boot()
	proof, why := b.proof(now, boot)
	b.ages.Tick(boot, proof)
	from, n := b.marks.due(now)
	for i := range n {
		b.due[(from+i)%len(b.due)] = true
	}
	for slice := range b.due {
		if b.due[slice] && !b.flying[slice] && b.grant.Valid() == nil {
			b.publish(now, boot, slice, &why)
		}
	}
	if b.marks.second(now) {
		b.report(now, why)
	}
}

// proof is up to when a beat would certainly have been told, by the clock that
// counts suspension; 0 and the reason while a watch is not known to live. Both
// have to: a node without a Lease beats by its status.
func (b *beater) proof(now time.Time, boot time.Duration) (time.Duration, string) {
	proof := boot
	for what, w := range map[string]watch{"nodes": b.nodes, "leases": b.leases} {
		if alive, why := w.Alive(now); !alive {
			return 0, fmt.Sprintf("watching %s: %s", what, why)
		}
		last := w.Proof()
		if last.IsZero() {
			return 0, fmt.Sprintf("watching %s: no proof of life", what)
		}
		proof = min(proof, boot-time.Since(last))
	}
	switch answered := time.Duration(b.answered.Load()); {
	case answered == 0:
		return 0, "the API server has not answered yet"
	case boot-answered > answerLife:
		return min(proof, answered), fmt.Sprintf("the API server has not answered for %s", (boot - answered).Truncate(time.Second))
	}
	return proof, ""
}

// publish makes and sends the digest of a partition. One that may not be made yet
// stays due: the next proof may be milliseconds away.
func (b *beater) publish(now time.Time, boot time.Duration, slice int, why *string) {
	digest, ok := b.ages.Digest(slice, boot)
	if !ok {
		if b.withheld.IsZero() {
			b.withheld = now
		}
		if *why == "" {
			*why = "the watches prove nothing new"
		}
		return
	}
	b.due[slice], b.withheld = false, time.Time{}
	body, err := b.encoder.Encode(digest)
	if err != nil {
		b.failed(err)
		return
	}
	b.flying[slice] = true
	b.bus.PublishDigest(slice, body, func(_ uint64, err error) {
		b.results <- func() { // there is room for one of each partition
			b.flying[slice] = false
			if err != nil {
				b.failed(err)
				return
			}
			b.failures = 0
			b.bytes[slice] = len(body)
			b.marks.acked[slice] = time.Now()
			b.metrics.published.Inc()
		}
	})
}

// failed counts a digest that the bus did not take. It is not sent again: the
// next second's says more.
func (b *beater) failed(err error) {
	if b.failures++; b.failures == 1 {
		b.log.Warn("cannot publish heartbeat digests, trying on", "err", err)
	}
	b.metrics.failed.Inc()
	b.status.stumbled(err)
	b.missing(err)
}

// send hands f to the loop and waits for room, or for the end.
func (b *beater) send(f func(*beat.Ages)) {
	select {
	case b.inputs <- f:
	case <-b.done:
	}
}

// report shows how the beats do; it is called once a second.
func (b *beater) report(now time.Time, why string) {
	largest := 0
	for _, n := range b.bytes {
		largest = max(largest, n)
	}
	nodes, oldest := b.ages.Count(), b.ages.Oldest()
	if b.withheld.IsZero() || now.Sub(b.withheld) < time.Second {
		why = ""
	} else {
		b.metrics.withheld.Inc()
	}
	b.metrics.nodes.Set(float64(nodes))
	b.metrics.oldest.Set(oldest.Seconds())
	b.metrics.bytes.Set(float64(largest))
	b.status.say(nodes, oldest, largest, b.marks.oldest(), why)
}
