package cache

import (
	"slices"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// entry is one object as it is cached.
type entry struct {
	obj        any
	key        event.Key
	hash       uint64
	projection uint32
	opaque     bool // obj cannot be read
	marker     bool // there never was a body
	indexed    []indexed
}

// indexed is one place at which an entry is found.
type indexed struct{ index, value string }

// group is a set of entries.
type group map[*entry]struct{}

// store is one kind: its objects, how they are found, and what its bookmarks
// say.
type store struct {
	input      Input
	entries    map[event.Key]*entry
	namespaces map[string]group // only namespaced objects
	indexes    map[indexed]group
	opaque     map[event.Key]struct{}
	marks      []marks
	ever       bool   // has been synced before
	heard      bool   // a bookmark came, whatever it said
	projection uint32 // of the last bookmark
	epoch      uint64 // the highest heard
	// contradicted is how many slices bookmarks have contradicted for too long.
	contradicted int
}

// marks are the receipts of one slice's bookmarks in this replay, by the
// monotonic clock.
type marks struct {
	last time.Time // the last that matched
	// proven is the receipt of the bookmark before the last: the last was
	// published after the stream had sent that one, so it is no older ⚠.
	proven time.Time
	// epoch and counter name the last that matched.
	epoch, counter uint64
	// drifted counts the bookmarks in a row that drift was reported for.
	drifted int
}

func newStore(in Input, slices int) *store {
	return &store{
		input:      in,
		entries:    make(map[event.Key]*entry),
		namespaces: make(map[string]group),
		indexes:    make(map[indexed]group),
		opaque:     make(map[event.Key]struct{}),
		marks:      make([]marks, slices),
	}
}

// put sets an entry and returns the object it replaces, nil if there is none.
func (s *store) put(e *entry) (old any) {
	old = s.remove(e.key)
	s.entries[e.key] = e
	if e.opaque {
		s.opaque[e.key] = struct{}{}
		return old
	}
	if e.key.Namespace != "" {
		add(s.namespaces, e.key.Namespace, e)
	}
	for _, at := range e.indexed {
		add(s.indexes, at, e)
	}
	return old
}

// remove deletes an entry and returns its object.
func (s *store) remove(key event.Key) (old any) {
	e := s.entries[key]
	if e == nil {
		return nil
	}
	delete(s.entries, key)
	delete(s.opaque, key)
	drop(s.namespaces, key.Namespace, e)
	for _, at := range e.indexed {
		drop(s.indexes, at, e)
	}
	return e.obj
}

func add[K comparable](groups map[K]group, at K, e *entry) {
	g := groups[at]
	if g == nil {
		g = make(group)
		groups[at] = g
	}
	g[e] = struct{}{}
}

func drop[K comparable](groups map[K]group, at K, e *entry) {
	g := groups[at]
	delete(g, e)
	if len(g) == 0 {
		delete(groups, at)
	}
}

func (s *store) list(namespace string) []any {
	if namespace != "" {
		return s.namespaces[namespace].objects()
	}
	objects := make([]any, 0, len(s.entries))
	for _, e := range s.entries {
		if !e.opaque {
			objects = append(objects, e.obj)
		}
	}
	return objects
}

func (s *store) byIndex(index, value string) []any {
	return s.indexes[indexed{index, value}].objects()
}

func (g group) objects() []any {
	objects := make([]any, 0, len(g))
	for e := range g {
		objects = append(objects, e.obj)
	}
	return objects
}

// same reports whether a cached entry already says what m does.
func (s *store) same(m event.Message) bool {
	e := s.entries[m.Key]
	return e != nil && e.marker == (m.Op == event.Opaque) && e.hash == m.Hash && e.projection == m.Projection
}

// silence forgets all receipts: what comes next is of unknown age.
func (s *store) silence() {
	for i := range s.marks {
		s.marks[i].last, s.marks[i].proven = time.Time{}, time.Time{}
		s.marks[i].epoch, s.marks[i].counter = 0, 0
	}
}

// mark notes that a bookmark of a slice agreed.
func (s *store) mark(slice int, bookmark event.Message, now time.Time) {
	m := &s.marks[slice]
	m.proven, m.last = m.last, now
	m.epoch, m.counter = bookmark.Epoch, bookmark.Mark.Counter
	if m.drifted > 0 {
		m.drifted = 0
		s.contradicted--
	}
}

// oldest returns the earliest receipt over the slices, zero if one is missing.
func (s *store) oldest(of func(marks) time.Time) time.Time {
	if len(s.marks) == 0 {
		return time.Time{}
	}
	return of(slices.MinFunc(s.marks, func(a, b marks) int { return of(a).Compare(of(b)) }))
}
