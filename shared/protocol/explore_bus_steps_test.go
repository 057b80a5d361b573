package protocol

import (
	"fmt"

	"github.com/millrace-io/millrace/shared/event"
)

// What may happen in the bus world.

func (w *bus) steps(out []step) []step {
	add := func(ok bool, what act, a, b int8) {
		if ok {
			out = append(out, step{what, a, b})
		}
	}
	inputs := int8(w.cfg.keys) //nolint:gosec // small
	if w.cfg.members > 0 {
		inputs = 1
	}
	for k := range inputs {
		exists := w.object(0, k, w.now()).Op.Live()
		add(w.left.writes > 0, actWrite, k, 0)
		add(w.left.writes > 0 && exists, actWrite, k, 1)
	}
	if w.left.touches > 0 {
		kind := int8(w.cfg.kinds - 1) //nolint:gosec // small
		for k := range w.keys() {
			add(w.object(kind, k, w.now()).Op.Live(), actWrite, k, 2)
		}
	}
	running := 0
	for i := range w.watchers {
		if w.watchers[i].stage != off {
			running++
		}
		out = w.watcherSteps(out, int8(i)) //nolint:gosec // small
	}
	for i := range w.late {
		add(true, actLate, int8(i), 0) //nolint:gosec // small
	}
	if w.cfg.kinds == 1 {
		for i := range w.watchers {
			if w.watchers[i].stage == off {
				add(w.left.takeovers > 0, actTakeover, int8(i), 0) //nolint:gosec // small
				break
			}
		}
	}
	for i, m := range w.last {
		add(w.left.expiries > 0 && m != nil && m.Op == event.Delete, actExpire, int8(i), 0) //nolint:gosec // small
	}
	add(w.left.kills > 0, actKill, 0, 0)
	add(w.left.quiet > 0, actKillQuietly, 0, 0)
	add(w.left.rollbacks > 0 && len(w.undo) > 0, actRollback, 1, 0)
	add(w.left.rollbacks > 0 && len(w.undo) > 1, actRollback, 2, 0)
	add(w.left.wipes > 0, actWipe, 0, 0)
	for i := range w.readers {
		i8 := int8(i) //nolint:gosec // small
		r := &w.readers[i]
		if w.cfg.members > 0 {
			out = w.memberSteps(out, i8)
			if !r.member.holds {
				continue
			}
		}
		add(!r.begun, actBegin, i8, 0)
		add(r.begun && w.left.again > 0, actAgain, i8, 0)
		add(r.begun && w.after(r.at, always) != nil, actDeliver, i8, 0)
		if r.begun && !w.cfg.without.keeps(ruleInStream) {
			mark := w.after(r.at, func(m *event.Message) bool { return m.Op == event.Bookmark })
			add(mark != nil && mark != w.after(r.at, always), actDeliver, i8, 1)
		}
	}
	return out
}

func (w *bus) watcherSteps(out []step, i int8) []step {
	x := &w.watchers[i]
	add := func(ok bool, what act, b int8) {
		if ok {
			out = append(out, step{what, i, b})
		}
	}
	if x.stage == off {
		return out
	}
	add(x.stage != running, actStart, 0)
	up := x.stage == running
	add(up && x.at < w.now(), actWatch, 0)
	add(len(x.pipe) > 0, actLand, 0)
	add(len(x.acks) > 0, actAck, 0)
	add(len(x.chores) > 0, actAnswer, 0)
	add(up && x.p.compare != nil && !x.snap, actSnapshot, 0)
	add(up && x.p.compare != nil && x.snap, actCompared, 0)
	add(up && w.asked && x.p.compare == nil, actAsked, 0)
	add(up && !w.cfg.unfollowed && w.after(x.followAt, w.ofKind(x.kind)) != nil, actFollow, 0)
	if w.left.marks > 0 {
		for s := range x.p.slices {
			add(up && !x.p.slices[s].due && !x.p.slices[s].mark.busy, actMark, int8(s)) //nolint:gosec // small
		}
	}
	add(w.left.late > 0 && len(x.pipe) > 0, actTimeout, 0)
	add(w.left.late > 0 && len(x.acks) > 0, actTimeout, 1)
	add(w.left.resets > 0, actReset, 0)
	add(w.left.crashes > 0, actCrash, 0)
	add(up && w.left.relists > 0 && x.at < w.now(), actRelist, 0)
	return out
}

