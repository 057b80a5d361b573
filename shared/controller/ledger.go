package controller

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// ledger is what a partition remembers of its keys. Its lock is a leaf: a
// Reconciler may ask it from within a View.
type ledger struct {
	mu       sync.Mutex
	position position
	// live are the keys whose next write must be decided on a live read ⚠.
	live map[event.Key]struct{}
	// writes are ours that the inputs have not shown yet.
	writes   map[event.Key]*written
	failures map[event.Key]int
	// hands says since when a key is in hand, errors what it failed with last.
	hands  map[event.Key]time.Time
	errors map[event.Key]error
}

// written are the writes of one key, and since when the newest of them is out.
type written struct {
	since  time.Time
	writes []protocol.Write
}

func newLedger() *ledger {
	return &ledger{
		position: newPosition(),
		live:     make(map[event.Key]struct{}),
		writes:   make(map[event.Key]*written),
		failures: make(map[event.Key]int),
		hands:    make(map[event.Key]time.Time),
		errors:   make(map[event.Key]error),
	}
}

// wake makes key wait because of cause; seq is its place in the partition's own
// feed, 0 if it came by another: then it stands behind all that were delivered.
func (l *ledger) wake(key event.Key, seq uint64, cause *Cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if seq == 0 {
		seq = l.position.last + 1
	}
	l.position.add(key, wait{seq: seq, since: cause.Received, cause: cause})
}

// wakeAll makes keys wait because everything is looked at. With live, each must
// be decided on a live read.
func (l *ledger) wakeAll(keys []event.Key, live bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for _, key := range keys {
		l.position.add(key, wait{since: now})
		if live {
			l.live[key] = struct{}{}
		}
	}
}

func (l *ledger) saw(seq uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.position.saw(seq)
}

func (l *ledger) take(key event.Key) (cause *Cause) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.position.take(key)
	l.hands[key] = time.Now()
	return l.position.cause(key)
}

// done: key is reconciled, or can only be after its next event.
func (l *ledger) done(key event.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.failures, key)
	delete(l.errors, key)
	delete(l.hands, key)
	l.position.done(key)
}

// back: key is not reconciled, through no fault of its own.
func (l *ledger) back(key event.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hands, key)
	l.position.back(key)
}

// failed counts a failure of key and returns how many there were in a row.
func (l *ledger) failed(key event.Key) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.hands, key)
	l.position.back(key)
	l.failures[key]++
	return l.failures[key]
}

// failedWith remembers an error, for those who ask.
func (l *ledger) failedWith(key event.Key, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.errors[key] = err
}

// since returns when key, which is in hand, was taken.
func (l *ledger) since(key event.Key) time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.hands[key]
}

// out returns the writes of key that were not seen when it last ran.
func (l *ledger) out(key event.Key) []protocol.Write {
	l.mu.Lock()
	defer l.mu.Unlock()
	if o := l.writes[key]; o != nil {
		return slices.Clone(o.writes)
	}
	return nil
}

// state says where key stands, as far as the ledger knows.
func (l *ledger) state(key event.Key) *millracev1.KeyState {
	l.mu.Lock()
	defer l.mu.Unlock()
	s := &millracev1.KeyState{State: StateAtRest, Failures: uint32(l.failures[key])} //nolint:gosec // a count
	_, s.LiveFirst = l.live[key]
	if err := l.errors[key]; err != nil {
		s.LastError = cut(err.Error())
	}
	w, waits := l.position.waiting[key]
	switch since, inHand := l.hands[key]; {
	case inHand:
		s.State, s.Since = StateRunning, durationpb.New(time.Since(since))
		w, waits = l.position.taken[key]
	case waits:
		s.State, s.Since = StateQueued, durationpb.New(time.Since(w.since))
	}
	if waits && w.cause != nil {
		s.Cause = causeProto(w.cause)
	}
	return s
}

func (l *ledger) cause(key event.Key) (Cause, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c := l.position.cause(key); c != nil {
		return *c, true
	}
	return Cause{}, false
}

func (l *ledger) lowest() (uint64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.position.lowest()
}

// waiting returns how many keys are not reconciled, and since when the oldest.
func (l *ledger) waiting() (keys int, oldest time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.position.backlog(), l.position.oldest()
}

func (l *ledger) liveFirst(key event.Key) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, first := l.live[key]
	return first
}

func (l *ledger) mustReadLive(key event.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.live[key] = struct{}{}
}

func (l *ledger) readLive(key event.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.live, key)
}

func (l *ledger) wrote(key event.Key, w protocol.Write) {
	l.mu.Lock()
	defer l.mu.Unlock()
	o := l.writes[key]
	if o == nil {
		o = &written{}
		l.writes[key] = o
	}
	o.since = time.Now()
	o.writes = append(o.writes, w)
}

// unseen drops the writes of key that have been seen and returns the others, and
// how long the newest is out.
func (l *ledger) unseen(key event.Key, seen func(protocol.Write) bool) (writes []protocol.Write, out time.Duration) {
	l.mu.Lock()
	o := l.writes[key]
	l.mu.Unlock()
	if o == nil {
		return nil, 0
	}
	// Only the worker that has key in hand gets here and to wrote, so o is its.
	for _, w := range o.writes {
		if !seen(w) {
			writes = append(writes, w)
		}
	}
	l.mu.Lock() // for those who ask what is unseen
	o.writes = writes
	l.mu.Unlock()
	if len(writes) == 0 {
		l.forget(key)
	}
	return writes, time.Since(o.since)
}

// forget drops all writes of key.
func (l *ledger) forget(key event.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.writes, key)
}
