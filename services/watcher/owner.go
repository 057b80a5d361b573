package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

const (
	// window is how many publications of one kind may be outstanding. Unit:
	// messages. Source: architecture section 4; more gained nothing (nats.md
	// 5.1).
	window = 256
	// backlog is how many inputs may wait for the loop before the watch and the
	// follower are held back. Unit: inputs.
	backlog = 256
	// drainWait is how long a kind that is given up waits for what it published.
	// Unit: time. Source: answers take under 10 ms; the successor corrects what
	// comes later.
	drainWait = time.Second
)

// errLost ends a run: what we publish would be refused or, worse, believed.
var errLost = errors.New("a message of a higher epoch stands in the stream: the kind is another's")

// body is what the publisher holds of an object until the stream has it.
type body struct {
	bytes               []byte
	observed, committed time.Time
}

// grant is the right to publish one kind; *lease.Grant.
type grant interface {
	Epoch() uint64
	// Valid is nil while nobody else can have the kind.
	Valid() error
	// Draining is closed when the kind is to be given up.
	Draining() <-chan struct{}
}

// owner publishes one kind for as long as its grant lasts. All judgement is the
// publisher's; one goroutine, loop, owns it and everything below. The others
// only send it functions to call.
type owner struct {
	kind         event.Kind
	metadataOnly bool
	tombstones   time.Duration
	grant        grant
	bus          stream
	api          server
	log          *slog.Logger
	metrics      *kindMetrics
	status       *kindStatus
	// missing is told of errors that may mean that the stream is not there.
	missing func(error)

	// inputs come from the watch, the follower and reads, which may be held
	// back. results come from the bus, which may not: it has room for one answer
	// to each message that can be outstanding.
	inputs, results chan func()
	ctx             context.Context //nolint:containedctx // it is the life of one run, and of its tasks
	tasks           sync.WaitGroup
	end             error

	pub    *protocol.Publisher[*body]
	watch  watch
	listed bool
	absent bool
	// doubted: a list was older than the stream; the next one decides.
	doubted  bool
	flying   int
	failures int // publications in a row that the bus did not take

	marks    marks
	compares compares
	fetches  fetches
	beats    *beater // of the kind nodes only
	poisoned map[event.Key]bool
}

func newOwner(k kindOf, g grant, b stream, api server, log *slog.Logger, missing func(error)) *owner {
	p := b.Partitions()
	o := &owner{
		kind: k.kind, metadataOnly: k.metadataOnly, tombstones: k.tombstones, metrics: k.metrics, status: k.status,
		grant: g, bus: b, api: api, missing: missing,
		log:    log.With("kind", string(k.kind), "epoch", g.Epoch()),
		inputs: make(chan func(), backlog), results: make(chan func(), window+p),
		marks:    newMarks(p),
		fetches:  fetches{open: make(map[event.Key]bool)},
		poisoned: make(map[event.Key]bool),
	}
	if k.beats != nil {
		o.beats = newBeater(o, k.beats)
	}
	return o
}

// run publishes until the grant is drained or lost, ctx ends, or something asks
// for a new start. Its tasks have ended when it returns.
func (o *owner) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	o.ctx = ctx
	defer o.tasks.Wait()
	defer cancel()
	o.status.say("reading what the stream holds")
	generation := o.bus.State().Generation
	if err := o.load(); err != nil {
		return err
	}
	if o.pub.Lost() {
		return errLost
	}
	o.status.say("no list yet")
	if o.beats != nil {
		if err := o.beats.adopt(o); err != nil {
			return err
		}
	}
	o.watch = o.api.Watch(o.kind, "", o.metadataOnly, o)
	stop := o.answer()
	defer stop()
	if o.beats != nil {
		for _, task := range o.beats.start(ctx, o) {
			o.tasks.Go(task)
		}
	}
	o.tasks.Go(func() { _ = o.watch.Run(ctx) }) // ends with ctx only
	o.tasks.Go(func() { o.follow(ctx) })
	o.tasks.Go(func() { o.watchLink(ctx, generation) })
	return o.loop()
}

// load tells the publisher what the stream holds, before anything else.
func (o *owner) load() error {
	failures := 0
	return o.retried("reading snapshot", func() error {
		o.pub = protocol.NewPublisher[*body](o.kind, o.bus.Partitions(), o.grant.Epoch(), projection, window)
		clear(o.poisoned)
		err := o.bus.Snapshot(o.ctx, o.kind, func(m event.Message) {
			if m.Op == event.Opaque {
				o.poisoned[m.Key] = true
			}
			o.stored(m)
		})
		if err != nil {
			if failures++; failures%mendAfter == 0 {
				o.mend()
			}
		}
		return err
	})
}

// stored tells the publisher what stands in the stream.
func (o *owner) stored(m event.Message) {
	if m.Op == event.Bookmark {
		o.pub.StoredMark(m)
		return
	}
	o.pub.Stored(m)
}

func (o *owner) loop() error {
	now := time.Now()
	o.marks.begin(now)
	o.compares.begin(now)
	ticker := time.NewTicker(o.marks.interval())
	defer ticker.Stop()
	for {
		select {
		case <-o.ctx.Done():
			return o.ctx.Err()
		case <-o.grant.Draining():
			return o.drain()
		case f := <-o.results:
			f()
		case f := <-o.inputs:
			f()
		case now := <-ticker.C:
			o.tick(now)
		}
		o.takeWaiting()
		if err := o.carryOut(); err != nil {
			return err
		}
	}
}

// takeWaiting takes what has come already: the publisher looks through all keys
// that wait each time it is asked what to do.
func (o *owner) takeWaiting() {
	for range window {
		select {
		case f := <-o.results:
			f()
		case f := <-o.inputs:
			f()
		default:
			return
		}
	}
}

// tick does what is due by the clock.
func (o *owner) tick(now time.Time) {
	if o.marks.second(now) {
		o.lookForAbsence()
		o.compareWhenDue(now)
		o.report(now)
	}
	o.markWanted(now)
	o.markWhenDue(now)
}

// lookForAbsence withdraws a kind that the API server does not serve, until it
// can be listed again.
func (o *owner) lookForAbsence() {
	if o.absent || !o.watch.Absent() {
		return
	}
	o.log.Info("kind is not served, withdrawing it")
	o.absent, o.listed = true, true
	o.pub.SetAbsent(0)
}

// drain waits for what is outstanding and publishes nothing more.
func (o *owner) drain() error {
	timer := time.NewTimer(drainWait)
	defer timer.Stop()
	for o.flying > 0 {
		select {
		case f := <-o.results:
			f()
		case <-o.ctx.Done():
			return o.ctx.Err()
		case <-timer.C:
			return nil
		}
	}
	return nil
}

// send hands f to the loop and waits for room, or for the end of the run.
func (o *owner) send(f func()) {
	select {
	case o.inputs <- f:
	case <-o.ctx.Done():
	}
}

// fail ends the run after the current input.
func (o *owner) fail(err error) {
	if o.end == nil {
		o.end = err
	}
}

// retried calls f until it succeeds or the run ends.
func (o *owner) retried(what string, f func() error) error {
	for failures := 1; ; failures++ {
		err := f()
		if err == nil {
			return nil
		}
		if o.ctx.Err() != nil {
			return o.ctx.Err()
		}
		o.log.Debug("trying again", "what", what, "failures", failures, "err", err)
		o.status.stumbled(fmt.Errorf("%s: %w", what, err))
		o.missing(err)
		if err := pause(o.ctx, retryPolicy.Delay(failures, o.grant.Epoch())); err != nil {
			return err
		}
	}
}

func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