func (w *bus) take(s step) (violation string) {
	if s.what >= actTimeout {
		w.faulty = true
	}
	switch s.what {
	case actWrite, actExpire, actKill, actKillQuietly, actRollback, actWipe, actLate, actTakeover, actLost, actSweep, actFinal:
		return w.takeWorld(s)
	case actDeliver, actBegin, actAgain:
		return w.takeReader(s)
	case actDecide, actApply, actClaim, actDrop:
		return w.takeMember(s)
	default:
		violation = w.takeWatcher(s, &w.watchers[s.a])
		if x := &w.watchers[s.a]; violation == "" && x.stage != off {
			if w.cfg.atomic {
				return w.flush(x)
			}
			w.drain(x)
		}
		return violation
	}
}

func (w *bus) takeWorld(s step) (violation string) {
	switch s.what {
	case actWrite:
		c, _ := w.at(w.writeKind(s), s.a, w.now())
		switch s.b {
		case 0:
			w.left.writes--
			w.put(0, s.a, 1+c.body%2)
		case 1:
			w.left.writes--
			w.put(0, s.a, 0)
		default:
			w.left.touches--
			w.put(w.writeKind(s), s.a, c.body)
		}
	case actExpire:
		w.left.expiries--
		w.last[s.a] = nil
	case actKill:
		w.left.kills--
		w.revive()
		w.serverDown()
	case actKillQuietly:
		w.left.quiet--
		w.revive()
	case actRollback:
		w.left.rollbacks--
		for range s.a {
			u := w.undo[len(w.undo)-1]
			w.undo = w.undo[:len(w.undo)-1]
			w.last[u.sub], w.ghosts[u.sub] = u.prev, u.ghost
			w.seq--
		}
		w.undo = nil
		w.serverDown()
		// Sequences are given again now. What is published from here on with an
		// expectation from before may land where it should not, until the
		// comparison has ended; it has to be corrected, which healing checks.
		w.rolled = true
		if w.cfg.without.keeps(ruleNoBuffer) {
			w.late = nil // it died with the connections
		}
	case actWipe:
		w.left.wipes--
		clear(w.last)
		clear(w.ghosts)
		w.undo = nil
		w.seq += 100
		if !w.cfg.without.keeps(ruleFirstSeq) {
			w.seq = 0
		}
		w.serverDown()
	case actLate:
		p := w.late[s.a]
		w.late = append(w.late[:s.a:s.a], w.late[s.a+1:]...)
		if _, violation = w.store(p); !p.since {
			return violation
		}
		return ""
	case actTakeover:
		w.left.takeovers = max(w.left.takeovers-1, 0)
		w.takeover(s.a, s.b)
	case actLost:
		w.late = nil
	case actSweep:
		w.swept = true
		for i := range w.readers {
			w.begin(&w.readers[i])
		}
	case actFinal:
		w.final = true
		for i := range w.watchers {
			for s := range w.cfg.partitions {
				if w.watchers[i].stage == running {
					w.watchers[i].p.Mark(s)
				}
			}
		}
	}
	if s.what == actKill || s.what == actRollback || s.what == actWipe || s.what == actFinal {
		for i := range w.watchers {
			if w.watchers[i].stage == off {
				continue
			}
			if w.cfg.atomic {
				if bad := w.flush(&w.watchers[i]); bad != "" {
					return bad
				}
			} else {
				w.drain(&w.watchers[i])
			}
		}
	}
	return ""
}

func (w *bus) writeKind(s step) int8 {
	if s.b == 2 {
		return int8(w.cfg.kinds - 1) //nolint:gosec // small
	}
	return 0
}

