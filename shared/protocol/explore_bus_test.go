package protocol

import (
	"fmt"
	"slices"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// The bus world: an API server with a version per change, a stream that keeps
// the last message of each subject, watchers that run Publisher over both, and
// readers that run Replay over the stream.
//
// A publication travels through a first-in-first-out pipe, lands (compare and
// set), and its answer travels back. What times out, or was under way when a
// connection broke, counts as failed for the publisher and may still land at any
// later time, even after a wipe (a stream that is deleted and made anew does not
// break connections). Only a rollback, which is a server that lost power, takes
// with it what was under way, unless a client-side buffer sends it again.
//
// What a bookmark means, and what is checked of each one that a reader accepts
// ("synced", "matched"): with Upto = u, for every key of the slice there is a
// version v >= u, not later than now, at which the API held exactly what the
// cache holds: nothing, or this UID with this body. So a synced cache holds no
// object that was gone at u and stayed so, and lacks none that existed at u and
// still does; different keys may be of different versions.

type act int8

const (
	actWrite act = iota
	actWatch
	actLand
	actAck
	actAnswer
	actStart
	actSnapshot
	actCompared
	actFollow
	actMark
	actDeliver
	actBegin
	actAsked
	actDecide
	actApply
	// From here on something goes wrong, or somebody else takes over.
	actTimeout
	actLate
	actReset
	actTakeover
	actCrash
	actRelist
	actExpire
	actKill
	actKillQuietly
	actRollback
	actWipe
	actAgain
	actClaim
	actDrop
	actLost
	actSweep
	actFinal
)

// busConfig says how large a world is and how often what may go wrong.
type busConfig struct {
	kinds, keys, partitions, watchers, readers int
	scope                                      By
	atomic                                     bool // a publication and its answer are one step
	unfollowed                                 bool // no follower
	eager                                      bool // reads are answered at once
	prompt                                     bool // an answer comes with the landing
	marks                                      int8 // bookmarks before healing
	writes                                     int  // changes of the first kind
	touches                                    int  // changes that no projection shows
	projections                                [2]uint32
	need                                       uint32
	// members reconcile the first kind into the second; see explore_member_test.go.
	members int
	alone   bool // a claim comes only after a release
	names   int  // how many names an output may have

	late, resets, takeovers, crashes, relists, expiries, kills, quiet, rollbacks, wipes, again, claims int8

	without without
}

// budget counts what may still go wrong.
type budget struct {
	writes, touches, late, resets, takeovers, crashes, relists, expiries, kills, quiet, rollbacks, wipes, again, claims, marks int8
}

type change struct {
	kind, key int8
	uid       uint64 // 0: deleted
	body      uint64
}

type pub struct {
	sub    int8
	m      *event.Message
	expect uint64
	since  bool // given up after a rollback: it may stand until it is corrected
}

type ack struct {
	sub int8
	seq uint64 // 0: refused
}

type chore struct {
	do  Do
	at  int8 // key or slice
	got bool
	obj Object
}

type stage int8

const (
	off stage = iota
	created
	snapshotted
	running
)

type watcher struct {
	p        *Publisher[uint64]
	kind     int8
	stage    stage
	at       uint64 // version up to which the watch has delivered
	pipe     []pub
	acks     []ack
	chores   []chore
	followAt uint64
	snap     bool // the running comparison has its snapshot
}

type cached struct{ uid, version, body, projection uint64 }

type reader struct {
	r       *Replay
	cache   [][]cached // by kind, key
	index   uint64     // bits of the UIDs that exist, by what verdicts told
	at      uint64
	begun   bool
	drifted uint8  // bits of the slices that a replay did not put right
	from    uint64 // version of the API at the last Begin
	member  member
}

type undo struct {
	sub         int8
	prev, ghost *event.Message
}

type bus struct {
	cfg      *busConfig
	left     budget
	log      []change
	last     []*event.Message // by subject
	ghosts   []*event.Message // by subject: what a kill brings back
	seq      uint64
	undo     []undo
	late     []pub
	watchers []watcher
	readers  []reader
	epochs   uint64
	asked    bool // a reader asks for a comparison
	faulty   bool // something went wrong before
	rolled   bool // the stream was rolled back before
	turn     int8 // of healing bookmarks
	swept    bool // healing has let every reader replay once more
	final    bool // healing has sent a last bookmark
	names    int8 // generated so far
	acts     int8 // writes by members
}

var (
	exploreKinds = []event.Kind{"in", "out"}
	exploreKeys  = []event.Key{{Name: "a"}, {Name: "b"}, {Name: "c"}}
)

func newBus(cfg *busConfig) *bus {
	w := &bus{cfg: cfg, left: budget{
		writes: int8(cfg.writes), touches: int8(cfg.touches), late: cfg.late, resets: cfg.resets, //nolint:gosec // small
		takeovers: cfg.takeovers, crashes: cfg.crashes, relists: cfg.relists, expiries: cfg.expiries, kills: cfg.kills,
		quiet: cfg.quiet, rollbacks: cfg.rollbacks, wipes: cfg.wipes, again: cfg.again, claims: cfg.claims, marks: cfg.marks,
	}}
	w.log = []change{{kind: -1}} // something always happened before
	subjects := cfg.kinds * (cfg.keys + cfg.partitions)
	w.last, w.ghosts = make([]*event.Message, subjects), make([]*event.Message, subjects)
	w.watchers = make([]watcher, cfg.watchers)
	for i := range cfg.kinds {
		w.takeover(int8(i), int8(i)) //nolint:gosec // small
		w.startAll(i)
	}
	for range max(cfg.readers, cfg.members) {
		needs := make([]Need, cfg.kinds)
		cache := make([][]cached, cfg.kinds)
		for k := range needs {
			needs[k] = Need{Kind: exploreKinds[k], Projection: cfg.need}
			cache[k] = make([]cached, cfg.keys)
		}
		r := reader{r: NewReplay(Scope{By: cfg.scope, Partitions: cfg.partitions}, needs), cache: cache}
		r.r.drift = 2
		r.r.without = cfg.without
		r.r.Gap()
		w.readers = append(w.readers, r)
	}
	return w
}

// startAll brings a watcher up with nothing to do.
func (w *bus) startAll(i int) {
	x := &w.watchers[i]
	for x.stage != running {
		w.start(x)
	}
}

func (w *bus) clone() world {
	out := *w
	out.log = slices.Clone(w.log)
	out.last, out.ghosts = slices.Clone(w.last), slices.Clone(w.ghosts)
	out.undo, out.late = slices.Clone(w.undo), slices.Clone(w.late)
	out.watchers = slices.Clone(w.watchers)
	for i := range out.watchers {
		x := &out.watchers[i]
		if x.stage == off {
			continue
		}
		x.p = x.p.copy()
		x.pipe, x.acks, x.chores = slices.Clone(x.pipe), slices.Clone(x.acks), slices.Clone(x.chores)
	}
	out.readers = slices.Clone(w.readers)
	for i := range out.readers {
		r := &out.readers[i]
		r.r = r.r.copy()
		r.cache = slices.Clone(r.cache)
		for k := range r.cache {
			r.cache[k] = slices.Clone(r.cache[k])
		}
	}
	return &out
}

// The API server.

func (w *bus) now() uint64 { return uint64(len(w.log)) }

// at returns what the API holds under a key at version v.
func (w *bus) at(kind, key int8, v uint64) (c change, version uint64) {
	for i := int(v) - 1; i >= 0; i-- { //nolint:gosec // small
		if w.log[i].kind == kind && w.log[i].key == key {
			return w.log[i], uint64(i) + 1 //nolint:gosec // small
		}
	}
	return change{kind: kind, key: key}, 0
}

func (w *bus) object(kind, key int8, v uint64) Object {
	c, version := w.at(kind, key, v)
	if c.uid == 0 {
		return Object{Op: event.Delete, Version: version}
	}
	return Object{Op: event.Put, UID: uidOf(c.uid), Version: version, Hash: c.body}
}

// put changes an object; body 0 deletes it.
func (w *bus) put(kind, key int8, body uint64) (version uint64) {
	c, _ := w.at(kind, key, w.now())
	next := change{kind: kind, key: key, uid: c.uid, body: body}
	switch {
	case body == 0:
		next.uid = 0
	case c.uid == 0:
		next.uid = w.now() + 1
	}
	w.log = append(w.log, next)
	return w.now()
}

// The stream.

func (w *bus) subject(kind, key int8) int8 {
	return kind*int8(w.cfg.keys+w.cfg.partitions) + key //nolint:gosec // small
}

func (w *bus) markSubject(kind int8, i int) int8 {
	return w.subject(kind, int8(w.cfg.keys+i)) //nolint:gosec // small
}

func (w *bus) store(p pub) (seq uint64, violation string) {
	prev := w.last[p.sub]
	var stands uint64
	if prev != nil {
		stands = prev.Seq
	}
	if stands != p.expect && w.cfg.without.keeps(ruleCAS) {
		return 0, ""
	}
	w.seq++
	m := *p.m
	m.Seq = w.seq
	if w.left.rollbacks > 0 {
		w.undo = append(w.undo, undo{p.sub, prev, w.ghosts[p.sub]})
		if len(w.undo) > 2 {
			w.undo = slices.Clone(w.undo[1:])
		}
	}
	switch {
	case w.cfg.expiries == 0:
	case m.Op.Live():
		w.ghosts[p.sub] = nil
	case prev != nil && prev.Op.Live():
		w.ghosts[p.sub] = prev
	}
	w.last[p.sub] = &m
	if prev != nil && m.Op != event.Bookmark && m.Version < prev.Version {
		return m.Seq, fmt.Sprintf("in the stream, version %d of %s stands where version %d stood", m.Version, m.Key, prev.Version)
	}
	return m.Seq, ""
}

// after returns the next message above seq.
func (w *bus) after(seq uint64, want func(*event.Message) bool) *event.Message {
	var next *event.Message
	for _, m := range w.last {
		if m != nil && m.Seq > seq && (next == nil || m.Seq < next.Seq) && want(m) {
			next = m
		}
	}
	return next
}

func (w *bus) ofKind(kind int8) func(*event.Message) bool {
	return func(m *event.Message) bool { return m.Kind == exploreKinds[kind] }
}

// The watchers.

func (w *bus) takeover(slot, kind int8) {
	w.epochs++
	projection := max(w.cfg.projections[0], 1)
	if w.epochs > uint64(w.cfg.kinds) && w.cfg.projections[1] > 0 { //nolint:gosec // small
		projection = w.cfg.projections[(w.epochs-uint64(w.cfg.kinds))%2] //nolint:gosec // small
	}
	p := NewPublisher[uint64](exploreKinds[kind], w.cfg.partitions, w.epochs, projection, 2)
	p.without = w.cfg.without
	w.watchers[slot] = watcher{p: p, kind: kind, stage: created}
}

func (w *bus) start(x *watcher) {
	if x.stage == created {
		for _, m := range w.last {
			if m != nil && m.Kind == exploreKinds[x.kind] {
				if m.Op == event.Bookmark {
					x.p.StoredMark(*m)
				} else {
					x.p.Stored(*m)
				}
			}
		}
		x.followAt = w.seq
		x.stage = snapshotted
		return
	}
	w.list(x)
	x.stage = running
}

func (w *bus) list(x *watcher) {
	var items []Item[uint64]
	for k := range w.keys() {
		if o := w.object(x.kind, k, w.now()); o.Op.Live() {
			items = append(items, Item[uint64]{Key: exploreKeys[k], Object: o, Body: o.Hash})
		}
	}
	if err := x.p.Replaced(w.now(), items); err != nil {
		panic(err)
	}
	x.at = w.now()
}

func (w *bus) keys() func(func(int8) bool) {
	return func(yield func(int8) bool) {
		for k := range int8(w.cfg.keys) { //nolint:gosec // small
			if !yield(k) {
				return
			}
		}
	}
}

// drain carries out what the publisher wants.
func (w *bus) drain(x *watcher) {
	for _, e := range x.p.Next() {
		at := int8(slices.Index(exploreKeys, e.Key)) //nolint:gosec // small
		switch e.Do {
		case DoPublish:
			x.pipe = append(x.pipe, pub{w.subject(x.kind, at), &event.Message{
				Kind: exploreKinds[x.kind], Key: e.Key, Op: e.Object.Op, UID: e.Object.UID, Version: e.Object.Version,
				Hash: e.Object.Hash, Upto: e.Upto, Epoch: x.p.epoch, Projection: x.p.projection,
			}, e.Expect, false})
		case DoMark:
			mark := e.Mark
			x.pipe = append(x.pipe, pub{w.markSubject(x.kind, e.Slice), &event.Message{
				Kind: exploreKinds[x.kind], Op: event.Bookmark, Upto: e.Upto, Epoch: x.p.epoch,
				Projection: x.p.projection, Slice: e.Slice, Mark: &mark,
			}, e.Expect, false})
		case DoReadMark:
			x.chores = append(x.chores, chore{do: e.Do, at: int8(e.Slice)}) //nolint:gosec // small
		default:
			x.chores = append(x.chores, chore{do: e.Do, at: at})
		}
	}
	if x.p.Lost() {
		*x = watcher{}
	}
	if w.cfg.eager && len(x.chores) > 0 {
		for len(x.chores) > 0 {
			w.answer(x)
		}
		w.drain(x)
	}
}

func (w *bus) fail(x *watcher, p pub) {
	if p.m.Op == event.Bookmark {
		x.p.MarkRefused(p.m.Slice)
	} else {
		x.p.Failed(p.m.Key)
	}
}

// reset breaks a watcher's connection and lets it reconnect.
func (w *bus) reset(x *watcher) {
	if x.stage == off {
		return
	}
	for _, a := range x.acks {
		w.fail(x, pub{sub: a.sub, m: w.nameOf(a.sub)})
	}
	for _, p := range x.pipe {
		w.fail(x, p)
	}
	w.overdue(x.pipe...)
	x.pipe, x.acks = nil, nil
	if w.cfg.without.keeps(ruleCompare) {
		x.p.BeginCompare()
		x.snap = false
	}
}

// overdue leaves publications under way that nobody waits for any more.
func (w *bus) overdue(pubs ...pub) {
	for _, p := range pubs {
		p.since = w.rolled
		w.late = append(w.late, p)
	}
}

// nameOf returns a message that names a subject.
func (w *bus) nameOf(sub int8) *event.Message {
	at := int(sub) % (w.cfg.keys + w.cfg.partitions)
	if at >= w.cfg.keys {
		return &event.Message{Op: event.Bookmark, Slice: at - w.cfg.keys}
	}
	return &event.Message{Op: event.Put, Key: exploreKeys[at]}
}

// serverDown breaks every connection and ends every feed.
func (w *bus) serverDown() {
	for i := range w.watchers {
		w.reset(&w.watchers[i])
		w.watchers[i].followAt = 0
	}
	for i := range w.readers {
		w.readers[i].r.Gap()
		w.readers[i].begun = false
	}
}

func (w *bus) revive() {
	for i, g := range w.ghosts {
		if g != nil && w.last[i] == nil {
			w.last[i] = g
		}
	}
}

func (w *bus) answer(x *watcher) {
	c := &x.chores[0]
	switch {
	case c.do == DoFetch && !c.got:
		c.got = true
		c.obj = w.object(x.kind, c.at, w.now())
		if c.obj.Op == event.Delete {
			c.obj.Version = w.now() // that of the list which lacks it
		}
		return
	case c.do == DoFetch:
		x.p.Fetched(exploreKeys[c.at], c.obj, c.obj.Hash)
	case c.do == DoRead:
		x.p.Last(exploreKeys[c.at], w.last[w.subject(x.kind, c.at)])
	default:
		x.p.MarkLast(int(c.at), w.last[w.markSubject(x.kind, int(c.at))])
	}
	x.chores = slices.Clone(x.chores[1:])
}

func (w *bus) watch(x *watcher) {
	x.at++
	c := w.log[x.at-1]
	if c.kind != x.kind {
		x.p.Progress(x.at)
		return
	}
	o := Object{Op: event.Put, UID: uidOf(c.uid), Version: x.at, Hash: c.body}
	if c.uid == 0 {
		before, _ := w.at(c.kind, c.key, x.at-1)
		o = Object{Op: event.Delete, UID: uidOf(before.uid), Version: x.at}
	}
	x.p.Observe(exploreKeys[c.key], o, c.body)
}

func (w *bus) land(x *watcher) (violation string) {
	p := x.pipe[0]
	x.pipe = slices.Clone(x.pipe[1:])
	seq, violation := w.store(p)
	if w.rolled {
		violation = "" // see actRollback
	}
	x.acks = append(x.acks, ack{p.sub, seq})
	if w.cfg.prompt {
		w.ack(x)
	}
	return violation
}

func (w *bus) ack(x *watcher) {
	a := x.acks[0]
	x.acks = slices.Clone(x.acks[1:])
	at := int(a.sub) % (w.cfg.keys + w.cfg.partitions)
	switch mark := at >= w.cfg.keys; {
	case mark && a.seq == 0:
		x.p.MarkRefused(at - w.cfg.keys)
	case mark:
		x.p.MarkAcked(at-w.cfg.keys, a.seq)
	case a.seq == 0:
		x.p.Refused(exploreKeys[at])
	default:
		x.p.Acked(exploreKeys[at], a.seq)
	}
}

// flush makes a publication and all that follows one step.
func (w *bus) flush(x *watcher) (violation string) {
	for w.drain(x); x.stage != off && len(x.pipe)+len(x.acks)+len(x.chores) > 0; w.drain(x) {
		switch {
		case len(x.acks) > 0:
			w.ack(x)
		case len(x.pipe) > 0:
			if bad := w.land(x); bad != "" {
				return bad
			}
		default:
			w.answer(x)
		}
	}
	return ""
}

// The readers.

func (w *bus) begin(r *reader) {
	r.r.Begin()
	r.at, r.begun, r.from = 0, true, w.now()
}

func always(*event.Message) bool { return true }

func (w *bus) deliver(i int8, bookmarksFirst bool) (violation string) {
	r := &w.readers[i]
	m := w.after(r.at, always)
	if bookmarksFirst {
		m = w.after(r.at, func(m *event.Message) bool { return m.Op == event.Bookmark })
	}
	synced := r.r.Synced(m.Kind)
	var v Verdict
	if bookmarksFirst {
		at := r.r.lastSeq
		v = r.r.Deliver(*m)
		r.r.lastSeq = at
	} else {
		r.at = m.Seq
		v = r.r.Deliver(*m)
	}
	kind := int8(slices.Index(exploreKinds, m.Kind)) //nolint:gosec // small
	if v.Change.Put || v.Change.Gone {
		w.change(i, kind, v.Change, m)
	}
	for _, c := range v.Swept {
		w.change(i, kind, c, nil)
	}
	if v.Synced {
		r.member.queue = true
	}
	if v.Matched {
		r.agree(m.Slice, true)
	}
	if v.Drifted && w.cfg.without.keeps(ruleAsk) {
		if r.drifted&(1<<m.Slice) != 0 {
			w.asked = true
			r.agree(m.Slice, true) // where that does not help either, the next remedy is a replay
		} else {
			r.agree(m.Slice, false)
			r.begun = false
			r.r.Gap()
		}
	}
	// A reader that lags behind may miss what was superseded ahead of it; one
	// that has received all there is may not.
	if m.Op == event.Bookmark && synced && !w.faulty && !v.Matched && !v.Ignored && m.Seq == w.seq {
		return "the newest bookmark contradicts a complete cache though nothing went wrong"
	}
	if v.Matched {
		if bad := w.proved(r, kind, m); bad != "" {
			return bad
		}
	}
	return w.consistent(r)
}

// agree notes per slice whether bookmarks agree, as shared/cache does.
func (r *reader) agree(slice int, ok bool) {
	if ok {
		r.drifted &^= 1 << slice
	} else {
		r.drifted |= 1 << slice
	}
}

func (w *bus) change(i, kind int8, c Change, m *event.Message) {
	r := &w.readers[i]
	key := slices.Index(exploreKeys, c.Key)
	if c.Gone {
		r.index &^= 1 << uidNumber(c.Old)
		r.cache[kind][key] = cached{}
	}
	if c.Put {
		r.index |= 1 << uidNumber(m.UID)
		r.cache[kind][key] = cached{uidNumber(m.UID), m.Version, m.Hash, uint64(m.Projection)}
	}
	r.member.queue = true
}

// proved checks what a bookmark that was accepted says.
func (w *bus) proved(r *reader, kind int8, m *event.Message) string {
	if !r.r.Synced(m.Kind) {
		return "" // its entries of earlier replays are not swept yet
	}
	for k := range w.keys() {
		if w.cfg.scope == Whole && partition.OfKey(exploreKeys[k], w.cfg.partitions) != m.Slice {
			continue
		}
		has, fits := r.cache[kind][k], false
		for v := m.Upto; v <= w.now() && !fits; v++ {
			c, _ := w.at(kind, k, v)
			fits = c.uid == has.uid && (c.uid == 0 || c.body == has.body)
		}
		if !fits {
			return fmt.Sprintf("at a bookmark up to %d the cache holds %s, which the API never did since", m.Upto, w.show(k, has))
		}
	}
	return ""
}

func (w *bus) show(k int8, c cached) string {
	if c.uid == 0 {
		return "no " + exploreKeys[k].Name
	}
	return fmt.Sprintf("%s with UID %s, version %d, body %d", exploreKeys[k].Name, uidOf(c.uid), c.version, c.body)
}

func (w *bus) consistent(r *reader) string {
	var index uint64
	for kind := range r.cache {
		for _, c := range r.cache[kind] {
			if c.uid != 0 {
				index |= 1 << c.uid
			}
			if c.uid != 0 && c.projection < uint64(w.cfg.need) && r.r.Synced(exploreKinds[kind]) {
				return "a synced cache holds an object of an older projection than the role needs"
			}
		}
	}
	if index != r.index {
		return "what the verdicts told of UIDs is not what the cache holds"
	}
	return ""
}
