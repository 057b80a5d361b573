// Package facts keeps the few facts that no object of the API server holds and
// that a restart must not forget: what was seen first, what was found at last. A
// fact is a key and a message in a key-value bucket; it is written once, or
// changed by compare-and-set, and followed.
//
// It judges nothing and knows no NATS; what it needs of the edge is Store. A
// wipe of NATS forgets all facts: whoever writes one must be able to find it
// again, or to do without.
package facts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-io/millrace/shared/event"
)

// Store is the key-value bucket facts_<cluster>; *bus.KV.
type Store interface {
	// Get returns a key's value and revision; event.ErrNone if there is no value.
	Get(ctx context.Context, key string) (value []byte, rev uint64, err error)
	// Put writes value if the key's revision is expect (0: there is no value);
	// event.ErrRefused if it is not. Any other error leaves open whether it was
	// written.
	Put(ctx context.Context, key string, value []byte, expect uint64, ttl time.Duration) (rev uint64, err error)
	// Delete removes the value if the key's revision is expect.
	Delete(ctx context.Context, key string, expect uint64) error
	// Follow tells sink what the keys under filter hold, until ctx ends.
	Follow(ctx context.Context, filter string, sink event.EntrySink) error
}

// Message is a pointer to T that is a protobuf message.
type Message[T any] interface {
	*T
	proto.Message
}

// Topic is all facts of one kind: Topic[millracev1.Demand, *millracev1.Demand].
type Topic[T any, M Message[T]] struct {
	store  Store
	prefix string // with its dot
}

// New returns the facts of the topic name.
func New[T any, M Message[T]](store Store, name string) *Topic[T, M] {
	return &Topic[T, M]{store: store, prefix: event.Token(name) + "."}
}

func (t *Topic[T, M]) key(name string) string { return t.prefix + event.Token(name) }

// Get returns a fact; event.ErrNone if there is none.
func (t *Topic[T, M]) Get(ctx context.Context, name string) (M, error) {
	m, _, err := t.get(ctx, name)
	if err != nil {
		return nil, err
	}
	return m, nil
}

func (t *Topic[T, M]) get(ctx context.Context, name string) (M, uint64, error) {
	value, rev, err := t.store.Get(ctx, t.key(name))
	if err != nil {
		return nil, 0, fmt.Errorf("reading fact %s%s: %w", t.prefix, name, err)
	}
	m := M(new(T))
	if err := proto.Unmarshal(value, m); err != nil {
		return nil, rev, fmt.Errorf("reading fact %s%s: %w", t.prefix, name, err)
	}
	return m, rev, nil
}

// Once records a fact unless there is one of that name, and returns what stands:
// m, or what was recorded first. After an error the outcome is unknown; calling it
// again is harmless.
func (t *Topic[T, M]) Once(ctx context.Context, name string, m M) (M, error) {
	err := t.put(ctx, name, m, 0)
	if !errors.Is(err, event.ErrRefused) {
		if err != nil {
			return nil, err
		}
		return m, nil
	}
	return t.Get(ctx, name)
}

// tries is how often Update meets another writer before it gives up. Source:
// ours; a fact has one writer, or a few that agree.
const tries = 20

// Update changes a fact. change gets a copy of what stands, an empty message
// where nothing does, and returns false to leave it as it is; it may be called
// more than once, since another may write in between. Update returns what stands
// then. After an error the outcome is unknown.
func (t *Topic[T, M]) Update(ctx context.Context, name string, change func(M) bool) (M, error) {
	for range tries {
		m, rev, err := t.get(ctx, name)
		switch {
		case errors.Is(err, event.ErrNone):
			m, rev = M(new(T)), 0
		case err != nil && rev == 0:
			return nil, err
		case err != nil:
			m = M(new(T)) // what cannot be read is overwritten
		}
		if !change(m) {
			return m, nil
		}
		err = t.put(ctx, name, m, rev)
		if !errors.Is(err, event.ErrRefused) {
			if err != nil {
				return nil, err
			}
			return m, nil
		}
	}
	return nil, fmt.Errorf("changing fact %s%s: %w, %d times in a row", t.prefix, name, event.ErrRefused, tries)
}

// Forget removes a fact, whatever it says.
func (t *Topic[T, M]) Forget(ctx context.Context, name string) error {
	for range tries {
		_, rev, err := t.store.Get(ctx, t.key(name))
		if errors.Is(err, event.ErrNone) {
			return nil
		}
		if err == nil {
			err = t.store.Delete(ctx, t.key(name), rev)
		}
		if !errors.Is(err, event.ErrRefused) {
			if err != nil {
				return fmt.Errorf("forgetting fact %s%s: %w", t.prefix, name, err)
			}
			return nil
		}
	}
	return fmt.Errorf("forgetting fact %s%s: %w, %d times in a row", t.prefix, name, event.ErrRefused, tries)
}

func (t *Topic[T, M]) put(ctx context.Context, name string, m M, expect uint64) error {
	value, err := proto.Marshal(m)
	if err != nil {
		return fmt.Errorf("writing fact %s%s: %w", t.prefix, name, err)
	}
	if _, err := t.store.Put(ctx, t.key(name), value, expect, 0); err != nil {
		return fmt.Errorf("writing fact %s%s: %w", t.prefix, name, err)
	}
	return nil
}
