package protocol

import "github.com/millrace-io/millrace/shared/event"

// Mark asks for a bookmark of slice i as soon as it can be true. Publications
// of the slice wait for it, so that a steady stream of changes cannot put it
// off for ever.
func (p *Publisher[B]) Mark(i int) { p.slices[i].due = true }

// MarkAcked answers DoMark.
func (p *Publisher[B]) MarkAcked(i int, seq uint64) {
	p.slices[i].mark.busy = false
	p.slices[i].mark.seq = seq
}

// MarkRefused answers DoMark, also where the outcome is unknown.
func (p *Publisher[B]) MarkRefused(i int) {
	p.effects = append(p.effects, Effect[B]{Do: DoReadMark, Slice: i})
}

// MarkLast answers DoReadMark: m is the last bookmark of slice i, nil if none.
func (p *Publisher[B]) MarkLast(i int, m *event.Message) {
	if m != nil && p.higher(*m) {
		return
	}
	s := &p.slices[i]
	s.mark.busy, s.mark.seq = false, 0
	if m != nil {
		s.mark.seq = m.Seq
	}
}

// marks emits the bookmarks that are due and true.
func (p *Publisher[B]) marks() {
	if !p.Started() {
		return
	}
	for i := range p.slices {
		s := &p.slices[i]
		if !s.due || s.mark.busy || s.blocked > 0 && p.without.keeps(ruleQuietSums) {
			continue
		}
		s.due, s.mark.busy = false, true
		s.mark.counter++
		empty := s.byKey.Count == 0 && s.byNamespace.Count == 0
		p.effects = append(p.effects, Effect[B]{
			Do: DoMark, Slice: i, Expect: s.mark.seq, Upto: p.Upto(),
			Mark: event.Mark{
				Counter: s.mark.counter, Absent: p.absent && empty,
				ByKey: s.byKey, ByNamespace: s.byNamespace,
			},
		})
	}
}

// owes reports whether publishing key now would put off a bookmark.
func (p *Publisher[B]) owes(key event.Key, r *record[B]) bool {
	if r.suspect || !p.Started() {
		return false
	}
	byKey, byNamespace := p.of(key)
	return byKey.due && byKey.blocked > 0 || byNamespace.due && byNamespace.blocked > 0
}
