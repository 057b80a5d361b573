package protocol

import (
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// By says by what a role's keys are partitioned.
type By uint8

const (
	// ByKey partitions by the object's own key.
	ByKey By = iota + 1
	// ByNamespace partitions by the object's namespace.
	ByNamespace
	// Whole is every partition of a kind: a small cluster-wide input.
	Whole
)

// Scope is the part of each kind that one feed carries.
type Scope struct {
	By By
	// Partition is the slice carried; not with Whole.
	Partition int
	// Partitions is the number of partitions of the installation.
	Partitions int
}

// Need is a kind that a feed carries, and the oldest projection that will do.
type Need struct {
	Kind       event.Kind
	Projection uint32
}

// driftLimit is how many bookmarks in a row may contradict the cache before it
// is rebuilt. Unit: bookmarks, of which there is one a second. Source:
// architecture section 6.1.
const driftLimit = 10

// Replay follows one feed: what it delivers, when each kind has synced, and
// whether bookmarks go on agreeing. It keeps identities, not objects.
type Replay struct {
	scope   Scope
	kinds   map[event.Kind]*view
	number  uint64
	lastSeq uint64
	broken  bool // a gap: nothing counts before the next Begin
	drift   int
	without without
}

// view is one kind as the feed tells it.
type view struct {
	need    uint32
	entries map[event.Key]entry
	slices  []sliceView
	synced  bool
}

type entry struct {
	uid     string
	version uint64
	replay  uint64
	old     bool // of an older projection than needed
}

// sliceView is one slice of a kind: one per partition of the scope.
type sliceView struct {
	sums       event.Sums // of what this replay delivered
	epoch      uint64     // highest of a bookmark
	upto       uint64     // of the last bookmark that matched
	matched    int        // bookmarks that matched in this replay
	mismatches int        // in a row
	old        int        // objects of an older projection than needed
	synced     bool
	absent     bool
}

// Change is one key whose object the cache must now treat differently.
type Change struct {
	Kind event.Kind
	Key  event.Key
	// Gone: the object that was cached exists no more.
	Gone bool
	// Put: the delivered message holds the object now. With Gone, it is another
	// object under the same key: a deletion and a creation.
	Put bool
	// Old is the UID that is gone.
	Old string
}

// Verdict is what one delivered message means.
type Verdict struct {
	// Ignored: the message says nothing new.
	Ignored bool
	// Change is what happened to the message's key.
	Change Change
	// Swept lists the keys that a replay which has just synced did not deliver.
	Swept []Change
	// Synced: this message completed the kind.
	Synced bool
	// Matched: a bookmark that agrees with what was delivered.
	Matched bool
	// Later: Matched, and not the first of this replay for its slice, so that
	// its age is bounded by its distance from the one before.
	Later bool
	// Drifted: bookmarks contradict the cache for too long; replay.
	Drifted bool
}

// NewReplay returns a replay of the given kinds that has received nothing.
// Begin must be called before the first Deliver.
func NewReplay(scope Scope, needs []Need) *Replay {
	r := &Replay{scope: scope, kinds: make(map[event.Kind]*view, len(needs)), drift: driftLimit}
	n := 1
	if scope.By == Whole {
		n = scope.Partitions
	}
	for _, need := range needs {
		r.kinds[need.Kind] = &view{
			need:    need.Projection,
			entries: make(map[event.Key]entry),
			slices:  make([]sliceView, n),
		}
	}
	return r
}

// Begin starts a new replay: everything will be delivered again, and until it
// has been nothing counts as synced. What was known stays known.
func (r *Replay) Begin() {
	r.number++
	r.lastSeq = 0
	r.broken = false
	for _, v := range r.kinds {
		v.synced = false
		clear(v.slices)
	}
}

// Gap ends the current replay: nothing is synced until the next has completed,
// and what is still delivered before it begins is ignored.
func (r *Replay) Gap() {
	r.broken = true
	for _, v := range r.kinds {
		v.synced = false
		for i := range v.slices {
			v.slices[i].synced = false
		}
	}
}

// Synced reports whether all of kind has been delivered.
func (r *Replay) Synced(kind event.Kind) bool {
	v := r.kinds[kind]
	return v != nil && v.synced
}

// Absent reports whether the API server does not serve kind.
func (r *Replay) Absent(kind event.Kind) bool {
	v := r.kinds[kind]
	return v != nil && all(v.slices, func(s *sliceView) bool { return s.absent })
}

// Upto returns the version up to which kind is known, by matching bookmarks:
// the lowest over the slices of the scope.
func (r *Replay) Upto(kind event.Kind) uint64 {
	v := r.kinds[kind]
	if v == nil {
		return 0
	}
	lowest := v.slices[0].upto
	for i := range v.slices {
		lowest = min(lowest, v.slices[i].upto)
	}
	return lowest
}

// Objects returns how many objects of kind are known.
func (r *Replay) Objects(kind event.Kind) int {
	if v := r.kinds[kind]; v != nil {
		return len(v.entries)
	}
	return 0
}

// Lookup returns the identity known under key.
func (r *Replay) Lookup(kind event.Kind, key event.Key) (uid string, version uint64, ok bool) {
	v := r.kinds[kind]
	if v == nil {
		return "", 0, false
	}
	e, ok := v.entries[key]
	return e.uid, e.version, ok
}

// Deliver takes the next message of the feed.
func (r *Replay) Deliver(m event.Message) Verdict {
	v := r.kinds[m.Kind]
	if v == nil || r.broken || m.Seq <= r.lastSeq {
		return Verdict{Ignored: true}
	}
	r.lastSeq = m.Seq
	if m.Op == event.Bookmark {
		return r.bookmark(v, m)
	}
	return r.object(v, m)
}

func (r *Replay) object(v *view, m event.Message) Verdict {
	before, had := v.entries[m.Key]
	s := &v.slices[r.sliceOf(m.Key)]
	if had && before.replay == r.number {
		s.sums.Remove(m.Kind, m.Key, before.uid, before.version)
		if before.old {
			s.old--
		}
	}
	change := Change{Kind: m.Kind, Key: m.Key}
	if !m.Op.Live() {
		if !had {
			return Verdict{Ignored: true}
		}
		delete(v.entries, m.Key)
		change.Gone, change.Old = true, before.uid
		return Verdict{Change: change}
	}
	s.sums.Add(m.Kind, m.Key, m.UID, m.Version)
	now := entry{uid: m.UID, version: m.Version, replay: r.number}
	if m.Projection < v.need && r.without.keeps(ruleProjection) {
		// An older watcher left out what this role reads: not synced before a
		// newer one has put it right.
		now.old = true
		s.old++
		s.synced, v.synced = false, false
	}
	v.entries[m.Key] = now
	change.Put = true
	if had && before.uid != m.UID && r.without.keeps(ruleReplaced) {
		change.Gone, change.Old = true, before.uid
	}
	return Verdict{Change: change}
}

func (r *Replay) bookmark(v *view, m event.Message) Verdict {
	i := 0
	if r.scope.By == Whole {
		i = m.Slice
	}
	if m.Mark == nil || i >= len(v.slices) || r.scope.By != Whole && m.Slice != r.scope.Partition {
		return Verdict{Ignored: true}
	}
	s := &v.slices[i]
	if m.Epoch < s.epoch || m.Projection < v.need && r.without.keeps(ruleProjection) {
		return Verdict{Ignored: true}
	}
	s.epoch = m.Epoch
	if !r.agrees(s, m.Mark) {
		s.mismatches++
		return Verdict{Drifted: s.mismatches >= r.drift}
	}
	s.mismatches = 0
	s.matched++
	s.upto = max(s.upto, m.Upto)
	s.synced, s.absent = true, m.Mark.Absent
	verdict := Verdict{Matched: true, Later: s.matched > 1}
	if !v.synced && all(v.slices, func(s *sliceView) bool { return s.synced }) {
		v.synced = true
		verdict.Synced = true
		verdict.Swept = r.sweep(m.Kind, v)
	}
	return verdict
}

// agrees reports whether a bookmark's sums prove what this replay delivered.
func (r *Replay) agrees(s *sliceView, mark *event.Mark) bool {
	sums := mark.ByKey
	if r.scope.By == ByNamespace {
		sums = mark.ByNamespace
	}
	switch {
	case !r.without.keeps(ruleSums):
		return true
	case !r.without.keeps(ruleExact):
		return s.old == 0 && sums.SameObjects(s.sums)
	default:
		return s.old == 0 && sums.SameVersions(s.sums)
	}
}

func all(slices []sliceView, ok func(*sliceView) bool) bool {
	for i := range slices {
		if !ok(&slices[i]) {
			return false
		}
	}
	return true
}

// sweep forgets what this replay did not deliver.
func (r *Replay) sweep(kind event.Kind, v *view) (gone []Change) {
	if !r.without.keeps(ruleSweep) {
		return nil
	}
	for key, e := range v.entries {
		if e.replay != r.number {
			delete(v.entries, key)
			gone = append(gone, Change{Kind: kind, Key: key, Gone: true, Old: e.uid})
		}
	}
	return gone
}

func (r *Replay) sliceOf(key event.Key) int {
	if r.scope.By != Whole {
		return 0
	}
	return partition.OfKey(key, r.scope.Partitions)
}

// Write is one write of ours that the cache has to have seen before the key
// that made it is decided again.
type Write struct {
	Kind event.Kind
	Key  event.Key
	UID  string
	// Version is the resourceVersion that the write returned; unused with
	// Deleted.
	Version uint64
	Deleted bool
}

// Seen reports whether the feed has delivered w or something later.
func (r *Replay) Seen(w Write) bool {
	v := r.kinds[w.Kind]
	if v == nil {
		return true
	}
	e, ok := v.entries[w.Key]
	switch {
	case w.Deleted:
		return !ok || e.uid != w.UID
	case ok && e.version >= w.Version:
		return true
	default:
		return v.slices[r.sliceOf(w.Key)].upto >= w.Version
	}
}
