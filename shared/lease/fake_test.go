package lease

import (
	"context"
	"errors"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

var (
	errCut     = errors.New("not connected")
	errUnknown = errors.New("no answer in time")
)

// sea is NATS in memory: one bucket and the subjects, for any number of boats.
// Its clocks are those of testing/synctest.
type sea struct {
	mu    sync.Mutex
	seq   uint64
	keys  map[string]entry
	boats []*boat
	// fault may answer a write instead of the bucket; written says whether the
	// bucket takes it all the same.
	fault func(b *boat, key string) (written bool, err error)
	// ashore keeps keys from expiring, as a stopped server does.
	ashore bool
	delay  time.Duration // of answers to writes
	writes []write       // all that were taken
}

type entry struct {
	key     string
	value   []byte
	rev     uint64
	deleted bool
}

type write struct {
	entry
	by     *boat
	before entry
	at     time.Time
}

// change alters what the tests alter.
func (s *sea) change(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fn()
}

func newSea() *sea { return &sea{keys: map[string]entry{}} }

// boat is one process's connection to the sea: a Bucket and a Wire.
type boat struct {
	sea     *sea
	up      bool
	since   time.Time
	counted time.Duration // connected time before since
	frozen  chan struct{} // closed at thaw; nil: not frozen
	quiet   bool          // a cut breaks no feed
	deaf    bool          // live changes are kept back, and nobody notices
	answers map[string]func([]byte) []byte
	feeds   map[chan entry]bool
}

func (s *sea) boat() *boat {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := &boat{sea: s, up: true, since: time.Now(), answers: map[string]func([]byte) []byte{}, feeds: map[chan entry]bool{}}
	s.boats = append(s.boats, b)
	return b
}

func (b *boat) cut()  { b.set(false) }
func (b *boat) mend() { b.set(true) }

func (b *boat) set(up bool) {
	b.sea.mu.Lock()
	defer b.sea.mu.Unlock()
	if b.up {
		b.counted += time.Since(b.since)
	}
	b.up, b.since = up, time.Now()
	if b.quiet {
		return
	}
	for feed := range b.feeds {
		close(feed)
	}
	clear(b.feeds)
}

// freeze stops what goes out and in, not the goroutines: their clocks run on.
func (b *boat) freeze() (thaw func()) {
	b.sea.mu.Lock()
	defer b.sea.mu.Unlock()
	frozen := make(chan struct{})
	b.frozen = frozen
	return sync.OnceFunc(func() {
		b.sea.mu.Lock()
		defer b.sea.mu.Unlock()
		b.frozen = nil
		close(frozen)
	})
}

func (b *boat) thawed() {
	b.sea.mu.Lock()
	frozen := b.frozen
	b.sea.mu.Unlock()
	if frozen != nil {
		<-frozen
	}
}

func (b *boat) Put(_ context.Context, key string, value []byte, expect uint64, ttl time.Duration) (uint64, error) {
	b.thawed()
	time.Sleep(time.Millisecond)
	b.sea.mu.Lock()
	defer b.sea.mu.Unlock()
	if !b.up {
		return 0, errCut
	}
	if b.sea.fault != nil {
		if written, err := b.sea.fault(b, key); err != nil {
			if written {
				_, _ = b.sea.put(b, entry{key: key, value: value}, expect, ttl)
			}
			return 0, err
		}
	}
	rev, err := b.sea.put(b, entry{key: key, value: value}, expect, ttl)
	if delay := b.sea.delay; delay > 0 {
		b.sea.mu.Unlock()
		time.Sleep(delay)
		b.sea.mu.Lock()
	}
	return rev, err
}

func (b *boat) Delete(_ context.Context, key string, expect uint64) error {
	b.thawed()
	b.sea.mu.Lock()
	defer b.sea.mu.Unlock()
	if !b.up {
		return errCut
	}
	_, err := b.sea.put(b, entry{key: key, deleted: true}, expect, 0)
	return err
}

func (s *sea) put(by *boat, e entry, expect uint64, ttl time.Duration) (uint64, error) {
	before := s.keys[e.key]
	if before.rev != expect && (expect != 0 || !before.deleted) {
		return 0, event.ErrRefused
	}
	s.seq++
	e.rev = s.seq
	s.keys[e.key] = e
	s.writes = append(s.writes, write{entry: e, by: by, before: before, at: time.Now()})
	for _, b := range s.boats {
		for feed := range b.feeds {
			feed <- e
		}
	}
	if ttl > 0 {
		time.AfterFunc(ttl, func() { s.expire(e) })
	}
	return e.rev, nil
}

func (s *sea) expire(e entry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.keys[e.key].rev == e.rev && !s.ashore {
		_, _ = s.put(nil, entry{key: e.key, deleted: true}, e.rev, 0)
	}
}

func (b *boat) Follow(ctx context.Context, filter string, sink event.EntrySink) error {
	for replay := uint64(1); ctx.Err() == nil; replay++ {
		b.thawed()
		b.sea.mu.Lock()
		if !b.up {
			b.sea.mu.Unlock()
			pause(ctx, 10*time.Millisecond)
			continue
		}
		feed, stored := make(chan entry, 100_000), maps.Clone(b.sea.keys)
		b.feeds[feed] = true
		b.sea.mu.Unlock()
		b.follow(ctx, strings.TrimSuffix(filter, ">"), replay, stored, feed, sink)
	}
	return ctx.Err()
}

func (b *boat) follow(ctx context.Context, prefix string, replay uint64, stored map[string]entry, feed chan entry, sink event.EntrySink) {
	tell := func(e entry) {
		if strings.HasPrefix(e.key, prefix) {
			sink.Entry(e.key, e.value, e.rev, e.deleted)
		}
	}
	sink.Begin(replay)
	for _, e := range stored {
		tell(e)
	}
	sink.Caught()
	for {
		select {
		case <-ctx.Done():
			b.sea.change(func() { delete(b.feeds, feed) })
			return
		case e, ok := <-feed:
			if !ok {
				sink.Gap("cut")
				return
			}
			b.thawed()
			for b.hearsNothing() && ctx.Err() == nil {
				pause(ctx, time.Millisecond)
			}
			tell(e)
		}
	}
}

func (b *boat) hearsNothing() bool {
	b.sea.mu.Lock()
	defer b.sea.mu.Unlock()
	return b.deaf || !b.up
}

func (b *boat) Now() time.Duration {
	b.sea.mu.Lock()
	defer b.sea.mu.Unlock()
	if b.up {
		return b.counted + time.Since(b.since)
	}
	return b.counted
}

func (b *boat) Connected() (time.Time, bool) {
	b.sea.mu.Lock()
	defer b.sea.mu.Unlock()
	return b.since, b.up
}

func (b *boat) Answer(subject string, fn func([]byte) []byte) (func(), error) {
	b.sea.mu.Lock()
	defer b.sea.mu.Unlock()
	b.answers[subject] = fn
	return func() {
		b.sea.mu.Lock()
		defer b.sea.mu.Unlock()
		delete(b.answers, subject)
	}, nil
}

func (b *boat) Ask(ctx context.Context, subject string, data []byte) ([]byte, error) {
	b.thawed()
	b.sea.mu.Lock()
	if !b.up {
		b.sea.mu.Unlock()
		return nil, errCut
	}
	var fn func([]byte) []byte
	asleep := false
	for _, other := range b.sea.boats {
		if a := other.answers[subject]; a != nil && other.up {
			fn, asleep = a, other.frozen != nil
		}
	}
	b.sea.mu.Unlock()
	switch {
	case fn == nil:
		return nil, event.ErrNoResponders
	case asleep:
		<-ctx.Done()
		return nil, errUnknown
	}
	return fn(data), nil
}
