package cache

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Begin implements event.Sink. What is cached stays, as a memory that proves
// nothing.
func (c *Cache) Begin(replay uint64) {
	c.mu.Lock()
	c.replay.Begin()
	c.seq = 0
	c.drifted = c.drifted || c.asked
	c.asked = false
	for _, s := range c.stores {
		clear(s.marks)
		s.contradicted = 0
	}
	moved := c.judge()
	c.notify()
	c.mu.Unlock()
	c.tellMoved(moved)
}

// Gap implements event.Sink.
func (c *Cache) Gap(string) {
	c.mu.Lock()
	c.replay.Gap()
	for _, s := range c.stores {
		s.silence()
	}
	moved := c.judge()
	c.notify()
	c.mu.Unlock()
	c.tellMoved(moved)
}

// judge notes whether everything is complete now, counts how often it has become
// so, and reports whether that is another answer than before. c.mu is held.
func (c *Cache) judge() (moved bool) {
	was := c.whole
	c.whole = c.complete()
	if c.whole && !was {
		c.synced++
		c.drifted = false
	}
	return c.whole != was
}

func (c *Cache) tellMoved(moved bool) {
	if moved && c.hooks.Moved != nil {
		c.hooks.Moved()
	}
}

// Deliver implements event.Sink.
func (c *Cache) Deliver(m event.Message) {
	s := c.stores[m.Kind]
	if s == nil {
		return
	}
	if m.Op == event.Bookmark {
		c.bookmark(s, m)
		return
	}
	c.object(s, m)
}

// object takes a message about one object. It is decoded before the lock is
// taken: readers do not wait for that.
func (c *Cache) object(s *store, m event.Message) {
	var e *entry
	var reason string
	var old bool
	if m.Op.Live() && !c.repeats(s, m) {
		e, reason, old = s.decode(m)
	}
	m.Body = nil

	c.mu.Lock()
	c.seq = max(c.seq, m.Seq)
	c.hear(s, m, time.Now)
	verdict := c.replay.Deliver(m)
	_, was := s.opaque[m.Key]
	changes := c.apply(s, m, verdict.Change, e)
	_, is := s.opaque[m.Key]
	moved := old && c.judge() // it makes the kind incomplete
	c.notify()
	c.mu.Unlock()

	c.tellMoved(moved)
	switch {
	case is && e != nil && !old:
		c.log.Warn("object cannot be read", "kind", m.Kind, "key", m.Key, "seq", m.Seq, "reason", reason)
		c.poison(Poison{Kind: m.Kind, Key: m.Key, Reason: reason})
	case was && !is:
		c.poison(Poison{Kind: m.Kind, Key: m.Key})
	}
	for _, change := range changes {
		c.onChange(change)
	}
}

// hear notes when a complete kind is first heard of another watcher: it may be
// further than what carries the other kinds now, or carried them until now. A
// replay tells of watchers that have long been, so it does not count. c.mu is
// held.
func (c *Cache) hear(s *store, m event.Message, now func() time.Time) {
	if m.Epoch <= s.epoch {
		return
	}
	if s.epoch > 0 && c.replay.Synced(m.Kind) {
		c.turned = now()
	}
	s.epoch = m.Epoch
}

// repeats reports whether m says what is cached already. Only the feed's
// goroutine changes that, so the answer holds until apply.
func (c *Cache) repeats(s *store, m event.Message) bool {
	c.mu.RLock()
	defer c.mu.RUnlock()
	uid, version, known := c.replay.Lookup(m.Kind, m.Key)
	return known && uid == m.UID && version == m.Version && s.same(m)
}

// apply changes the store as the replay's verdict says; e is nil when it holds
// what the message says already. c.mu is held.
func (c *Cache) apply(s *store, m event.Message, what protocol.Change, e *entry) (changes []Change) {
	change := Change{Kind: m.Kind, Key: m.Key, Message: m, Initial: !s.ever}
	if what.Gone {
		gone := change
		gone.Old = s.remove(m.Key)
		gone.Message.Op, gone.Message.UID = event.Delete, what.Old
		changes = append(changes, gone)
	}
	if what.Put && e != nil {
		change.Old = s.put(e)
		change.New, change.Opaque = e.obj, e.opaque
		changes = append(changes, change)
	}
	return changes
}

