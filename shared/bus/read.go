package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// How a feed reads. Source: docs/design, measured: nats.md section 10.
const (
	// createWait bounds the creation of a consumer; a slow server gets a new
	// name instead. Unit: time.
	createWait = 500 * time.Millisecond
	// inactiveLife is how long the server keeps a feed nobody reads. Unit: time.
	inactiveLife = 15 * time.Second
	// pullMessages is how many messages may be on their way. Unit: messages.
	// Source: BenchmarkFeed; at 4 MiB a message a feed can hold 1 GiB, which
	// pullBytes prevents.
	pullMessages = 256
	// beat and pullExpiry: the server speaks at least once a second; two missed
	// beats end the feed. Unit: time.
	beat       = time.Second
	pullExpiry = 5 * time.Second
)

// reading is one ephemeral consumer to be read from the first message on.
type reading struct {
	stream      string
	name        string // never used before
	filters     []string
	headersOnly bool
}

// delivery is one message of a reading.
type delivery struct {
	jetstream.Msg
	Seq     uint64 // in the stream
	Pending uint64 // messages still to come, as far as the server knows
}

// errGone means that a reading's consumer does not exist any more.
var errGone = fmt.Errorf("%w: consumer is gone", ErrGap)

// errEnough ends a reading without an error.
var errEnough = errors.New("enough")

// read creates the consumer, calls opened with the number of messages that wait,
// then got for each message in stream order, until got returns an error, ctx
// ends, or the flow breaks. Messages are contiguous: consumer sequences run 1,
// 2, 3, and anything else is ErrGap.
//
// Not the library's ordered consumer, which resumes silently after a wipe and
// then misses deletions, and not a watch on a bucket, which needs up to 18 s to
// notice a restarted server.
func (b *Bus) read(ctx context.Context, r reading, opened func(pending uint64) error, got func(delivery) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	consumer, err := b.createReader(ctx, r)
	if err != nil {
		return err
	}
	defer b.deleteReader(r)
	// A reconnect alone breaks nothing, contiguity decides; but if the consumer
	// is gone, waiting for two missed beats would waste 2 s.
	watched := make(chan struct{})
	defer func() { cancel(nil); <-watched }()
	go func() {
		defer close(watched)
		b.watchReader(ctx, r, consumer.CachedInfo().Created, cancel)
	}()
	messages, err := consumer.Messages(
		jetstream.PullMaxMessages(pullMessages),
		jetstream.PullHeartbeat(beat),
		jetstream.PullExpiry(pullExpiry),
		jetstream.WithMessagesErrOnMissingHeartbeat(true),
	)
	if err != nil {
		return sorted(err)
	}
	defer messages.Stop()
	if err := opened(consumer.CachedInfo().NumPending); err != nil {
		return enough(err)
	}
	for next := uint64(1); ; next++ {
		msg, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return fmt.Errorf("%w: %w", ErrGap, err)
		}
		meta, err := msg.Metadata()
		if err != nil {
			return fmt.Errorf("%w: %w", ErrGap, err)
		}
		if meta.Sequence.Consumer != next {
			return fmt.Errorf("%w: message %d came where %d was due", ErrGap, meta.Sequence.Consumer, next)
		}
		if err := got(delivery{msg, meta.Sequence.Stream, meta.NumPending}); err != nil {
			return enough(err)
		}
	}
}

func enough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (b *Bus) createReader(ctx context.Context, r reading) (jetstream.Consumer, error) {
	ctx, cancel := context.WithTimeout(ctx, createWait)
	defer cancel()
	consumer, err := b.js.CreateConsumer(ctx, r.stream, jetstream.ConsumerConfig{
		Name:              r.name,
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		FilterSubjects:    r.filters,
		HeadersOnly:       r.headersOnly,
		InactiveThreshold: inactiveLife,
		MemoryStorage:     true,
		Replicas:          1,
	})
	if err != nil {
		return nil, fmt.Errorf("creating consumer %s: %w", r.name, sorted(err))
	}
	return consumer, nil
}

// deleteReader asks for the consumer to go and does not wait: what is left
// behind goes by itself after inactiveLife.
func (b *Bus) deleteReader(r reading) {
	_ = b.nc.Publish("$JS.API.CONSUMER.DELETE."+r.stream+"."+r.name, nil)
}

// watchReader ends the reading when, after a reconnect, its consumer is not
// there any more or is another one.
func (b *Bus) watchReader(ctx context.Context, r reading, created time.Time, end context.CancelCauseFunc) {
	changes, cancel := b.Changes()
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
		if !b.State().Connected {
			continue
		}
		var info jetstream.ConsumerInfo
		err := b.askReader(ctx, r, &info)
		if consumerGone(err) || errors.Is(err, ErrMissing) {
			end(errGone)
		} else if err == nil && !info.Created.Equal(created) {
			end(fmt.Errorf("%w: consumer is another one", ErrGap))
		}
	}
}

func (b *Bus) askReader(ctx context.Context, r reading, info *jetstream.ConsumerInfo) error {
	ctx, cancel := context.WithTimeout(ctx, createWait)
	defer cancel()
	return b.api(ctx, "CONSUMER.INFO."+r.stream+"."+r.name, nil, info)
}

// complete reports whether everything that now stands under filters was
// delivered, given that the reading has come as far as seq: the last message of
// each filter is not behind it. A message that replaced another ahead of the
// reading is why "nothing pending" is not enough.
func (b *Bus) complete(ctx context.Context, stream string, filters []string, seq uint64) (bool, error) {
	for _, filter := range filters {
		last, err := b.lastRaw(ctx, stream, filter)
		if errors.Is(err, ErrNone) {
			continue
		}
		if err != nil {
			return false, err
		}
		if last.Seq > seq {
			return false, nil
		}
	}
	return true, nil
}
