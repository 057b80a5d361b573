package rates

import (
	"context"
	"errors"
	"maps"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

var (
	errCut     = errors.New("not connected")
	errUnknown = errors.New("no answer in time")
)

// spring is NATS in memory: one bucket of keys for any number of pipes. Its
// clock is that of testing/synctest.
type spring struct {
	mu    sync.Mutex
	luck  *rand.Rand
	seq   uint64
	keys  map[string]stored
	life  int // grows with every restart: what is under way then is lost
	pipes []*pipe
	slow  time.Duration // the most that one way takes
	// fault: of so many writes, one is answered by nothing; half of those land.
	fault  int
	writes int
}

type stored struct {
	key   string
	value []byte
	rev   uint64
	life  int // in which it was written
}

func newSpring(luck *rand.Rand) *spring {
	return &spring{luck: luck, seq: 1_000_000, keys: map[string]stored{}, slow: 3 * time.Millisecond}
}

// pipe is one process's connection: a Store and a Wire.
type pipe struct {
	s      *spring
	up     bool
	since  time.Time
	frozen chan struct{} // closed at thaw; nil: not frozen
	feed   chan stored
}

func (s *spring) pipe() *pipe {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := &pipe{s: s, up: true, since: time.Now(), feed: make(chan stored, 1000)}
	s.pipes = append(s.pipes, p)
	return p
}

// roll draws a number below n.
func (s *spring) roll(n int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.luck.IntN(n)
}

// faulty draws whether a write is answered by nothing.
func (s *spring) faulty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fault > 0 && s.luck.IntN(s.fault) == 0
}

// fail makes one write of n be answered by nothing; 0: none.
func (s *spring) fail(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = n
}

// restart takes every connection down for a while. keep says what the server
// remembers when it is back, and at which sequence it goes on.
func (s *spring) restart(away time.Duration, keep func()) {
	s.mu.Lock()
	s.life++
	for _, p := range s.pipes {
		p.up, p.since = false, time.Now()
	}
	s.mu.Unlock()
	time.Sleep(away)
	s.mu.Lock()
	defer s.mu.Unlock()
	keep()
	for _, p := range s.pipes {
		p.up, p.since = true, time.Now()
	}
}

// wipe forgets everything; sequences go on from the time of day.
func (s *spring) wipe() { clear(s.keys); s.seq += 1_000_000 }

// backup returns what brings back the present state, sequence included: a power
// loss.
func (s *spring) backup() func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	keys, seq := maps.Clone(s.keys), s.seq
	return func() { s.keys, s.seq = keys, seq }
}

// freeze stops what goes out and comes in.
func (p *pipe) freeze() (thaw func()) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	frozen := make(chan struct{})
	p.frozen = frozen
	return sync.OnceFunc(func() {
		p.s.mu.Lock()
		defer p.s.mu.Unlock()
		p.frozen = nil
		close(frozen)
	})
}

// travel is one way of a call: it takes time, waits while the process is frozen,
// and fails if the connection has been another since life.
func (p *pipe) travel(life int) error {
	p.s.mu.Lock()
	slow, frozen := time.Duration(p.s.luck.Int64N(int64(p.s.slow)))+time.Microsecond, p.frozen
	p.s.mu.Unlock()
	time.Sleep(slow)
	if frozen != nil {
		<-frozen
	}
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	if !p.up || p.s.life != life {
		return errCut
	}
	return nil
}

func (p *pipe) lifeNow() int {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.s.life
}

func (p *pipe) Get(_ context.Context, key string) ([]byte, uint64, error) {
	life := p.lifeNow()
	if err := p.travel(life); err != nil {
		return nil, 0, err
	}
	p.s.mu.Lock()
	k, ok := p.s.keys[key]
	p.s.mu.Unlock()
	if err := p.travel(life); err != nil {
		return nil, 0, err
	}
	if !ok {
		return nil, 0, event.ErrNone
	}
	return k.value, k.rev, nil
}

func (p *pipe) Put(ctx context.Context, key string, value []byte, expect uint64, _ time.Duration) (uint64, error) {
	life := p.lifeNow()
	if err := p.travel(life); err != nil {
		return 0, err
	}
	if p.s.faulty() {
		if p.s.roll(2) == 0 {
			late := time.Duration(p.s.roll(4000)) * time.Millisecond
			time.AfterFunc(late, func() { _, _ = p.s.put(key, value, expect, life) })
		}
		if p.s.roll(2) == 0 {
			<-ctx.Done()
		}
		return 0, errUnknown
	}
	rev, err := p.s.put(key, value, expect, life)
	if back := p.travel(life); back != nil {
		return 0, back // written or not
	}
	return rev, err
}

func (s *spring) put(key string, value []byte, expect uint64, life int) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life != life {
		return 0, errCut
	}
	if s.keys[key].rev != expect {
		return 0, event.ErrRefused
	}
	s.seq++
	s.writes++
	k := stored{key, value, s.seq, life}
	s.keys[key] = k
	for _, p := range s.pipes {
		select {
		case p.feed <- k:
		default: // it has ended
		}
	}
	return s.seq, nil
}

func (p *pipe) Follow(ctx context.Context, _ string, sink event.EntrySink) error {
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case k := <-p.feed:
			if p.travel(k.life) == nil {
				sink.Entry(k.key, k.value, k.rev, false)
			}
		}
	}
}

func (p *pipe) Connected() (time.Time, bool) {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	return p.since, p.up
}
