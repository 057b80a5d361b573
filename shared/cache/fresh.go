package cache

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Synced reports whether all of these kinds, all inputs if none is named, have
// been delivered completely. A kind that the API server does not serve is
// complete and empty; one that is no input is not complete.
func (c *Cache) Synced(kinds ...event.Kind) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.complete(kinds...)
}

func (c *Cache) complete(kinds ...event.Kind) bool {
	if len(kinds) == 0 {
		kinds = c.kinds
	}
	for _, kind := range kinds {
		if !c.isSynced(kind) {
			return false
		}
	}
	return true
}

func (c *Cache) isSynced(kind event.Kind) bool {
	return c.replay.Synced(kind) && c.stores[kind].contradicted == 0
}

// Wait returns when all inputs are synced, or with ctx's error.
func (c *Cache) Wait(ctx context.Context) error {
	for {
		changed := c.Changed()
		if c.Synced() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("waiting for caches: %w", ctx.Err())
		}
	}
}

// Generation counts how many times the cache has become complete.
func (c *Cache) Generation() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.synced
}

// Age returns how long ago the last bookmark came that agreed with the cache,
// over the slices of the scope the oldest; unknown if there was none in this
// replay. It bounds how old the input of a harmless write may be.
func (c *Cache) Age(kind event.Kind) (age time.Duration, known bool) {
	return c.age(kind, func(m marks) time.Time { return m.last })
}

// AgeDestructive is Age as a destructive write must see it: unknown until the
// second bookmark of a replay, because the first may be of any age, and from
// then on counted from the bookmark before the last, which the last one cannot
// precede ⚠.
func (c *Cache) AgeDestructive(kind event.Kind) (age time.Duration, known bool) {
	return c.age(kind, func(m marks) time.Time { return m.proven })
}

func (c *Cache) age(kind event.Kind, of func(marks) time.Time) (time.Duration, bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.stores[kind]
	if s == nil {
		return 0, false
	}
	return since(s.oldest(of))
}

// Marked names the last bookmark that agreed with the cache, by its epoch and
// counter; zero if there was none in this replay. Only of a cache of one slice.
func (c *Cache) Marked(kind event.Kind) (epoch, counter uint64) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.stores[kind]
	if s == nil || len(s.marks) != 1 || s.marks[0].last.IsZero() {
		return 0, 0
	}
	return s.marks[0].epoch, s.marks[0].counter
}

// Turned returns when a complete kind was last heard of another watcher than
// before; zero: never.
func (c *Cache) Turned() time.Time {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.turned
}

// MarkedSince reports whether every slice of kind has agreed with a bookmark
// that came at t or later.
func (c *Cache) MarkedSince(kind event.Kind, t time.Time) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	s := c.stores[kind]
	return s != nil && !s.oldest(func(m marks) time.Time { return m.last }).Before(t)
}

// Upto returns the version up to which kind is known.
func (c *Cache) Upto(kind event.Kind) uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.replay.Upto(kind)
}

// Seen reports whether the feed has told of w or of something later; true for a
// kind that is no input.
func (c *Cache) Seen(w protocol.Write) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.replay.Seen(w)
}

// Lookup returns the identity cached under key, opaque objects included. The
// version may be behind the API's: what changes nothing that travels is not
// published.
func (c *Cache) Lookup(kind event.Kind, key event.Key) (uid string, version uint64, ok bool) {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.replay.Lookup(kind, key)
}

// Hash returns the hash of an object's body as it travelled; zero if there is
// none.
func (c *Cache) Hash(kind event.Kind, key event.Key) uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	if e := (view{c}).store(kind).entries[key]; e != nil {
		return e.hash
	}
	return 0
}

// Has reports whether kind is an input.
func (c *Cache) Has(kind event.Kind) bool { return c.stores[kind] != nil }

// Opaque reports whether an object exists that cannot be read.
func (c *Cache) Opaque(kind event.Kind, key event.Key) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return view{c}.Opaque(kind, key)
}

// Seq returns the highest stream sequence delivered in this replay.
func (c *Cache) Seq() uint64 {
	c.mu.RLock()
	defer c.mu.RUnlock()
	return c.seq
}

// Status describes one kind.
type Status struct {
	Kind    event.Kind
	Synced  bool
	Absent  bool
	Age     time.Duration
	Known   bool // Age is
	Upto    uint64
	Objects int
	Opaque  int
	// Problem says why the kind is not synced, for people; empty if it is.
	Problem string
}

// Status returns one entry per input, in their order.
func (c *Cache) Status() []Status {
	c.mu.RLock()
	defer c.mu.RUnlock()
	out := make([]Status, 0, len(c.kinds))
	for _, kind := range c.kinds {
		s := c.stores[kind]
		st := Status{
			Kind: kind, Synced: c.isSynced(kind), Absent: c.replay.Absent(kind), Upto: c.replay.Upto(kind),
			Objects: len(s.entries), Opaque: len(s.opaque), Problem: c.problem(kind, s),
		}
		st.Age, st.Known = since(s.oldest(func(m marks) time.Time { return m.last }))
		out = append(out, st)
	}
	return out
}

func (c *Cache) problem(kind event.Kind, s *store) string {
	switch {
	case c.isSynced(kind):
		return ""
	case !s.heard:
		return fmt.Sprintf("%s: no bookmark ever came, nobody watches it", kind)
	case s.projection < s.input.Projection:
		return fmt.Sprintf("%s: the watcher projects version %d, version %d is needed", kind, s.projection, s.input.Projection)
	case c.drifted || s.contradicted > 0:
		return fmt.Sprintf("%s: the stream contradicts its bookmarks", kind)
	default:
		return fmt.Sprintf("%s: being read", kind)
	}
}
