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
func (b *Bus) DeadLetters(ctx context.Context) (found []*millracev1.DeadLetter, err error) {
	err = b.scan(ctx, b.deadLetterStream(), b.deadLetterRoot()+".>", func(m *stored) error {
		if len(m.Data) == 0 {
			return nil // it was cleared
		}
		letter := &millracev1.DeadLetter{}
		if err := proto.Unmarshal(m.Data, letter); err != nil {
			return errors.Join(errors.New("reading dead letter: "+m.Subject), err)
		}
		found = append(found, letter)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading dead letters: %w", err)
	}
	return found, nil
}
