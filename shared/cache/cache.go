// Package cache holds what one feed tells: the objects of one partition of some
// kinds, or of all of them, decoded and indexed, whether they are complete, and
// how fresh they are. It decides nothing and asks no one; what must be done
// about a feed that contradicts itself it tells to whom it was given.
//
// All accounting is that of protocol.Replay: a cache is synced when a bookmark
// proves it complete, never earlier, and it says so itself when bookmarks begin
// to contradict it.
package cache

import (
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Input is one kind that a cache holds.
type Input struct {
	Kind event.Kind
	// Projection is the oldest projection version that will do. What an older
	// watcher published is opaque, and its bookmarks prove nothing ⚠.
	Projection uint32
	// Decode makes the object of a message with Op Put. It must not keep
	// m.Body. An error, or a panic, makes the entry opaque. Nil keeps no
	// objects: every entry is the zero value of struct{}.
	Decode func(m event.Message) (any, error)
	// Indexes return the values under which Reader.ByIndex finds an object.
	Indexes map[string]func(obj any) []string
}

// Change is what happened to one object. Objects are immutable by convention:
// Old and New are shared with every reader.
type Change struct {
	Kind event.Kind
	Key  event.Key
	// Old and New are the object before and after; nil where there was or is
	// none, or none that can be read.
	Old, New any
	// Message is that of New or of the tombstone, headers only. For an object
	// that a replay found missing it is made up: a Delete at the bookmark that
	// proved it.
	Message event.Message
	// Initial: the kind has never been synced before.
	Initial bool
	// Opaque: the object exists and cannot be read. New is nil, and that is no
	// deletion.
	Opaque bool
}

// Deleted reports whether the object is gone.
func (c Change) Deleted() bool { return c.New == nil && !c.Opaque }

// Cache is what one feed tells. It implements event.Sink, whose methods belong
// to the feed's goroutine; everything else is safe for concurrent use.
type Cache struct {
	log      *slog.Logger
	hooks    Hooks
	onChange func(Change)
	kinds    []event.Kind

	mu      sync.RWMutex
	replay  *protocol.Replay
	stores  map[event.Kind]*store
	changed chan struct{} // closed at the next change; nil while nobody waits
	whole   bool          // everything is synced
	synced  uint64        // how many times that has become so
	seq     uint64
	turned  time.Time // see Turned
	asked   bool      // a new replay was asked for and has not begun
	drifted bool      // this replay was asked for because of drift
}

// Hooks are told what the holder of a cache has to act upon. Each is called
// outside the cache's lock from the feed's goroutine, must not block, and may be
// nil.
type Hooks struct {
	// Again: bookmarks contradict the cache; everything must be read anew.
	Again func(kind event.Kind, slice int)
	// Compare: they do so although everything was read anew; the watcher must
	// compare the stream with its records.
	Compare func(kind event.Kind, slice int)
	// Poison: an object cannot be read, or (Reason empty) can be again.
	Poison func(Poison)
	// Moved: the cache has become complete, or is no longer.
	Moved func()
	// Marked: a bookmark agreed with the cache.
	Marked func(kind event.Kind)
}

// Poison is one object that cannot be read.
type Poison struct {
	Kind   event.Kind
	Key    event.Key
	Reason string
}

// New returns an empty cache of one scope. onChange, which may be nil, is called
// outside the lock, in order, from the feed's goroutine, after the cache shows
// the change. A message that repeats what is cached is no change.
func New(scope protocol.Scope, inputs []Input, log *slog.Logger, onChange func(Change), hooks ...Hooks) *Cache {
	c := &Cache{log: log, onChange: onChange, stores: make(map[event.Kind]*store, len(inputs))}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.onChange == nil {
		c.onChange = func(Change) {}
	}
	if len(hooks) > 0 {
		c.hooks = hooks[0]
	}
	slices := 1
	if scope.By == protocol.Whole {
		slices = scope.Partitions
	}
	needs := make([]protocol.Need, 0, len(inputs))
	for _, in := range inputs {
		needs = append(needs, protocol.Need{Kind: in.Kind, Projection: in.Projection})
		c.kinds = append(c.kinds, in.Kind)
		c.stores[in.Kind] = newStore(in, slices)
	}
	c.replay = protocol.NewReplay(scope, needs)
	return c
}

// Kinds returns the kinds of the inputs, in their order.
func (c *Cache) Kinds() []event.Kind { return c.kinds }

// notify wakes whoever waits in Changed. c.mu is held.
func (c *Cache) notify() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// Changed returns a channel that is closed at the next message, gap or replay.
// Take it before looking at what you wait for.
func (c *Cache) Changed() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.changed == nil {
		c.changed = make(chan struct{})
	}
	return c.changed
}

// since returns the age of t on the monotonic clock.
func since(t time.Time) (time.Duration, bool) {
	if t.IsZero() {
		return 0, false
	}
	return time.Since(t), true
}
