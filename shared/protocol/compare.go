package protocol

import "github.com/millrace-io/millrace/shared/event"

// Comparison holds a headers-only snapshot of the stream against the records of
// a publisher. It finds what no acknowledgement tells: keys that a killed server
// brought back, that a rolled back or wiped one lost.
type Comparison struct {
	fence     uint64
	found     map[event.Key]event.Message
	forgot    map[event.Key]struct{} // stored and forgotten since it began
	bookmarks []event.Message
	// followed is what the follower delivered since it began: it may have
	// landed after the snapshot was taken, and passes the follower only once.
	followed map[event.Key]event.Message
}

// BeginCompare must be called before the snapshot is started, and after the
// (re)connection that is its reason. One comparison at a time.
func (p *Publisher[B]) BeginCompare() *Comparison {
	p.compare = &Comparison{
		fence:    p.ops,
		found:    make(map[event.Key]event.Message),
		forgot:   make(map[event.Key]struct{}),
		followed: make(map[event.Key]event.Message),
	}
	return p.compare
}

// Found takes one message of the snapshot. It may be called from the goroutine
// that reads the snapshot, as long as EndCompare comes after the last of them.
func (c *Comparison) Found(m event.Message) {
	m.Body = nil
	if m.Op == event.Bookmark {
		c.bookmarks = append(c.bookmarks, m)
		return
	}
	c.found[m.Key] = m
}

// EndCompare puts right what differs and returns how many keys did. Keys that
// moved since BeginCompare are left to what moved them. Before the first list
// there is nothing to put right: what was found replaces what was known.
func (p *Publisher[B]) EndCompare(c *Comparison) (differences int) {
	p.compare = nil
	if !p.without.keeps(ruleCompare) {
		return 0
	}
	for _, m := range c.bookmarks {
		p.StoredMark(m)
	}
	for key, m := range c.followed {
		if m.Seq > c.found[key].Seq {
			c.found[key] = m
		}
	}
	for _, m := range c.found {
		if p.higher(m) {
			return 0
		}
	}
	for _, key := range sorted(p.records, func(key event.Key, r *record[B]) bool { return p.differs(c, key, r) }) {
		m, ok := c.found[key]
		r := p.records[key]
		alike := !r.stored.Op.Live() && !m.Op.Live() // tombstones expire
		if ok {
			p.adopt(key, r, m)
		} else {
			p.store(key, r, stored{})
		}
		if p.listed == 0 {
			continue
		}
		if alike && p.same(r) {
			p.forget(key, r)
			continue
		}
		differences++
		p.doubt(key, r)
	}
	for _, key := range sorted(c.found, func(key event.Key, m event.Message) bool {
		_, known := p.records[key]
		_, forgot := c.forgot[key]
		return m.Op.Live() && !known && !forgot
	}) {
		r := p.record(key)
		p.adopt(key, r, c.found[key])
		if p.listed > 0 {
			differences++
			p.doubt(key, r)
		}
	}
	return differences
}

// differs reports whether the snapshot holds something else than the record
// says. A sequence alone does not tell: after a rollback it may be given again.
func (p *Publisher[B]) differs(c *Comparison, key event.Key, r *record[B]) bool {
	if r.phase != idle || r.touched > c.fence {
		return false
	}
	m, ok := c.found[key]
	return ok && found(m) != r.stored || !ok && r.stored.seq != 0
}
