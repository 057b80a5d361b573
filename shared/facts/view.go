package facts

import (
	"context"
	"maps"
	"strings"
	"sync"

	"google.golang.org/protobuf/proto"

	"github.com/millrace-io/millrace/shared/event"
)

// View is all facts of a topic as one follower knows them.
type View[T any, M Message[T]] struct {
	topic *Topic[T, M]

	mu       sync.Mutex
	facts    map[string]M
	told     map[string]bool // since the feed began anew
	complete bool
	changed  chan struct{} // closed at the next change
}

// View returns a view that knows nothing yet; see View.Run.
func (t *Topic[T, M]) View() *View[T, M] {
	return &View[T, M]{topic: t, facts: map[string]M{}, told: map[string]bool{}, changed: make(chan struct{})}
}

// Run follows the topic until ctx ends.
func (v *View[T, M]) Run(ctx context.Context) {
	_ = v.topic.store.Follow(ctx, v.topic.prefix+">", follower[T, M]{v}) // ends with ctx only
}

// All returns the facts by name, and whether these are all there were at some
// moment not long ago: not before the first reading has ended, nor while one that
// was interrupted is being repeated. What was known before stays until then.
func (v *View[T, M]) All() (facts map[string]M, complete bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return maps.Clone(v.facts), v.complete
}

// Fact returns one fact, nil if none is known; complete is as for All.
func (v *View[T, M]) Fact(name string) (m M, complete bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.facts[name], v.complete
}

// Changed returns a channel that is closed when All has something else to say.
func (v *View[T, M]) Changed() <-chan struct{} {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.changed
}

// note changes the view and tells those who wait.
func (v *View[T, M]) note(change func()) {
	v.mu.Lock()
	defer v.mu.Unlock()
	change()
	close(v.changed)
	v.changed = make(chan struct{})
}

// follower is the view's event.EntrySink.
type follower[T any, M Message[T]] struct{ v *View[T, M] }

func (f follower[T, M]) Begin(uint64) {
	f.v.note(func() {
		f.v.complete = false
		clear(f.v.told)
	})
}

func (f follower[T, M]) Entry(key string, value []byte, _ uint64, deleted bool) {
	name, err := event.ParseToken(strings.TrimPrefix(key, f.v.topic.prefix))
	if err != nil {
		return // nobody of ours wrote it
	}
	m := M(new(T))
	if proto.Unmarshal(value, m) != nil {
		deleted = true // what cannot be read says nothing
	}
	f.v.note(func() {
		f.v.told[name] = true
		f.v.facts[name] = m
		if deleted {
			delete(f.v.facts, name)
		}
	})
}

func (f follower[T, M]) Caught() {
	f.v.note(func() {
		maps.DeleteFunc(f.v.facts, func(name string, _ M) bool { return !f.v.told[name] })
		f.v.complete = true
	})
}

func (f follower[T, M]) Gap(string) { f.v.note(func() { f.v.complete = false }) }
