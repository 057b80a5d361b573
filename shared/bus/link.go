package bus

import (
	"context"
	"sync"
	"time"
)

const (
	// proofInterval is how often the connection proves that it lives, by a ping
	// that the server answers. Unit: time. Source: a quarter second is small
	// against the shortest silence judged by it, 3 s, and costs 4 pings/s.
	proofInterval = 250 * time.Millisecond
	// proofWait bounds one ping; a frozen connection is then tried again.
	proofWait = 2 * time.Second
)

// State is what is known of the connection.
type State struct {
	Connected bool
	// Since is when Connected last changed; monotonic.
	Since    time.Time
	ServerID string
	// MaxPayload is the largest message the server takes. Unit: bytes; 0 before
	// the first connection.
	MaxPayload int64
	// Generation grows by one with each connection, so also with each change of
	// server; 0 before the first.
	Generation uint64
}

// State returns what is known of the connection.
func (b *Bus) State() State { return b.link.get() }

// Connected reports whether the connection is up, and since when that is so.
func (b *Bus) Connected() (since time.Time, ok bool) {
	s := b.State()
	return s.Since, s.Connected
}

// Changes returns a channel that holds a value after each connect and
// disconnect, and a function that ends this. Changes that come faster than they
// are read are one value; read State for what became of them.
func (b *Bus) Changes() (<-chan struct{}, func()) { return b.link.watch() }

// Now returns the connected time: it grows only while the connection is up and
// the server answers pings, by at most twice the ping interval between two
// answers. A silence of others measured by it is therefore never our own: not a
// cut, not a frozen connection, not a process that was stopped. It never goes
// back. Unit: time since Connect; resolution 250 ms.
func (b *Bus) Now() time.Duration { return b.link.now(time.Now()) }

// link holds the state of the connection and its clock.
type link struct {
	mu       sync.Mutex
	state    State
	watchers map[chan struct{}]struct{}

	proven  time.Duration // connected time at the last proof
	proof   time.Time     // when it was; zero: none since the last connect
	highest time.Duration // never let the clock go back
}

func newLink() *link {
	return &link{state: State{Since: time.Now()}, watchers: map[chan struct{}]struct{}{}}
}

func (l *link) get() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.state
}

// set records a connect or a disconnect and tells those who watch.
func (l *link) set(connected bool, server string, maxPayload int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if connected {
		l.state.Generation++
		l.state.ServerID, l.state.MaxPayload = server, maxPayload
	}
	l.state.Connected, l.state.Since = connected, time.Now()
	l.proof = time.Time{}
	for ch := range l.watchers {
		select {
		case ch <- struct{}{}:
		default: // it has not looked since the last change
		}
	}
}

func (l *link) watch() (<-chan struct{}, func()) {
	ch := make(chan struct{}, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.watchers[ch] = struct{}{}
	return ch, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.watchers, ch)
	}
}

// prove advances the clock: the server has answered a ping of this generation
// that was sent at sent.
func (l *link) prove(sent time.Time, generation uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.state.Connected || l.state.Generation != generation {
		return
	}
	if !l.proof.IsZero() {
		l.proven += min(max(sent.Sub(l.proof), 0), 2*proofInterval)
	}
	l.proof = sent
}

// now reads the clock; between two proofs it runs on for one interval.
func (l *link) now(at time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	reading := l.proven
	if l.state.Connected && !l.proof.IsZero() {
		reading += min(max(at.Sub(l.proof), 0), proofInterval)
	}
	l.highest = max(l.highest, reading)
	return l.highest
}

// proveLink pings the server until ctx ends.
func (b *Bus) proveLink(ctx context.Context) {
	ticker := time.NewTicker(proofInterval)
	defer ticker.Stop()
	changes, cancel := b.Changes()
	defer cancel()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		case <-changes:
		}
		s := b.State()
		if !s.Connected {
			continue
		}
		sent := time.Now()
		if b.nc.FlushTimeout(proofWait) == nil {
			b.link.prove(sent, s.Generation)
		}
	}
}
