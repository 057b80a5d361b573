package kube

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// SharedReads reads objects of one kind straight through, once for all who ask for
// the same one within a moment: the node of many pods. They do not wait for the
// client's limit, in which they would grow old: the writes that they are for do.
type SharedReads struct {
	api  *API
	from source
	age  time.Duration

	mu    sync.Mutex
	reads map[event.Key]*sharedRead
}

// sharedRead is one read: under way until done is closed.
type sharedRead struct {
	done   chan struct{}
	sent   time.Time
	object Object
	err    error
}

// keepReads is for how long a read that is over may stay in memory. Unit: time.
// Source: ours.
const keepReads = time.Minute

// SharedReads returns reads of a kind that we have a type of, shared for as long as
// they are not older than age.
func (a *API) SharedReads(kind event.Kind, age time.Duration) *SharedReads {
	typed := typedKinds[kind]
	return &SharedReads{
		api: a, from: typedSource(kind, typed, typed.client(a.checks)), age: age, reads: make(map[event.Key]*sharedRead),
	}
}

// Get returns an object as the server held it not longer than age ago, and when
// that was asked for: whoever acts on it later has to look at that. ErrNotFound is
// an answer like any other; another failure is that of one read alone.
func (s *SharedReads) Get(ctx context.Context, key event.Key) (o Object, asked time.Time, err error) {
	for {
		read, mine := s.enter(key)
		if mine {
			read.object, read.err = s.api.get(ctx, s.from, key)
			close(read.done)
		}
		select {
		case <-read.done:
		case <-ctx.Done():
			return Object{}, time.Time{}, ctx.Err()
		}
		if mine || s.counts(read) {
			return read.object, read.sent, read.err
		}
	}
}

// counts reports whether a read that is over may be shared.
func (s *SharedReads) counts(read *sharedRead) bool {
	return time.Since(read.sent) <= s.age && (read.err == nil || errors.Is(read.err, ErrNotFound))
}

// enter returns the read that counts, or is under way, or is to be made now.
func (s *SharedReads) enter(key event.Key) (read *sharedRead, mine bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if read := s.reads[key]; read != nil {
		select {
		case <-read.done:
			if s.counts(read) {
				return read, false
			}
		default:
			return read, false
		}
	}
	for other, read := range s.reads {
		if time.Since(read.sent) > keepReads {
			delete(s.reads, other)
		}
	}
	read = &sharedRead{done: make(chan struct{}), sent: time.Now()}
	s.reads[key] = read
	return read, true
}
