package protocol

import (
	"maps"
	"slices"

	"github.com/millrace-io/millrace/shared/event"
)

// Deep copies and canonical forms of the machines.

func (p *Publisher[B]) copy() *Publisher[B] {
	out := *p
	out.records = make(map[event.Key]*record[B], len(p.records))
	for key, r := range p.records {
		other := *r
		out.records[key] = &other
	}
	out.slices = slices.Clone(p.slices)
	out.ready = slices.Clone(p.ready)
	out.dirty = slices.Clone(p.dirty)
	out.effects = nil // always empty between steps
	if p.compare != nil {
		c := *p.compare
		c.found, c.forgot, c.bookmarks = maps.Clone(c.found), maps.Clone(c.forgot), slices.Clone(c.bookmarks)
		c.followed = maps.Clone(c.followed)
		out.compare = &c
	}
	return &out
}

func encodeObject(c *code, o Object) { c.num(uint64(o.Op), uidNumber(o.UID), o.Version, o.Hash) }

func (p *Publisher[B]) encode(c *code, keys []event.Key) {
	c.bool(p.lost, p.absent, p.started, p.compare != nil)
	c.num(p.epoch, p.seen, p.listed, p.highest)
	c.seq(p.followed)
	for _, key := range keys {
		r := p.records[key]
		if r == nil {
			c.num(99)
			continue
		}
		encodeObject(c, r.api)
		encodeObject(c, r.stored.Object)
		c.seq(r.stored.seq)
		c.num(uint64(r.stored.projection))
		if r.phase == sending || r.phase == reading {
			encodeObject(c, r.sent)
			c.seq(r.passed)
		}
		since := uint64(0)
		if r.dirty {
			since = r.since
		}
		c.num(uint64(r.phase), since)
		c.bool(r.suspect, r.hasBody, p.compare != nil && r.touched > p.compare.fence)
	}
	for i := range p.slices {
		c.bool(p.slices[i].due, p.slices[i].mark.busy)
		c.seq(p.slices[i].mark.seq)
	}
	for i, key := range p.ready {
		if r := p.records[key]; r != nil && r.phase == queued && !slices.Contains(p.ready[:i], key) {
			c.int(slices.Index(keys, key))
		}
	}
	if p.compare != nil {
		for _, key := range keys {
			m, ok := p.compare.found[key]
			_, forgot := p.compare.forgot[key]
			c.bool(ok, forgot)
			if ok {
				encodeMessage(c, &m)
			}
			if m, ok := p.compare.followed[key]; ok {
				encodeMessage(c, &m)
			}
		}
		for i := range p.compare.bookmarks {
			c.seq(p.compare.bookmarks[i].Seq)
		}
	}
}

func encodeMessage(c *code, m *event.Message) {
	if m == nil {
		c.num(98)
		return
	}
	c.num(uint64(m.Op), uidNumber(m.UID), m.Version, m.Hash, m.Epoch, uint64(m.Projection))
	c.seq(m.Seq)
	if m.Mark != nil {
		c.num(m.Upto, m.Mark.ByKey.Exact, m.Mark.ByNamespace.Exact)
		c.bool(m.Mark.Absent)
	}
}

func (r *Replay) copy() *Replay {
	out := *r
	out.kinds = make(map[event.Kind]*view, len(r.kinds))
	for kind, v := range r.kinds {
		other := *v
		other.entries, other.slices = maps.Clone(v.entries), slices.Clone(v.slices)
		out.kinds[kind] = &other
	}
	return &out
}

func (r *Replay) encode(c *code, kinds []event.Kind, keys []event.Key) {
	c.seq(r.lastSeq)
	c.bool(r.broken)
	for _, kind := range kinds {
		v := r.kinds[kind]
		for _, key := range keys {
			e, ok := v.entries[key]
			if !ok {
				c.num(97)
				continue
			}
			c.num(uidNumber(e.uid), e.version)
			c.bool(e.replay == r.number, e.old)
		}
		for i := range v.slices {
			s := &v.slices[i]
			c.num(s.epoch, s.upto)
			c.int(min(s.matched, 2))
			c.int(min(s.mismatches, r.drift))
			c.bool(s.synced, s.absent)
		}
		c.bool(v.synced)
	}
}

func (o *Ownership) copy() *Ownership {
	out := *o
	out.members, out.leases = maps.Clone(o.members), maps.Clone(o.leases)
	return &out
}

// uidOf names the object created at version.
func uidOf(version uint64) string {
	if version == 0 {
		return ""
	}
	return string(rune('A' + version - 1)) //nolint:gosec // small
}

func uidNumber(uid string) uint64 {
	if uid == "" {
		return 0
	}
	return uint64(uid[0]-'A') + 1
}
