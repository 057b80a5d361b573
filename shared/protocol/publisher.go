package protocol

import (
	"errors"

	"github.com/millrace-io/millrace/shared/event"
)

// ErrHistory is returned when a consistent list is older than what the watch or
// the stream has already told: etcd was restored from a backup, or this is
// another cluster.
//
// A list that began before the stream was told of a newer version looks the
// same, so the caller lists once more before it believes the error.
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
	// Fetched (a Delete at the list's version if there is none). Retried by the
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
	// passed is the highest sequence of the key that the follower delivered
	// while something was outstanding.
	passed uint64
	// touched is the operation count at which stored last changed.
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
// Replaced with a consistent list that began after it, then Observe for each
// event; after any call the effects of Next are carried out. From then on Stored
// is also told what the owner's follower of the kind's subjects delivers: a
// record of a deleted object is kept until its tombstone comes by there, or a
// comparison has passed.
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

	flying   int
	seen     uint64 // version up to which the watch has delivered
	listed   uint64 // version of the first list; zero before it
	highest  uint64 // highest version ever found in the stream
	ops      uint64
	followed uint64 // highest sequence that the follower has delivered
	compare  *Comparison
	lost     bool
	absent   bool
	started  bool

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
// has been published and acknowledged. Once true it stays true.
func (p *Publisher[B]) Started() bool {
	p.started = p.started || p.listed > 0 && p.Upto() >= p.listed
	return p.started
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

func (p *Publisher[B]) publish(key event.Key, r *record[B]) {
	p.flying++
	p.enter(key, r, sending)
	r.sent, r.passed = r.api, 0
	e := Effect[B]{Do: DoPublish, Key: key, Object: r.api, Expect: r.stored.seq, Upto: p.Upto()}
	if r.api.Op == event.Put {
		e.Body = r.body
	}
	p.effects = append(p.effects, e)
}
