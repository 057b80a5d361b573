package protocol

import (
	"maps"
	"slices"

	"github.com/millrace-io/millrace/shared/event"
)

// Comparison holds a headers-only snapshot of the stream against the records of
// a publisher. It finds what no acknowledgement tells: keys that a killed server
// brought back, that a rolled back or wiped one lost.
type Comparison struct {
	fence     uint64
	found     map[event.Key]event.Message
	forgot    map[event.Key]struct{}
	bookmarks []event.Message
}

// BeginCompare must be called before the snapshot is started, and after the
// (re)connection that is its reason. One comparison at a time.
func (p *Publisher[B]) BeginCompare() *Comparison {
	p.compare = &Comparison{
		fence:  p.ops,
		found:  make(map[event.Key]event.Message),
		forgot: make(map[event.Key]struct{}),
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

func (c *Comparison) forgotten(key event.Key) {
	if c != nil {
		c.forgot[key] = struct{}{}
	}
}

// EndCompare puts right what differs and returns how many keys did. Keys that
// moved since BeginCompare are left to what moved them.
func (p *Publisher[B]) EndCompare(c *Comparison) (differences int) {
	p.compare = nil
	for _, m := range c.bookmarks {
		p.StoredMark(m)
	}
	for _, key := range slices.SortedFunc(maps.Keys(p.records), event.Key.Compare) {
		r := p.records[key]
		if r.phase != idle || r.touched > c.fence {
			continue
		}
		m, ok := c.found[key]
		switch {
		case ok && p.higher(m):
			return differences
		case ok && m.Seq != r.stored.seq:
			p.adopt(key, r, m)
		case !ok && r.stored.seq != 0:
			p.store(key, r, stored{})
		default:
			continue
		}
		differences++
		p.resolve(key, r)
	}
	for _, key := range slices.SortedFunc(maps.Keys(c.found), event.Key.Compare) {
		m := c.found[key]
		_, known := p.records[key]
		_, forgot := c.forgot[key]
		if known || forgot || !m.Op.Live() {
			continue
		}
		if p.higher(m) {
			return differences
		}
		r := p.record(key)
		p.adopt(key, r, m)
		differences++
		p.resolve(key, r)
	}
	return differences
}