func (w *bus) takeReader(s step) (violation string) {
	r := &w.readers[s.a]
	switch s.what {
	case actDeliver:
		return w.deliver(s.a, s.b == 1)
	case actAgain:
		w.left.again--
	}
	w.begin(r)
	return ""
}

func (w *bus) takeWatcher(s step, x *watcher) (violation string) {
	switch s.what {
	case actStart:
		w.start(x)
	case actWatch:
		w.watch(x)
	case actLand:
		return w.land(x)
	case actAck:
		w.ack(x)
	case actAnswer:
		w.answer(x)
	case actSnapshot:
		x.snap = true
		for _, m := range w.last {
			if m != nil && m.Kind == exploreKinds[x.kind] {
				x.p.compare.Found(*m)
			}
		}
	case actCompared:
		x.snap = false
		x.p.EndCompare(x.p.compare)
	case actAsked:
		w.asked = false
		x.p.BeginCompare()
		x.snap = false
	case actFollow:
		for m := w.after(x.followAt, w.ofKind(x.kind)); m != nil; m = w.after(x.followAt, w.ofKind(x.kind)) {
			x.followAt = m.Seq
			if m.Op == event.Bookmark {
				x.p.StoredMark(*m)
			} else {
				x.p.Stored(*m)
			}
		}
	case actMark:
		w.left.marks = max(w.left.marks-1, 0)
		x.p.Mark(int(s.b))
	case actTimeout:
		w.left.late--
		if s.b == 1 {
			a := x.acks[0]
			x.acks = append([]ack(nil), x.acks[1:]...)
			w.fail(x, pub{sub: a.sub, m: w.nameOf(a.sub)})
			return ""
		}
		p := x.pipe[0]
		x.pipe = append([]pub(nil), x.pipe[1:]...)
		w.overdue(p)
		w.fail(x, p)
	case actReset:
		w.left.resets--
		w.reset(x)
	case actCrash:
		w.left.crashes--
		w.overdue(x.pipe...)
		*x = watcher{}
	case actRelist:
		w.left.relists--
		w.list(x)
	}
	return ""
}

// heal: everything outstanding is finished, in a fixed order; what is late is
// lost; somebody watches; who reads reads on; bookmarks come until every reader
// is content.
func (w *bus) heal() (step, bool) {
	if len(w.late) > 0 {
		return step{what: actLost}, true
	}
	for kind := range int8(w.cfg.kinds) { //nolint:gosec // small
		if s, more := w.healWatchers(kind); more {
			return s, true
		}
	}
	if w.cfg.members > 0 {
		if s, more := w.healApply(); more {
			return s, true
		}
	}
	unsure := false
	for i := range w.readers {
		r := &w.readers[i]
		if w.cfg.members > 0 && !r.member.holds {
			continue
		}
		switch {
		case !r.begun:
			return step{actBegin, int8(i), 0}, true //nolint:gosec // small
		case w.after(r.at, always) != nil:
			return step{actDeliver, int8(i), 0}, true //nolint:gosec // small
		}
		unsure = unsure || !w.content(r)
	}
	if w.cfg.members > 0 {
		if s, more := w.healDecide(); more {
			return s, true
		}
	}
	switch {
	case unsure:
		return w.healMark()
	case w.cfg.quiet > 0 && !w.swept:
		return step{what: actSweep}, true
	case len(w.readers) > 0 && !w.final:
		return step{what: actFinal}, true
	default:
		return step{}, false
	}
}

// content reports whether a reader knows that it knows everything.
func (w *bus) content(r *reader) bool {
	for k := range w.cfg.kinds {
		kind := exploreKinds[k]
		if !r.r.Synced(kind) || r.r.Upto(kind) < w.now() {
			return false
		}
		for i := range r.r.kinds[kind].slices {
			if r.r.kinds[kind].slices[i].mismatches > 0 {
				return false
			}
		}
	}
	return true
}

