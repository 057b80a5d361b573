package protocol

import (
	"errors"
	"fmt"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// ErrHistory is returned when a consistent list is older than what the stream
// already holds: etcd was restored from a backup, or this is another cluster.
var ErrHistory = errors.New("the API server's history is older than the stream's")

// Object is one state of one object of the API, reduced to what decides whether
// it must be published.
type Object struct {
	// Op is Put, Opaque or Delete; zero means nothing is known.
	Op      event.Op
	UID     string
	Version uint64
	// Hash is that of the projected body.
	Hash uint64
}

// Do is the kind of an effect.
type Do uint8

const (
	// DoPublish: publish Object with Body at Key, expecting Expect; answer with
	// Acked, Refused or Failed.
	DoPublish Do = iota + 1
	// DoRead: read the last message of Key's subject; answer with Last. Retried
	// by the caller until it succeeds.
	DoRead
	// DoFetch: read the object Key live from the API server; answer with
	// Observe (a Delete at the list's version if there is none). Retried by the
	// caller until it succeeds.
	DoFetch
	// DoMark: publish Mark as the bookmark of Slice, expecting Expect; answer
	// with MarkAcked or MarkRefused.
	DoMark
	// DoReadMark: read the last bookmark of Slice; answer with MarkLast.
	DoReadMark
)

// Effect is something the publisher asks its caller to do. Effects must be
// carried out in order.
type Effect[B any] struct {
	Do     Do
	Key    event.Key
	Object Object
	Body   B
	Expect uint64
	Upto   uint64
	Slice  int
	Mark   event.Mark
}

type phase uint8

const (
	idle     phase = iota // nothing to do, or waiting for the watch to catch up
	queued                // differs from the stream; waits for its turn
	sending               // published, not acknowledged
	reading               // the last message of the subject is being read
	fetching              // the object is being read from the API server
)

// stored is what the stream holds at one key, as far as the publisher knows.
type stored struct {
	Object
	seq        uint64
	projection uint32
}

// record is all that is remembered of one key.
type record[B any] struct {
	api     Object // newest state observed
	stored  stored
	sent    Object // content of the outstanding publication
	body    B      // of api, while it differs from stored
	hasBody bool
	phase   phase
	// suspect: the stream was found to hold something else than expected; no
	// bookmark of the slice until it is put right.
	suspect bool
	// since is the version of the first event not yet published; only while
	// the record is dirty.
	since uint64
	dirty bool
	// touched is the operation count at which the record last became idle.
	touched uint64
}

// slice is the account of one partition of the kind.
type slice struct {
	byKey, byNamespace event.Sums
	blocked            int // records that forbid a bookmark
	due                bool
	mark               markState
}

type markState struct {
	counter uint64
	seq     uint64
	busy    bool
}

// Publisher decides what the watcher of one kind publishes. B is the body as
// the caller wants it back, held only while it is not yet in the stream.
//
// Order of use: Stored for every message of a headers-only snapshot, then
// Replaced with a consistent list, then Observe for each event; after any call
// the effects of Next are carried out.
type Publisher[B any] struct {
	kind       event.Kind
	partitions int
	epoch      uint64
	projection uint32
	limit      int

	records map[event.Key]*record[B]
	slices  []slice
	ready   []event.Key
	dirty   []pending // in order of since; lazily cleaned
	effects []Effect[B]

	flying  int
	seen    uint64 // version up to which the watch has delivered
	listed  uint64 // version of the first list; zero before it
	highest uint64 // highest version ever found in the stream
	ops     uint64
	dropped uint64 // highest sequence of a record that was forgotten
	compare *Comparison
	lost    bool
	absent  bool

	without without
}

type pending struct {
	key   event.Key
	since uint64
}

// NewPublisher returns a publisher that has seen nothing. epoch is that of its
// lease on the kind, projection the version of its projection, limit the number
// of publications that may be outstanding at once.
func NewPublisher[B any](kind event.Kind, partitions int, epoch uint64, projection uint32, limit int) *Publisher[B] {
	return &Publisher[B]{
		kind:       kind,
		partitions: partitions,
		epoch:      epoch,
		projection: projection,
		limit:      limit,
		records:    make(map[event.Key]*record[B]),
		slices:     make([]slice, partitions),
	}
}

// Lost reports whether a higher epoch was met: the kind belongs to another.
func (p *Publisher[B]) Lost() bool { return p.lost }

// Started reports whether the difference between the first list and the stream
// has been published and acknowledged.
func (p *Publisher[B]) Started() bool {
	return p.absent || p.listed > 0 && p.Upto() >= p.listed
}

// Objects returns how many live objects the stream holds.
func (p *Publisher[B]) Objects() int {
	n := 0
	for i := range p.slices {
		n += int(p.slices[i].byKey.Count) //nolint:gosec // a count of map entries
	}
	return n
}

// Dirty returns how many keys wait to be published.
func (p *Publisher[B]) Dirty() int {
	p.trim()
	return len(p.dirty)
}

// Upto returns the version up to which everything the watch delivered has been
// acknowledged by the stream.
func (p *Publisher[B]) Upto() uint64 {
	p.trim()
	if len(p.dirty) > 0 {
		return p.dirty[0].since - 1
	}
	return p.seen
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

// SetAbsent declares that the API server does not serve the kind: whatever the
// stream holds of it is withdrawn, and bookmarks say so.
func (p *Publisher[B]) SetAbsent(version uint64) {
	p.absent = true
	_ = p.Replaced(max(version, p.highest), nil)
}

// Observe takes one event of the watch, in the order of the watch. An object
// older than one observed before is ignored.
func (p *Publisher[B]) Observe(key event.Key, o Object, body B) {
	p.seen = max(p.seen, o.Version)
	p.observe(key, o, body, o.Version)
}

func (p *Publisher[B]) observe(key event.Key, o Object, body B, since uint64) {
	r := p.record(key)
	if o.Version < r.api.Version && p.without.keeps(ruleNeverOlder) {
		return
	}
	r.api, r.body, r.hasBody = o, body, o.Op == event.Put
	if p.same(r) {
		if r.phase == idle || r.phase == queued || r.phase == fetching {
			p.settle(key, r)
		}
		return
	}
	p.soil(key, r, since)
	if r.phase == idle || r.phase == fetching {
		p.enqueue(key, r)
	}
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
	if version < p.highest {
		return fmt.Errorf("listing %s: version %d, while the stream holds %d: %w", p.kind, version, p.highest, ErrHistory)
	}
	since := p.seen + 1
	p.seen = max(p.seen, version)
	if p.listed == 0 {
		p.listed, since = version, 1
	}
	present := make(map[event.Key]struct{}, len(items))
	for _, item := range items {
		present[item.Key] = struct{}{}
		p.observe(item.Key, item.Object, item.Body, since)
	}
	var none B
	for key, r := range p.records {
		if _, ok := present[key]; ok || r.api.Op == event.Delete || !p.without.keeps(ruleStartDiff) {
			continue
		}
		p.observe(key, Object{Op: event.Delete, UID: r.stored.UID, Version: version}, none, since)
	}
	return nil
}

// Stored takes a message of the snapshot taken before the first list, and after
// it each message that the owner's follower delivers.
func (p *Publisher[B]) Stored(m event.Message) {
	if p.higher(m) || m.Op == event.Bookmark {
		return
	}
	if p.listed == 0 {
		r := p.record(m.Key)
		p.adopt(m.Key, r, m)
		return
	}
	r, known := p.records[m.Key]
	switch {
	case !p.without.keeps(ruleFollow):
	case known && (r.phase != idle || m.Seq <= r.stored.seq):
	case !known && (m.Seq <= p.dropped || !m.Op.Live()):
	default:
		r = p.record(m.Key)
		p.adopt(m.Key, r, m)
		p.resolve(m.Key, r)
	}
}

// StoredMark takes a bookmark of the snapshot or the follower.
func (p *Publisher[B]) StoredMark(m event.Message) {
	if !p.higher(m) {
		s := &p.slices[m.Slice]
		s.mark.seq = max(s.mark.seq, m.Seq)
	}
}

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
	p.flying--
	p.store(key, r, stored{Object: r.sent, seq: seq, projection: p.projection})
	p.next(key, r)
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
	p.effects = append(p.effects, Effect[B]{Do: DoRead, Key: key})
}

// Last answers DoRead: m is the last message at key, nil if there is none.
func (p *Publisher[B]) Last(key event.Key, m *event.Message) {
	r := p.records[key]
	if r == nil || r.phase != reading {
		return
	}
	if m == nil {
		p.store(key, r, stored{})
	} else {
		if p.higher(*m) {
			return
		}
		p.adopt(key, r, *m)
	}
	p.resolve(key, r)
}

// adopt takes over what the stream holds.
func (p *Publisher[B]) adopt(key event.Key, r *record[B], m event.Message) {
	p.highest = max(p.highest, m.Version)
	p.store(key, r, stored{
		Object:     Object{Op: m.Op, UID: m.UID, Version: m.Version, Hash: m.Hash},
		seq:        m.Seq,
		projection: m.Projection,
	})
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
}

// resolve decides what becomes of a record whose stored side turned out to be
// other than expected.
func (p *Publisher[B]) resolve(key event.Key, r *record[B]) {
	if r.api.Op == 0 {
		// Not one of ours and not in the list: it does not exist, unless the
		// one who published it saw further than our watch has come.
		r.api = Object{Op: event.Delete, UID: r.stored.UID, Version: p.seen}
	}
	switch {
	case p.same(r):
		p.settle(key, r)
	case r.stored.Version > r.api.Version && p.without.keeps(ruleNeverOlder):
		// A predecessor saw further than our watch has come: the event that
		// tells us is on its way.
		p.enter(key, r, idle)
		r.suspect = false
	case r.hasBody || r.api.Op != event.Put:
		p.doubt(key, r)
		p.enqueue(key, r)
	default:
		p.doubt(key, r)
		p.enter(key, r, fetching)
		p.effects = append(p.effects, Effect[B]{Do: DoFetch, Key: key})
	}
}

func (p *Publisher[B]) doubt(key event.Key, r *record[B]) {
	p.account(key, r, -1)
	r.suspect = true
	p.account(key, r, 1)
}

// next goes on after a publication was acknowledged.
func (p *Publisher[B]) next(key event.Key, r *record[B]) {
	if p.same(r) {
		p.settle(key, r)
		return
	}
	p.enqueue(key, r)
}

// same reports whether the stream holds what the API server does.
func (p *Publisher[B]) same(r *record[B]) bool {
	if !r.api.Op.Live() {
		return !r.stored.Op.Live()
	}
	return r.stored.Op == r.api.Op && r.stored.UID == r.api.UID &&
		r.stored.Hash == r.api.Hash && r.stored.projection == p.projection
}

// soil notes the first event that the stream does not have.
func (p *Publisher[B]) soil(key event.Key, r *record[B], since uint64) {
	if r.dirty {
		return
	}
	r.dirty, r.since = true, since
	p.dirty = append(p.dirty, pending{key, since})
}

// settle makes a record clean; one of an object that is gone is forgotten.
func (p *Publisher[B]) settle(key event.Key, r *record[B]) {
	var none B
	p.enter(key, r, idle)
	p.account(key, r, -1)
	r.dirty, r.suspect, r.body, r.hasBody = false, false, none, false
	p.account(key, r, 1)
	p.ops++
	r.touched = p.ops
	if !r.api.Op.Live() {
		p.dropped = max(p.dropped, r.stored.seq)
		delete(p.records, key)
		p.compare.forgotten(key) // a nil comparison takes no note
	}
}

func (p *Publisher[B]) enqueue(key event.Key, r *record[B]) {
	p.enter(key, r, queued)
	p.ready = append(p.ready, key)
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
	s := &p.slices[i]
	s.mark.busy = false
	if m == nil {
		s.mark.seq = 0
		return
	}
	if !p.higher(*m) {
		s.mark.seq = m.Seq
	}
}

// Next returns what is to be done now, in order. It returns nothing once the
// kind is lost.
func (p *Publisher[B]) Next() []Effect[B] {
	if p.lost {
		return nil
	}
	p.marks()
	p.publications()
	p.marks()
	out := p.effects
	p.effects = nil
	return out
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
		p.effects = append(p.effects, Effect[B]{
			Do: DoMark, Slice: i, Expect: s.mark.seq, Upto: p.Upto(),
			Mark: event.Mark{Counter: s.mark.counter, Absent: p.absent, ByKey: s.byKey, ByNamespace: s.byNamespace},
		})
	}
}

// publications emits queued keys while the window is open. A key whose slice
// owes a bookmark and is not quiet yet waits.
func (p *Publisher[B]) publications() {
	var held []event.Key
	for len(p.ready) > 0 && p.flying < p.limit {
		key := p.ready[0]
		p.ready = p.ready[1:]
		r := p.records[key]
		if r == nil || r.phase != queued {
			continue
		}
		if p.owes(key, r) {
			held = append(held, key)
			continue
		}
		p.publish(key, r)
	}
	if len(held) > 0 {
		p.ready = append(held, p.ready...)
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

func (p *Publisher[B]) publish(key event.Key, r *record[B]) {
	p.flying++
	p.enter(key, r, sending)
	r.sent = r.api
	e := Effect[B]{Do: DoPublish, Key: key, Object: r.api, Expect: r.stored.seq, Upto: p.Upto()}
	if r.api.Op == event.Put {
		e.Body = r.body
	}
	p.effects = append(p.effects, e)
}
