package roletest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// Facts is a facts.Store that any number of members share. What one of them writes
// comes to each follower a while later, in order.
type Facts struct {
	delay func() time.Duration

	mu        sync.Mutex
	rev       uint64
	values    map[string]fact
	followers []*follower
	down      error
}

type fact struct {
	value []byte
	rev   uint64
}

// follower is one who follows: its feed, and what ends it.
type follower struct {
	feed   chan news
	broken chan struct{}
}

type news struct {
	key string
	fact
	deleted bool
	at      time.Time
}

// NewFacts returns a store that holds nothing. delay is how long each piece of news
// takes; nil: no time.
func NewFacts(delay func() time.Duration) *Facts {
	return &Facts{values: map[string]fact{}, delay: delay}
}

// Down makes every call fail; nil ends that. Who follows is told nothing meanwhile
// beyond what was on its way.
func (m *Facts) Down(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.down = err
}

// Wipe forgets everything, as a NATS whose disk was lost; who follows begins anew.
func (m *Facts) Wipe() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.values)
	for _, f := range m.followers {
		close(f.broken)
	}
	m.followers = nil
}

// Len returns how many facts there are.
func (m *Facts) Len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.values)
}

// Get implements facts.Store, as do the methods that follow.
func (m *Facts) Get(_ context.Context, key string) ([]byte, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, has := m.values[key]
	switch {
	case m.down != nil:
		return nil, 0, m.down
	case !has:
		return nil, 0, event.ErrNone
	}
	return f.value, f.rev, nil
}

// Put writes a value over that of the expected revision.
func (m *Facts) Put(_ context.Context, key string, value []byte, expect uint64, _ time.Duration) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.down != nil:
		return 0, m.down
	case m.values[key].rev != expect:
		return 0, event.ErrRefused
	}
	m.rev++
	f := fact{value, m.rev}
	m.values[key] = f
	m.tell(news{key: key, fact: f})
	return m.rev, nil
}

// Delete removes the value of the expected revision.
func (m *Facts) Delete(_ context.Context, key string, expect uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.down != nil:
		return m.down
	case m.values[key].rev != expect:
		return event.ErrRefused
	}
	delete(m.values, key)
	m.rev++
	m.tell(news{key: key, fact: fact{rev: m.rev}, deleted: true})
	return nil
}

// tell queues what has changed for each follower. m.mu is held.
func (m *Facts) tell(x news) {
	for _, f := range m.followers {
		x.at = time.Now()
		if m.delay != nil {
			x.at = x.at.Add(m.delay())
		}
		f.feed <- x // it has room for all that a test writes
	}
}

// Follow tells of the facts under a filter of one topic, "topic.>".
func (m *Facts) Follow(ctx context.Context, filter string, sink event.EntrySink) error {
	prefix := strings.TrimSuffix(filter, ">")
	for n := uint64(1); ctx.Err() == nil; n++ {
		m.replay(ctx, n, prefix, sink)
	}
	return ctx.Err()
}

// replay follows until ctx ends or the store is wiped.
func (m *Facts) replay(ctx context.Context, n uint64, prefix string, sink event.EntrySink) {
	f := &follower{feed: make(chan news, 10000), broken: make(chan struct{})}
	m.mu.Lock()
	first := maps.Clone(m.values)
	m.followers = append(m.followers, f)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.followers = slices.DeleteFunc(m.followers, func(other *follower) bool { return other == f })
	}()
	sink.Begin(n)
	for key, is := range first {
		if strings.HasPrefix(key, prefix) {
			sink.Entry(key, is.value, is.rev, false)
		}
	}
	sink.Caught()
	for {
		select {
		case x := <-f.feed:
			if !Sleep(ctx, time.Until(x.at)) {
				return
			}
			if strings.HasPrefix(x.key, prefix) {
				sink.Entry(x.key, x.value, x.rev, x.deleted)
			}
		case <-f.broken:
			return
		case <-ctx.Done():
			return
		}
	}
}