func (w *bus) healWatchers(kind int8) (step, bool) {
	free, served := int8(-1), false
	for i := range w.watchers {
		x := &w.watchers[i]
		i8 := int8(i) //nolint:gosec // small
		if x.stage == off {
			if w.cfg.kinds == 1 || i8 == kind {
				free = i8
			}
			continue
		}
		if x.kind != kind {
			continue
		}
		served = served || x.p.projection >= w.cfg.need
		switch {
		case x.stage != running:
			return step{actStart, i8, 0}, true
		case len(x.acks) > 0:
			return step{actAck, i8, 0}, true
		case len(x.pipe) > 0:
			return step{actLand, i8, 0}, true
		case len(x.chores) > 0:
			return step{actAnswer, i8, 0}, true
		case x.p.compare != nil && !x.snap:
			return step{actSnapshot, i8, 0}, true
		case x.p.compare != nil:
			return step{actCompared, i8, 0}, true
		case x.at < w.now():
			return step{actWatch, i8, 0}, true
		case !w.cfg.unfollowed && w.after(x.followAt, w.ofKind(kind)) != nil:
			return step{actFollow, i8, 0}, true
		case w.asked:
			return step{actAsked, i8, 0}, true
		}
	}
	if !served && free >= 0 {
		return step{actTakeover, free, kind}, true
	}
	return step{}, false
}

// healMark lets the watchers and slices take turns.
func (w *bus) healMark() (step, bool) {
	n := int8(len(w.watchers) * w.cfg.partitions) //nolint:gosec // small
	for range n {
		w.turn = (w.turn + 1) % n
		i, s := w.turn/int8(w.cfg.partitions), w.turn%int8(w.cfg.partitions) //nolint:gosec // small
		if w.watchers[i].stage == running {
			return step{actMark, i, s}, true
		}
	}
	return step{}, false
}

func (w *bus) rest() (violation string) {
	for i, m := range w.last {
		at := i % (w.cfg.keys + w.cfg.partitions)
		kind := i / (w.cfg.keys + w.cfg.partitions)
		if at >= w.cfg.keys {
			continue
		}
		want := w.object(int8(kind), int8(at), w.now()) //nolint:gosec // small
		switch {
		case !want.Op.Live() && (m == nil || !m.Op.Live()):
		case !want.Op.Live():
			return fmt.Sprintf("the stream holds %s with UID %s, which is gone", m.Key, m.UID)
		case m == nil || !m.Op.Live():
			return fmt.Sprintf("the stream lacks %s", exploreKeys[at])
		case m.UID != want.UID || m.Hash != want.Hash:
			return fmt.Sprintf("the stream holds %s with UID %s, body %d; the API has UID %s, body %d", m.Key, m.UID, m.Hash, want.UID, want.Hash)
		}
	}
	for i := range w.watchers {
		if x := &w.watchers[i]; x.stage == running && !x.p.Started() {
			return "a watcher has not started"
		}
	}
	for i := range w.readers {
		r := &w.readers[i]
		if w.cfg.members > 0 && !r.member.holds {
			continue
		}
		for kind := range w.cfg.kinds {
			for k := range w.keys() {
				want, _ := w.at(int8(kind), k, w.now()) //nolint:gosec // small
				if has := r.cache[kind][k]; has.uid != want.uid || has.uid != 0 && has.body != want.body {
					return fmt.Sprintf("a cache holds %s; the API has UID %q, body %d", w.show(k, has), uidOf(want.uid), want.body)
				}
			}
		}
	}
	if w.cfg.members > 0 {
		return w.restMembers()
	}
	return ""
}

