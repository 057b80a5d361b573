package protocol

import (
	"fmt"

	"github.com/millrace-io/millrace/shared/event"
)

// SetAbsent declares that the API server does not serve the kind: whatever the
// stream holds of it is withdrawn, and bookmarks say so once it has been. The
// next Replaced ends it.
func (p *Publisher[B]) SetAbsent(version uint64) {
	_ = p.Replaced(max(version, p.highest, p.seen, 1), nil) // never older
	p.absent = true
}

// Observe takes one event of the watch, in the order of the watch. An object
// older than one observed before is ignored.
func (p *Publisher[B]) Observe(key event.Key, o Object, body B) {
	p.seen = max(p.seen, o.Version)
	p.observe(key, o, body, o.Version, o.Version)
}

// Fetched answers DoFetch. Unlike an event it says nothing of other keys: the
// watch may still owe older events of theirs.
func (p *Publisher[B]) Fetched(key event.Key, o Object, body B) {
	r := p.records[key]
	if r == nil {
		return
	}
	if r.phase == fetching && o.Version < r.api.Version {
		p.fetch(key, r) // a stale answer
		return
	}
	p.observe(key, o, body, min(o.Version, p.seen+1), o.Version)
}

// Progress takes a bookmark of the watch: everything up to version has been
// delivered.
func (p *Publisher[B]) Progress(version uint64) { p.seen = max(p.seen, version) }

// Item is one object of a list.
type Item[B any] struct {
	Key    event.Key
	Object Object
	Body   B
}

// Replaced takes a consistent list as it was at version: what it holds exists,
// everything else does not.
func (p *Publisher[B]) Replaced(version uint64, items []Item[B]) error {
	if known := max(p.highest, p.seen); version < known {
		return fmt.Errorf("listing %s: version %d, while %d is known: %w", p.kind, version, known, ErrHistory)
	}
	p.absent = false
	since := p.seen + 1
	p.seen = version
	if p.listed == 0 {
		p.listed, since = version, 1
	}
	present := make(map[event.Key]struct{}, len(items))
	for _, item := range items {
		present[item.Key] = struct{}{}
		p.observe(item.Key, item.Object, item.Body, since, version)
	}
	if !p.without.keeps(ruleStartDiff) {
		return nil
	}
	var none B
	for _, key := range sorted(p.records, func(key event.Key, _ *record[B]) bool {
		_, ok := present[key]
		return !ok
	}) {
		p.observe(key, Object{Op: event.Delete, UID: p.records[key].stored.UID, Version: version}, none, since, version)
	}
	return nil
}

// observe takes a state of the API that is known to hold at version asOf. since
// is the version of the first event that the stream lacks if it lacks this.
func (p *Publisher[B]) observe(key event.Key, o Object, body B, since, asOf uint64) {
	r := p.records[key]
	switch {
	case r == nil && !o.Op.Live():
		return // neither we nor the stream ever had it
	case r == nil:
		r = p.record(key)
	case asOf < r.api.Version && p.without.keeps(ruleNeverOlder):
		return
	}
	r.api, r.body, r.hasBody = o, body, o.Op == event.Put
	if !p.same(r) {
		p.soil(key, r, since)
	}
	if r.phase != sending && r.phase != reading {
		p.decide(key, r)
	}
}
