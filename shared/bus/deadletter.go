package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// clearedLife is how long the sign that a dead letter was cleared stays in the
// stream. Unit: time; the server's smallest.
const clearedLife = time.Second

func (b *Bus) deadLetterRoot() string { return "dlq." + event.Token(b.cfg.Cluster) }

func (b *Bus) deadLetterSubject(role string, kind event.Kind, key event.Key) string {
	namespace := "_"
	if key.Namespace != "" {
		namespace = event.Token(key.Namespace)
	}
	return b.deadLetterRoot() + "." + event.Token(role) + "." + event.Token(string(kind)) + "." + namespace + "." + event.Token(key.Name)
}

// DeadLetter records that a role cannot process a key, over what was recorded
// before.
func (b *Bus) DeadLetter(ctx context.Context, letter *millracev1.DeadLetter) error {
	data, err := proto.Marshal(letter)
	if err != nil {
		return fmt.Errorf("encoding dead letter: %w", err)
	}
	key := event.Key{Namespace: letter.GetNamespace(), Name: letter.GetName()}
	subject := b.deadLetterSubject(letter.GetRole(), event.Kind(letter.GetKind()), key)
	if _, err := b.publisher.wait(ctx, &nats.Msg{Subject: subject, Data: data}); err != nil {
		return fmt.Errorf("writing dead letter of %s: %w", key, err)
	}
	return nil
}

// ClearDeadLetter takes back what DeadLetter recorded; nothing recorded is no
// error. It publishes an empty letter that vanishes, so a role needs no right to
// delete.
func (b *Bus) ClearDeadLetter(ctx context.Context, role string, kind event.Kind, key event.Key) error {
	_, err := b.publisher.wait(ctx, &nats.Msg{
		Subject: b.deadLetterSubject(role, kind, key),
		Header:  nats.Header{jetstream.MsgTTLHeader: {clearedLife.String()}},
	})
	if err != nil {
		return fmt.Errorf("clearing dead letter of %s: %w", key, err)
	}
	return nil
}

// DeadLetters returns all dead letters there are.
func (b *Bus) DeadLetters(ctx context.Context) ([]*millracev1.DeadLetter, error) {
	filters := []string{b.deadLetterRoot() + ".>"}
	r := reading{
		stream:  b.deadLetterStream(),
		name:    fmt.Sprintf("deadletters-%s-%d", b.unique, b.feeds.Add(1)),
		filters: filters,
	}
	letters := map[string]*millracev1.DeadLetter{}
	var order []string
	var seq uint64
	check := func(pending uint64) error {
		if pending > 0 {
			return nil
		}
		done, err := b.complete(ctx, r.stream, filters, seq)
		if err == nil && done {
			err = errEnough
		}
		return err
	}
	r.idle = func() error { return check(0) }
	err := b.read(ctx, r, check, func(d delivery) error {
		seq = d.Seq
		letter := &millracev1.DeadLetter{}
		switch err := proto.Unmarshal(d.Data, letter); {
		case err != nil:
			return errors.Join(errors.New("reading dead letter: "+d.Subject), err)
		case len(d.Data) == 0:
			delete(letters, d.Subject)
		default:
			letters[d.Subject] = letter
			order = append(order, d.Subject)
		}
		return check(d.Pending)
	})
	if err != nil {
		return nil, fmt.Errorf("reading dead letters: %w", err)
	}
	found := make([]*millracev1.DeadLetter, 0, len(letters))
	for _, subject := range order {
		if letter := letters[subject]; letter != nil {
			found = append(found, letter)
			delete(letters, subject)
		}
	}
	return found, nil
}