func (w *bus) encode(c *code) {
	b := w.left
	for _, v := range [...]int8{b.writes, b.touches, b.late, b.resets, b.takeovers, b.crashes, b.relists, b.expiries, b.kills, b.quiet, b.rollbacks, b.wipes, b.again, b.claims, b.marks, w.names, w.acts, w.turn} {
		c.int(int(v))
	}
	c.bool(w.asked, w.faulty, w.rolled, w.swept, w.final)
	c.num(w.epochs)
	c.seq(w.seq)
	c.int(len(w.log))
	for _, l := range w.log {
		c.num(uint64(l.kind)<<8|uint64(l.key), l.uid, l.body) //nolint:gosec // small
	}
	keys := exploreKeys[:w.cfg.keys]
	for i := range w.last {
		encodeMessage(c, w.last[i])
		if w.left.kills+w.left.quiet > 0 {
			encodeMessage(c, w.ghosts[i])
		}
	}
	if w.left.rollbacks > 0 {
		for _, u := range w.undo {
			c.int(int(u.sub))
			encodeMessage(c, u.prev)
			if w.left.kills+w.left.quiet > 0 {
				encodeMessage(c, u.ghost)
			}
		}
	}
	c.int(len(w.late))
	for _, p := range w.late {
		encodePub(c, p)
	}
	for i := range w.watchers {
		x := &w.watchers[i]
		c.int(int(x.stage))
		if x.stage == off {
			continue
		}
		c.num(x.at)
		c.bool(x.snap)
		if !w.cfg.unfollowed {
			c.seq(x.followAt)
		}
		x.p.encode(c, keys)
		c.int(len(x.pipe))
		for _, p := range x.pipe {
			encodePub(c, p)
		}
		c.int(len(x.acks))
		for _, a := range x.acks {
			c.int(int(a.sub))
			c.seq(a.seq)
		}
		c.int(len(x.chores))
		for _, ch := range x.chores {
			c.num(uint64(ch.do))
			c.int(int(ch.at))
			c.bool(ch.got)
			encodeObject(c, ch.obj)
		}
	}
	for i := range w.readers {
		r := &w.readers[i]
		c.bool(r.begun)
		c.num(uint64(r.drifted))
		if w.cfg.members > 0 {
			r.member.encode(c)
			if !r.member.holds {
				continue
			}
			c.num(r.from)
		}
		c.num(r.index)
		c.seq(r.at)
		r.r.encode(c, exploreKinds[:w.cfg.kinds], keys)
		for kind := range r.cache {
			for _, e := range r.cache[kind] {
				c.num(e.body, e.projection) // the rest is in the replay's entries
			}
		}
	}
}

func encodePub(c *code, p pub) {
	c.int(int(p.sub))
	c.bool(p.since)
	encodeMessage(c, p.m)
	c.seq(p.expect)
}

