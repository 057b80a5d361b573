package bus

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

const (
	// retryWait and retryJitter are the pause before a feed is tried under a new
	// name. Unit: time.
	retryWait   = 50 * time.Millisecond
	retryJitter = 100 * time.Millisecond
)

// Feed says what to read.
type Feed = event.Feed

// Sink receives a feed.
type Sink = event.Sink

// Follow reads feed after feed into sink until ctx ends, whose error it returns.
// A value from again forces a new feed; again may be nil.
//
// Each feed begins at the first message and goes on live. It ends, and the next
// begins, when the server's messages are not contiguous, when it misses two
// heartbeats, or when its consumer is gone after a reconnect.
func (b *Bus) Follow(ctx context.Context, f Feed, sink Sink, again <-chan struct{}) error {
	return b.follow(ctx, b.eventStream(), f, again, followed{
		begin: sink.Begin,
		gap:   sink.Gap,
		got: func(_ context.Context, d delivery) error {
			m, err := decode(b.root, d.Subject, d.Header, d.Data, f.HeadersOnly)
			if err != nil {
				b.metrics.broken.Inc()
				sink.Broken(d.Subject, d.Seq, err)
				return nil
			}
			m.Seq = d.Seq
			sink.Deliver(m)
			return nil
		},
	})
}

// followed receives feed after feed, undecoded. opened may be nil.
type followed struct {
	begin  func(replay uint64)
	opened func(ctx context.Context, pending uint64) error
	got    func(ctx context.Context, d delivery) error
	gap    func(reason string)
}

// errAgain ends a feed that is to be read again.
var errAgain = errors.New("asked for again")

func (b *Bus) follow(ctx context.Context, stream string, f Feed, again <-chan struct{}, to followed) error {
	var replay uint64
	reason := replayFirst
	reported := &once{}
	for {
		if err := b.awaitLink(ctx); err != nil {
			return err
		}
		begun, err := b.followOnce(ctx, stream, f, again, followed{
			begin: func(uint64) {
				replay++
				b.metrics.feedReplays.WithLabelValues(reason).Inc()
				to.begin(replay)
			},
			opened: to.opened, got: to.got, gap: to.gap,
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if begun {
			reason = reasonOf(err)
			if reason != replayAgain {
				b.metrics.feedGaps.Inc()
				b.log.Info("feed was broken, reading it anew", "feed", f.Name, "err", err)
			}
			to.gap(err.Error())
			continue
		}
		if reported.first(err) {
			b.log.Warn("cannot open feed, trying on", "feed", f.Name, "err", err)
		}
		if err := sleep(ctx, retryWait+rand.N(retryJitter)); err != nil { //nolint:gosec // spreading, not secrecy
			return err
		}
	}
}

// followOnce reads one feed. begun says whether it was opened; then err says
// what ended it.
func (b *Bus) followOnce(ctx context.Context, stream string, f Feed, again <-chan struct{}, to followed) (begun bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	waiting := make(chan struct{})
	defer func() { cancel(nil); <-waiting }()
	go func() {
		defer close(waiting)
		select {
		case <-again:
			cancel(errAgain)
		case <-ctx.Done():
		}
	}()
	r := reading{
		stream:      stream,
		name:        fmt.Sprintf("%s-%d", token(f.Name), b.feeds.Add(1)),
		filters:     f.Filters,
		headersOnly: f.HeadersOnly,
	}
	err = b.read(ctx, r,
		func(pending uint64) error {
			begun = true
			to.begin(0)
			if to.opened != nil {
				return to.opened(ctx, pending)
			}
			return nil
		},
		func(d delivery) error { return to.got(ctx, d) },
	)
	return begun, err
}

// awaitLink waits until the bus is connected.
func (b *Bus) awaitLink(ctx context.Context) error {
	changes, cancel := b.Changes()
	defer cancel()
	for !b.State().Connected {
		select {
		case <-changes:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return ctx.Err()
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reasonOf is the label value of what ended a feed.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, errAgain):
		return replayAgain
	case errors.Is(err, errSilent):
		return replayBeat
	case errors.Is(err, errGone):
		return replayGone
	case errors.Is(err, ErrGap):
		return replayGap
	default:
		return replayFailed
	}
}
