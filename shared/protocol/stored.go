package protocol

import "github.com/millrace-io/millrace/shared/event"

// Stored takes a message of the snapshot taken before the first list, and after
// it each message that the owner's follower delivers.
func (p *Publisher[B]) Stored(m event.Message) {
	if p.higher(m) || m.Op == event.Bookmark {
		return
	}
	if p.listed == 0 {
		p.adopt(m.Key, p.record(m.Key), m)
		return
	}
	if !p.without.keeps(ruleFollow) {
		return
	}
	p.followed = max(p.followed, m.Seq)
	if p.compare != nil {
		m.Body = nil
		p.compare.followed[m.Key] = m
	}
	r, known := p.records[m.Key]
	if known {
		r.passed = max(r.passed, m.Seq)
	}
	switch {
	case !known && m.Op.Live(), known && r.phase == idle && m.Seq > r.stored.seq:
		r = p.record(m.Key)
		p.adopt(m.Key, r, m)
		p.doubt(m.Key, r)
	case known && r.phase == idle && p.same(r):
		p.settle(m.Key, r) // perhaps the tombstone that was waited for
	}
}

// StoredMark takes a bookmark of the snapshot or the follower.
func (p *Publisher[B]) StoredMark(m event.Message) {
	if !p.higher(m) && m.Slice < len(p.slices) {
		s := &p.slices[m.Slice]
		s.mark.seq = max(s.mark.seq, m.Seq)
	}
}

// higher reports whether the kind is lost, by m or before.
func (p *Publisher[B]) higher(m event.Message) bool {
	if m.Epoch > p.epoch && p.without.keeps(ruleStepDown) {
		p.lost = true
		p.effects = nil
	}
	return p.lost
}

// Acked answers DoPublish: the stream holds it at seq.
func (p *Publisher[B]) Acked(key event.Key, seq uint64) {
	r := p.records[key]
	if r == nil || r.phase != sending {
		return
	}
	if r.passed > seq {
		p.read(key) // something came after it already
		return
	}
	p.flying--
	p.enter(key, r, idle)
	p.store(key, r, stored{Object: r.sent, seq: seq, projection: p.projection})
	p.decide(key, r)
}

// Refused answers DoPublish: another message stands at the key.
func (p *Publisher[B]) Refused(key event.Key) { p.read(key) }

// Failed answers DoPublish: it may have been stored or not.
func (p *Publisher[B]) Failed(key event.Key) { p.read(key) }

func (p *Publisher[B]) read(key event.Key) {
	r := p.records[key]
	if r == nil || r.phase != sending {
		return
	}
	p.flying--
	p.enter(key, r, reading)
	p.reread(key, r)
}

func (p *Publisher[B]) reread(key event.Key, r *record[B]) {
	r.passed = 0
	p.effects = append(p.effects, Effect[B]{Do: DoRead, Key: key})
}

// Last answers DoRead: m is the last message at key, nil if there is none.
func (p *Publisher[B]) Last(key event.Key, m *event.Message) {
	r := p.records[key]
	if r == nil || r.phase != reading || m != nil && p.higher(*m) {
		return
	}
	if m == nil && r.passed > 0 || m != nil && r.passed > m.Seq {
		p.reread(key, r) // the follower knows better
		return
	}
	if !p.without.keeps(ruleNeverOlder) {
		r.api = r.sent // the buffer that was refused, once more
	}
	p.enter(key, r, idle)
	if m == nil {
		p.store(key, r, stored{})
	} else {
		p.adopt(key, r, *m)
	}
	p.doubt(key, r)
}

// adopt takes over what the stream holds.
func (p *Publisher[B]) adopt(key event.Key, r *record[B], m event.Message) {
	p.highest = max(p.highest, m.Version)
	p.store(key, r, found(m))
}

// found is what a message of the stream says of its key.
func found(m event.Message) stored {
	return stored{
		Object:     Object{Op: m.Op, UID: m.UID, Version: m.Version, Hash: m.Hash},
		seq:        m.Seq,
		projection: m.Projection,
	}
}
