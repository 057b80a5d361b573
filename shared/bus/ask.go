package bus

import (
	"context"
	"errors"
	"time"

	"github.com/nats-io/nats.go"
)

// Answer answers requests on a subject, one after the other, until stop is
// called. A nil answer leaves the request unanswered.
func (b *Bus) Answer(subject string, fn func(data []byte) []byte) (stop func(), err error) {
	sub, err := b.nc.Subscribe(subject, func(msg *nats.Msg) {
		if answer := fn(msg.Data); answer != nil && msg.Reply != "" {
			_ = msg.Respond(answer) // the one who asked times out and asks again
		}
	})
	if err != nil {
		return nil, sorted(err)
	}
	// Drained, so that what has already come is still answered.
	return func() { _ = sub.Drain() }, nil // fails only when the bus is closed
}

// Ask sends one request and returns the answer. ErrNoResponders means that the
// server knows nobody who listens there; ErrTimeout, after 2 s or when ctx ends,
// that somebody does but did not answer.
func (b *Bus) Ask(ctx context.Context, subject string, data []byte) ([]byte, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	msg, err := b.nc.RequestWithContext(ctx, subject, data)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, ErrTimeout
	}
	if err != nil {
		return nil, sorted(err)
	}
	return msg.Data, nil
}

// AskAll sends one request to everybody who listens and returns the answers that
// come within wait. Nobody listening is no error.
func (b *Bus) AskAll(ctx context.Context, subject string, data []byte, wait time.Duration) ([][]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	inbox := b.nc.NewInbox()
	sub, err := b.nc.SubscribeSync(inbox)
	if err != nil {
		return nil, sorted(err)
	}
	defer func() { _ = sub.Unsubscribe() }() // fails only when the bus is closed
	if err := b.nc.PublishRequest(subject, inbox, data); err != nil {
		return nil, sorted(err)
	}
	var answers [][]byte
	for {
		msg, err := sub.NextMsgWithContext(ctx)
		switch {
		case errors.Is(err, nats.ErrNoResponders), errors.Is(err, context.DeadlineExceeded):
			return answers, nil
		case err != nil:
			return answers, sorted(err)
		}
		answers = append(answers, msg.Data)
	}
}