// bookmark takes a message about a whole slice.
func (c *Cache) bookmark(s *store, m event.Message) {
	now := time.Now()
	c.mu.Lock()
	c.seq = max(c.seq, m.Seq)
	s.heard, s.projection = true, m.Projection
	c.hear(s, m, func() time.Time { return now })
	verdict := c.replay.Deliver(m)
	if verdict.Matched {
		s.mark(c.slice(s, m), m, now)
	}
	changes := c.sweep(s, m, verdict.Swept)
	s.ever = s.ever || verdict.Synced
	var do remedy
	if verdict.Drifted {
		do = c.drift(s, c.slice(s, m))
	}
	moved := c.judge()
	c.notify()
	c.mu.Unlock()

	for _, change := range changes {
		if change.Opaque {
			change.Opaque = false
			c.poison(Poison{Kind: change.Kind, Key: change.Key})
		}
		c.onChange(change)
	}
	c.tellMoved(moved)
	c.tellMark(m, verdict.Matched, do)
}

// sweep turns what a complete replay did not deliver into deletions; Opaque says
// only whether the object was.
func (c *Cache) sweep(s *store, m event.Message, swept []protocol.Change) []Change {
	changes := make([]Change, 0, len(swept))
	for _, gone := range swept {
		tombstone := event.Message{
			Kind: gone.Kind, Key: gone.Key, Seq: m.Seq, Op: event.Delete, UID: gone.Old,
			Version: m.Upto, Upto: m.Upto, Epoch: m.Epoch, Projection: m.Projection, Observed: m.Observed,
		}
		_, opaque := s.opaque[gone.Key]
		changes = append(changes, Change{
			Kind: gone.Kind, Key: gone.Key, Old: s.remove(gone.Key), Message: tombstone, Initial: !s.ever, Opaque: opaque,
		})
	}
	return changes
}

// slice returns the place of a bookmark's slice among those of the scope.
func (c *Cache) slice(s *store, m event.Message) int {
	if len(s.marks) == 1 {
		return 0
	}
	return m.Slice
}

// remedy is what is to be done about drift.
type remedy uint8

const (
	wait    remedy = iota // what was asked for is under way
	again                 // read everything anew
	compare               // that did not help: the stream itself may be wrong
)

// patience is how many more bookmarks may contradict the cache before another
// remedy is tried. Unit: bookmarks, one a second. Source: ours; as many as
// protocol.Replay takes before it speaks of drift.
const patience = 10

// drift makes the kind incomplete until a bookmark of the slice agrees again.
// The first remedy is a new replay; where that one drifts too, comparisons and
// replays in turn. c.mu is held.
func (c *Cache) drift(s *store, slice int) remedy {
	m := &s.marks[slice]
	if m.drifted++; m.drifted == 1 {
		s.contradicted++
	}
	switch {
	case c.asked || m.drifted%patience != 1:
		return wait
	case !c.drifted || m.drifted > patience:
		c.asked = true
		return again
	default:
		return compare
	}
}

func (c *Cache) tellMark(m event.Message, matched bool, do remedy) {
	if matched && c.hooks.Marked != nil {
		c.hooks.Marked(m.Kind)
	}
	switch do {
	case wait:
	case again:
		c.log.Warn("bookmarks contradict the cache, reading everything anew", "kind", m.Kind, "slice", m.Slice)
		if c.hooks.Again != nil {
			c.hooks.Again(m.Kind, m.Slice)
		}
	case compare:
		c.log.Warn("bookmarks still contradict the cache, asking the watcher to compare", "kind", m.Kind, "slice", m.Slice)
		if c.hooks.Compare != nil {
			c.hooks.Compare(m.Kind, m.Slice)
		}
	}
}

// Broken implements event.Sink. The object cannot even be named by its UID, so
// the sums will not agree until the watcher has put it right: it is asked to.
func (c *Cache) Broken(subject string, seq uint64, err error) {
	c.log.Warn("message cannot be read", "subject", subject, "seq", seq, "err", err)
	place, bad := place(subject)
	if bad != nil || c.stores[place.Kind] == nil {
		return
	}
	c.poison(Poison{Kind: place.Kind, Key: place.Key, Reason: fmt.Sprintf("message %d cannot be read: %v", seq, err)})
	if c.hooks.Compare != nil {
		c.hooks.Compare(place.Kind, place.PK)
	}
}

// place parses a subject of a root that is not known here: its first two
// tokens.
func place(subject string) (event.Place, error) {
	tokens := strings.SplitN(subject, ".", 3)
	if len(tokens) < 3 {
		return event.Place{}, errors.New("subject is too short")
	}
	return event.ParseSubject(tokens[0]+"."+tokens[1], subject)
}

func (c *Cache) poison(p Poison) {
	if c.hooks.Poison != nil {
		c.hooks.Poison(p)
	}
}
