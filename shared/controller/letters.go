package controller

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// letters writes dead letters and takes them back. Neither delays the one who
// asks; what the bus does not take is tried again.
type letters struct {
	bus     Bus
	role    string
	log     *slog.Logger
	metrics *metrics

	mu      sync.Mutex
	pending map[object]*millracev1.DeadLetter // nil: to be cleared
	dead    map[object]struct{}               // what stands in the stream, as far as we know
	// fine are objects found well while the stream has not been read yet; nil
	// once it has.
	fine map[object]struct{}
	wake chan struct{}
}

func newLetters(bus Bus, role string, log *slog.Logger, m *metrics) *letters {
	return &letters{
		bus: bus, role: role, log: log, metrics: m,
		pending: make(map[object]*millracev1.DeadLetter),
		dead:    make(map[object]struct{}),
		fine:    make(map[object]struct{}),
		wake:    make(chan struct{}, 1),
	}
}

// write records that key cannot be processed.
func (l *letters) write(kind event.Kind, key event.Key, reason, member string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := object{kind, key}
	l.pending[at] = &millracev1.DeadLetter{
		Role: l.role, Kind: string(kind), Namespace: key.Namespace, Name: key.Name,
		Reason: reason, Member: member, At: timestamppb.Now(),
	}
	l.dead[at] = struct{}{}
	delete(l.fine, at)
	l.signal()
}

// clear takes back what was written about key, by us or a predecessor.
func (l *letters) clear(kind event.Kind, key event.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := object{kind, key}
	if _, dead := l.dead[at]; dead {
		delete(l.dead, at)
		l.pending[at] = nil
		l.signal()
		return
	}
	if l.fine != nil {
		l.fine[at] = struct{}{}
	}
}

// reload reads again what stands in the stream: others wrote of the keys that
// have become ours.
func (l *letters) reload() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.fine == nil {
		l.fine = make(map[object]struct{})
	}
	l.signal()
}

func (l *letters) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// run does what is pending until ctx ends.
func (l *letters) run(ctx context.Context) {
	for {
		var again <-chan time.Time
		loaded, sent := l.load(ctx), l.send(ctx)
		if !loaded || !sent {
			again = time.After(time.Second)
		}
		select {
		case <-again:
		case <-l.wake:
		case <-ctx.Done():
			return
		}
	}
}

// load reads what stands in the stream, if that is to be done.
func (l *letters) load(ctx context.Context) bool {
	l.mu.Lock()
	loaded := l.fine == nil
	l.mu.Unlock()
	if loaded {
		return true
	}
	found, err := l.bus.DeadLetters(ctx)
	if err != nil {
		l.log.Debug("reading dead letters failed", "err", err)
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, letter := range found {
		at := object{event.Kind(letter.GetKind()), event.Key{Namespace: letter.GetNamespace(), Name: letter.GetName()}}
		if letter.GetRole() != l.role {
			continue
		}
		if _, fine := l.fine[at]; fine {
			l.pending[at] = nil
			continue
		}
		if _, pending := l.pending[at]; !pending {
			l.dead[at] = struct{}{}
		}
	}
	l.fine = nil
	return true
}

// send does what is pending and reports whether all of it is done.
func (l *letters) send(ctx context.Context) bool {
	for {
		at, letter, pending := l.next()
		if !pending {
			return true
		}
		do, err := l.put(ctx, at, letter)
		if err != nil {
			l.log.Debug("dead letter was not taken", "kind", at.kind, "key", at.key, "do", do, "err", err)
			return false
		}
		l.metrics.letters.WithLabelValues(do).Inc()
		l.sent(at, letter)
	}
}

// put writes one letter, or clears it if it is nil.
func (l *letters) put(ctx context.Context, at object, letter *millracev1.DeadLetter) (do string, err error) {
	if letter == nil {
		return "clear", l.bus.ClearDeadLetter(ctx, l.role, at.kind, at.key)
	}
	return "write", l.bus.DeadLetter(ctx, letter)
}

func (l *letters) next() (at object, letter *millracev1.DeadLetter, pending bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for at, letter = range l.pending {
		return at, letter, true
	}
	return object{}, nil, false
}

// sent takes letter off, unless something else is pending by now.
func (l *letters) sent(at object, letter *millracev1.DeadLetter) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if current, pending := l.pending[at]; pending && current == letter {
		delete(l.pending, at)
	}
}
