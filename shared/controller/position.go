package controller

import (
	"slices"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// position knows which keys are not reconciled, since when, and by that the
// lowest stream sequence that is not done. It is pure and not safe for
// concurrent use.
//
// A key waits from the first change that nobody has reconciled; changes that
// come while it waits are covered by it. A key taken in hand that fails waits
// again from where it did.
type position struct {
	last    uint64 // highest sequence delivered
	waiting map[event.Key]wait
	taken   map[event.Key]wait
	order   []place // by sequence; places that nobody waits at are stale
	stale   int
	// unplaced counts waits without a sequence: keys looked at because the
	// inputs have become complete. While there are any, the position is unknown.
	unplaced int
	sweep    time.Time // when the newest of them began
}

// wait is what a key waits for.
type wait struct {
	seq   uint64 // zero: no message in particular
	since time.Time
	cause *Cause // nil without one
}

type place struct {
	seq uint64
	key event.Key
}

func newPosition() position {
	return position{waiting: make(map[event.Key]wait), taken: make(map[event.Key]wait)}
}

// saw notes that everything up to seq has been delivered and mapped to keys.
func (p *position) saw(seq uint64) { p.last = max(p.last, seq) }

// add makes key wait for w, unless it waits already.
func (p *position) add(key event.Key, w wait) {
	if _, waits := p.waiting[key]; waits {
		return
	}
	p.waiting[key] = w
	if w.seq == 0 {
		p.unplaced++
		p.sweep = w.since
		return
	}
	i := len(p.order)
	for i > 0 && p.order[i-1].seq > w.seq {
		i-- // rare: a cause of another feed, or a replay
	}
	p.order = slices.Insert(p.order, i, place{w.seq, key})
}

// take takes key in hand; what comes from now on waits anew.
func (p *position) take(key event.Key) {
	if w, waits := p.waiting[key]; waits {
		delete(p.waiting, key)
		p.taken[key] = w
	}
}

// cause returns why key, which is in hand, was taken.
func (p *position) cause(key event.Key) *Cause { return p.taken[key].cause }

// done: key, which was in hand, is reconciled.
func (p *position) done(key event.Key) {
	if w, ok := p.taken[key]; ok {
		delete(p.taken, key)
		p.left(w)
	}
}

// back: key, which was in hand, is not reconciled.
func (p *position) back(key event.Key) {
	w, ok := p.taken[key]
	if !ok {
		return
	}
	delete(p.taken, key)
	if newer, waits := p.waiting[key]; waits {
		p.left(newer)
	}
	p.waiting[key] = w
}

// left counts a wait that has ended.
func (p *position) left(w wait) {
	if w.seq == 0 {
		p.unplaced--
		return
	}
	p.stale++
	if p.stale > 64 && p.stale > len(p.order)/2 {
		p.compact()
	}
}

func (p *position) compact() {
	kept := p.order[:0]
	for _, at := range p.order {
		if p.waits(at) {
			kept = append(kept, at)
		}
	}
	clear(p.order[len(kept):])
	p.order, p.stale = kept, 0
}

func (p *position) waits(at place) bool {
	if w, ok := p.waiting[at.key]; ok && w.seq == at.seq {
		return true
	}
	w, ok := p.taken[at.key]
	return ok && w.seq == at.seq
}

// trim drops the stale head of order.
func (p *position) trim() {
	for len(p.order) > 0 && !p.waits(p.order[0]) {
		p.order[0] = place{}
		p.order = p.order[1:]
		p.stale--
	}
}

// lowest returns the lowest sequence that is not reconciled, one above all that
// were delivered if everything is; unknown while keys wait that stand for no
// sequence, or nothing was delivered.
func (p *position) lowest() (seq uint64, known bool) {
	if p.unplaced > 0 || p.last == 0 {
		return 0, false
	}
	p.trim()
	if len(p.order) > 0 {
		return p.order[0].seq, true
	}
	return p.last + 1, true
}

// backlog returns how many keys are not reconciled.
func (p *position) backlog() int {
	n := len(p.waiting)
	for key := range p.taken {
		if _, both := p.waiting[key]; !both {
			n++
		}
	}
	return n
}

// oldest returns since when a key has waited that is not reconciled; zero for
// none.
func (p *position) oldest() (since time.Time) {
	if p.unplaced > 0 {
		since = p.sweep
	}
	p.trim()
	if len(p.order) > 0 {
		at := p.order[0]
		w, waits := p.waiting[at.key]
		if !waits || w.seq != at.seq {
			w = p.taken[at.key]
		}
		if since.IsZero() || w.since.Before(since) {
			since = w.since
		}
	}
	return since
}
