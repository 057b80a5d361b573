package rates

import (
	"container/heap"
	"context"
	"maps"
	"sync"
	"time"
)

// takeFor is how long one wait for a token lasts before it is asked again whether
// there is anything to take one for. Unit: time. Source: ours.
const takeFor = 5 * time.Second

// Rules is what a set of lines does not know by itself. None of it may call the
// lines.
type Rules[C comparable] struct {
	// Wait returns for how long yet no token may be taken for the first of a line,
	// which waits since then; 0: one may. Nil: it always may.
	Wait func(scope string, first C, since time.Time) time.Duration
	// Take waits for a token of a scope, at most until ctx ends. first is who is
	// first as it is called.
	Take func(ctx context.Context, scope string, first C) (Token, error)
	// Wake makes one run that has been given a token.
	Wake func(C)
	// Most is how many may have a token at once that they have not claimed ⚠: more
	// than can run would only wait, until their tokens were dead. 0: any number.
	Most int
}

// Lines hold those of one process who wait for tokens: a line per scope, in the
// order that each asks for; whoever is first is woken with the next token. It is
// safe for concurrent use.
type Lines[C comparable] struct {
	ctx   context.Context //nolint:containedctx // of those who serve the lines
	rules Rules[C]

	mu      sync.Mutex
	lines   map[string]*line[C]
	in      map[C]*stander[C]
	granted map[C]Token
	count   uint64
}

// stander is one who stands in a line.
type stander[C comparable] struct {
	who   C
	line  *line[C]
	since time.Time
	turn  uint64 // among those of the same time
	index int    // in its line
}

// line is the heap of those who wait for one scope.
type line[C comparable] struct {
	scope   string
	waiting []*stander[C]
	kick    chan struct{}
}

// NewLines returns lines without anybody; each is served until ctx ends.
func NewLines[C comparable](ctx context.Context, rules Rules[C]) *Lines[C] {
	return &Lines[C]{
		ctx: ctx, rules: rules,
		lines: make(map[string]*line[C]), in: make(map[C]*stander[C]), granted: make(map[C]Token),
	}
}

// Want puts who in the line of a scope, and in no other. The earlier since, the
// further in front.
func (l *Lines[C]) Want(who C, scope string, since time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.in[who]; w != nil {
		if w.line.scope == scope && w.since.Equal(since) {
			return
		}
		l.remove(who)
	}
	at := l.lines[scope]
	if at == nil {
		at = &line[C]{scope: scope, kick: make(chan struct{}, 1)}
		l.lines[scope] = at
		go l.serve(at)
	}
	l.count++
	w := &stander[C]{who: who, line: at, since: since, turn: l.count}
	l.in[who] = w
	heap.Push(at, w)
	select {
	case at.kick <- struct{}{}:
	default:
	}
}

// Forget takes who out of the line, and a token that it has not used.
func (l *Lines[C]) Forget(who C) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.granted, who)
	l.remove(who)
}

// Leave takes all out of whom that is true.
func (l *Lines[C]) Leave(those func(C) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for who := range l.in {
		if those(who) {
			l.remove(who)
		}
	}
	for who := range l.granted {
		if those(who) {
			delete(l.granted, who)
		}
	}
}

// remove takes who out of its line. l.mu is held.
func (l *Lines[C]) remove(who C) {
	if w := l.in[who]; w != nil {
		heap.Remove(w.line, w.index)
		delete(l.in, who)
	}
}

// Claim returns the token with which who was woken, if it can still be used; it is
// the caller's then.
func (l *Lines[C]) Claim(who C) (Token, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.granted[who]
	delete(l.granted, who)
	return t, ok && t.Valid() == nil
}

// Granted reports whether who has a token that it has not claimed.
func (l *Lines[C]) Granted(who C) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t, ok := l.granted[who]
	return ok && t.Valid() == nil
}

// Place says where who stands, for people; waiting is 0 for one in no line.
func (l *Lines[C]) Place(who C) (scope string, ahead, waiting int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.in[who]
	if w == nil {
		return "", 0, 0
	}
	for _, other := range w.line.waiting {
		if other.before(w) {
			ahead++
		}
	}
	return w.line.scope, ahead, len(w.line.waiting)
}

// serve grants the tokens of one scope until the process ends.
func (l *Lines[C]) serve(at *line[C]) {
	for l.ctx.Err() == nil {
		first, wait := l.ready(at)
		if wait > 0 {
			l.pause(at, wait)
			continue
		}
		ctx, cancel := context.WithTimeout(l.ctx, takeFor)
		token, err := l.rules.Take(ctx, at.scope, first)
		cancel()
		if err == nil {
			l.grant(at, token)
		}
	}
}

// ready returns the first in line, or when to ask again.
func (l *Lines[C]) ready(at *line[C]) (first C, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first, wait = l.first(at); wait == 0 && l.full() {
		wait = fullPause
	}
	return first, wait
}

// fullPause is how often it is looked whether somebody has claimed a token. Unit:
// time. Source: ours; what the API server takes for a write.
const fullPause = 5 * time.Millisecond

// full reports whether as many have tokens as may. One that died unclaimed does not
// count: whoever had it does not run. l.mu is held.
func (l *Lines[C]) full() bool {
	if l.rules.Most == 0 || len(l.granted) < l.rules.Most {
		return false
	}
	maps.DeleteFunc(l.granted, func(_ C, t Token) bool { return !t.lives() })
	return len(l.granted) >= l.rules.Most
}

// first is ready; l.mu is held.
func (l *Lines[C]) first(at *line[C]) (first C, wait time.Duration) {
	if len(at.waiting) == 0 {
		return first, time.Hour
	}
	w := at.waiting[0]
	if l.rules.Wait != nil {
		wait = l.rules.Wait(at.scope, w.who, w.since)
	}
	return w.who, wait
}

// grant wakes the first in line with a token; with none there it is void.
func (l *Lines[C]) grant(at *line[C], token Token) {
	l.mu.Lock()
	first, wait := l.first(at)
	if wait > 0 {
		l.mu.Unlock()
		return
	}
	l.remove(first)
	l.granted[first] = token
	l.mu.Unlock()
	l.rules.Wake(first)
}

func (l *Lines[C]) pause(at *line[C], d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-l.ctx.Done():
	case <-at.kick:
	case <-t.C:
	}
}

func (w *stander[C]) before(other *stander[C]) bool {
	if w.since.Equal(other.since) {
		return w.turn < other.turn
	}
	return w.since.Before(other.since)
}

// Len implements heap.Interface, as all that follow.
func (at *line[C]) Len() int { return len(at.waiting) }

// Less reports whether i is in front of j.
func (at *line[C]) Less(i, j int) bool { return at.waiting[i].before(at.waiting[j]) }

// Swap changes two places.
func (at *line[C]) Swap(i, j int) {
	at.waiting[i], at.waiting[j] = at.waiting[j], at.waiting[i]
	at.waiting[i].index, at.waiting[j].index = i, j
}

// Push appends a *stander.
func (at *line[C]) Push(x any) {
	if w, ok := x.(*stander[C]); ok {
		w.index = len(at.waiting)
		at.waiting = append(at.waiting, w)
	}
}

// Pop takes the last one away.
func (at *line[C]) Pop() any {
	last := len(at.waiting) - 1
	w := at.waiting[last]
	at.waiting[last] = nil
	at.waiting = at.waiting[:last]
	return w
}
