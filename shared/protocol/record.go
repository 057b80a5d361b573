package protocol

import (
	"maps"
	"slices"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// decide chooses what becomes of a record that has nothing outstanding.
func (p *Publisher[B]) decide(key event.Key, r *record[B]) {
	switch {
	case p.same(r):
		p.settle(key, r)
	case p.superseded(r):
		// A predecessor saw further than our watch has come: the event that
		// tells us is on its way.
		p.clean(key, r)
	case r.hasBody || r.api.Op != event.Put:
		if r.phase != queued {
			p.enter(key, r, queued)
			p.ready = append(p.ready, key)
		}
	default:
		p.fetch(key, r)
	}
}

// same reports whether the stream holds what the API server does.
func (p *Publisher[B]) same(r *record[B]) bool {
	if !r.api.Op.Live() {
		return !r.stored.Op.Live()
	}
	return r.stored.Op == r.api.Op && r.stored.UID == r.api.UID &&
		r.stored.Hash == r.api.Hash && r.stored.projection == p.projection
}

// superseded reports whether the stream holds something newer than all we know
// of the key; what we know holds at least up to what the watch has delivered.
func (p *Publisher[B]) superseded(r *record[B]) bool {
	return r.stored.Version > max(r.api.Version, p.seen) && p.without.keeps(ruleNeverOlder)
}

// doubt decides on a record whose stored side turned out to be other than
// expected; until it is put right its slices get no bookmark.
func (p *Publisher[B]) doubt(key event.Key, r *record[B]) {
	if r.api.Op == 0 {
		// Not one of ours and not in the list: it does not exist, unless the
		// one who published it saw further than our watch has come.
		r.api = Object{Op: event.Delete, UID: r.stored.UID, Version: p.seen}
	}
	p.account(key, r, -1)
	r.suspect = true
	p.account(key, r, 1)
	p.decide(key, r)
}

func (p *Publisher[B]) fetch(key event.Key, r *record[B]) {
	p.enter(key, r, fetching)
	p.effects = append(p.effects, Effect[B]{Do: DoFetch, Key: key})
}

// settle makes a record clean; one of an object that is gone is forgotten as
// soon as nothing that the follower still has to deliver can look foreign.
func (p *Publisher[B]) settle(key event.Key, r *record[B]) {
	p.clean(key, r)
	if !r.api.Op.Live() && r.stored.seq <= p.followed {
		p.forget(key, r)
	}
}

func (p *Publisher[B]) clean(key event.Key, r *record[B]) {
	var none B
	p.enter(key, r, idle)
	p.account(key, r, -1)
	r.dirty, r.suspect, r.body, r.hasBody = false, false, none, false
	p.account(key, r, 1)
}

func (p *Publisher[B]) forget(key event.Key, r *record[B]) {
	delete(p.records, key)
	if c := p.compare; c != nil && r.touched > c.fence {
		c.forgot[key] = struct{}{}
	}
}

// soil notes the first event that the stream does not have.
func (p *Publisher[B]) soil(key event.Key, r *record[B], since uint64) {
	if r.dirty {
		return
	}
	r.dirty, r.since = true, since
	at := len(p.dirty)
	for at > 0 && p.dirty[at-1].since > since { // hardly ever: see Fetched
		at--
	}
	p.dirty = slices.Insert(p.dirty, at, pending{key, since})
}

// trim forgets the heads of the dirty list that have become clean.
func (p *Publisher[B]) trim() {
	for len(p.dirty) > 0 {
		head := p.dirty[0]
		if r := p.records[head.key]; r != nil && r.dirty && r.since == head.since {
			return
		}
		p.dirty = p.dirty[1:]
	}
}

// store changes what the record says of the stream, and the sums with it.
func (p *Publisher[B]) store(key event.Key, r *record[B], s stored) {
	byKey, byNamespace := p.of(key)
	if r.stored.Op.Live() {
		byKey.byKey.Remove(p.kind, key, r.stored.UID, r.stored.Version)
		byNamespace.byNamespace.Remove(p.kind, key, r.stored.UID, r.stored.Version)
	}
	r.stored = s
	if s.Op.Live() {
		byKey.byKey.Add(p.kind, key, s.UID, s.Version)
		byNamespace.byNamespace.Add(p.kind, key, s.UID, s.Version)
	}
	p.ops++
	r.touched = p.ops
}

// enter changes the phase and with it whether the slices may be marked.
func (p *Publisher[B]) enter(key event.Key, r *record[B], ph phase) {
	p.account(key, r, -1)
	r.phase = ph
	p.account(key, r, 1)
}

// account adds n to the blocked count of the record's slices if it blocks them.
func (p *Publisher[B]) account(key event.Key, r *record[B], n int) {
	if !r.suspect && r.phase != sending && r.phase != reading && r.phase != fetching {
		return
	}
	byKey, byNamespace := p.of(key)
	byKey.blocked += n
	if byNamespace != byKey {
		byNamespace.blocked += n
	}
}

func (p *Publisher[B]) of(key event.Key) (byKey, byNamespace *slice) {
	return &p.slices[partition.OfKey(key, p.partitions)], &p.slices[partition.OfNamespace(key, p.partitions)]
}

func (p *Publisher[B]) record(key event.Key) *record[B] {
	r := p.records[key]
	if r == nil {
		r = &record[B]{}
		p.records[key] = r
	}
	return r
}

// sorted returns the keys of m that keep accepts, in order, so that the same
// calls always have the same effects.
func sorted[V any](m map[event.Key]V, keep func(event.Key, V) bool) []event.Key {
	var keys []event.Key
	for key, v := range maps.All(m) {
		if keep(key, v) {
			keys = append(keys, key)
		}
	}
	slices.SortFunc(keys, event.Key.Compare)
	return keys
}