func (w *bus) describe(s step) string {
	watcher := func() string {
		if x := &w.watchers[s.a]; x.stage != off {
			return fmt.Sprintf("watcher %d (epoch %d)", s.a, x.p.epoch)
		}
		return fmt.Sprintf("watcher %d", s.a)
	}
	switch s.what {
	case actWrite:
		return w.describeWrite(s)
	case actWatch:
		return watcher() + " receives " + w.describeChange(w.watchers[s.a].at)
	case actLand:
		return w.describePub(watcher()+"'s", w.watchers[s.a].pipe[0])
	case actAck:
		a := w.watchers[s.a].acks[0]
		return fmt.Sprintf("%s learns: %s", watcher(), map[bool]string{true: "refused", false: fmt.Sprintf("stored as %d", a.seq)}[a.seq == 0])
	case actAnswer:
		c := w.watchers[s.a].chores[0]
		what := map[Do]string{DoRead: "reads the last message of", DoFetch: "fetches from the API", DoReadMark: "reads the last bookmark of slice"}[c.do]
		if c.got {
			what = "receives what it fetched of"
		}
		return fmt.Sprintf("%s %s %d", watcher(), what, c.at)
	case actStart:
		return watcher() + map[bool]string{true: " takes a snapshot of the stream", false: " lists the API"}[w.watchers[s.a].stage == created]
	case actSnapshot:
		return watcher() + " takes a snapshot to compare"
	case actCompared:
		return watcher() + " compares"
	case actFollow:
		m := w.after(w.watchers[s.a].followAt, w.ofKind(w.watchers[s.a].kind))
		return fmt.Sprintf("%s follows its subjects: %s", watcher(), w.describeMessage(m))
	case actMark:
		return fmt.Sprintf("%s owes a bookmark of slice %d", watcher(), s.b)
	case actDeliver:
		m := w.after(w.readers[s.a].at, always)
		if s.b == 1 {
			m = w.after(w.readers[s.a].at, func(m *event.Message) bool { return m.Op == event.Bookmark })
		}
		return fmt.Sprintf("reader %d receives %s", s.a, w.describeMessage(m))
	case actBegin:
		return fmt.Sprintf("reader %d begins a replay", s.a)
	case actAgain:
		return fmt.Sprintf("reader %d begins another replay", s.a)
	case actAsked:
		return watcher() + " is asked for a comparison"
	case actTimeout:
		return watcher() + map[int8]string{0: " waits in vain for a publication that is still under way", 1: " waits in vain for an answer that was lost"}[s.b]
	case actLate:
		return "late, " + w.describePub("a predecessor's", w.late[s.a])
	case actReset:
		return watcher() + " loses its connection and reconnects"
	case actTakeover:
		return fmt.Sprintf("watcher %d takes the kind over with epoch %d", s.a, w.epochs+1)
	case actCrash:
		return watcher() + " is killed"
	case actRelist:
		return watcher() + " lists again"
	case actExpire:
		return "the tombstone of " + w.last[s.a].Key.String() + " expires"
	case actKill:
		return "the server is killed and restarts"
	case actKillQuietly:
		return "another server takes the lead, with what had expired"
	case actRollback:
		return fmt.Sprintf("the server restarts without its last %d messages", s.a)
	case actWipe:
		return "the server restarts with nothing"
	case actLost:
		return "what is under way is lost"
	case actSweep:
		return "every reader replays"
	case actFinal:
		return "every slice is marked"
	default:
		return w.describeMember(s)
	}
}

func (w *bus) describeWrite(s step) string {
	c, _ := w.at(w.writeKind(s), s.a, w.now())
	key, version := exploreKeys[s.a].Name, w.now()+1
	switch {
	case s.b == 1:
		return fmt.Sprintf("%s is deleted (version %d)", key, version)
	case s.b == 2:
		return fmt.Sprintf("%s changes where nobody looks (version %d)", key, version)
	case c.uid == 0:
		return fmt.Sprintf("%s is created (version %d)", key, version)
	default:
		return fmt.Sprintf("%s is updated (version %d)", key, version)
	}
}

func (w *bus) describeChange(at uint64) string {
	c := w.log[at]
	if c.uid == 0 {
		return fmt.Sprintf("version %d: %s %s deleted", at+1, exploreKinds[c.kind], exploreKeys[c.key])
	}
	return fmt.Sprintf("version %d: %s %s, UID %s, body %d", at+1, exploreKinds[c.kind], exploreKeys[c.key], uidOf(c.uid), c.body)
}

func (w *bus) describeMessage(m *event.Message) string {
	switch {
	case m == nil:
		return "nothing"
	case m.Op == event.Bookmark:
		return fmt.Sprintf("bookmark up to %d of %d objects (sequence %d, epoch %d, slice %d)", m.Upto, m.Mark.ByKey.Count, m.Seq, m.Epoch, m.Slice)
	case m.Op == event.Delete:
		return fmt.Sprintf("tombstone of %s, version %d (sequence %d, epoch %d)", m.Key, m.Version, m.Seq, m.Epoch)
	default:
		return fmt.Sprintf("%s %s, UID %s, version %d, body %d (sequence %d, epoch %d)", m.Kind, m.Key, m.UID, m.Version, m.Hash, m.Seq, m.Epoch)
	}
}

func (w *bus) describePub(whose string, p pub) string {
	result := "is stored"
	if m := w.last[p.sub]; (m == nil && p.expect != 0 || m != nil && m.Seq != p.expect) && w.cfg.without.keeps(ruleCAS) {
		result = "is refused"
	}
	return fmt.Sprintf("%s %s, expecting %d, %s", whose, w.describeMessage(p.m), p.expect, result)
}
