package protocol

import "fmt"

// Members of the bus world reconcile the one object of the first kind into one
// output of the second: it exists if and only if the input does, and has its
// body. Who holds the key is left open: any member may claim at any time, and
// who held it before goes on, not knowing, until it drops. That is more than
// the ownership of explore_kv_test.go ever lets happen, so what holds here does
// not rest on ownership.

type member struct {
	holds bool
	queue bool // the key is to be decided
	fresh bool // nothing has been written since the claim
	live  bool // the next decision is on a live read
	wrote Write
	plan  plan
}

// plan is a write under way.
type plan struct {
	do            planned
	name          int8
	uid, version  uint64 // precondition
	body          uint64
	upto          uint64 // a version since which the input was as decided on
	inputWasThere bool
}

type planned int8

const (
	planNone planned = iota
	planCreate
	planUpdate
	planDelete
)

func (m *member) encode(c *code) {
	c.bool(m.holds, m.queue, m.fresh, m.live, m.plan.inputWasThere)
	p := m.plan
	c.num(uint64(p.do), uint64(p.name), p.uid, p.version, p.body, p.upto) //nolint:gosec // small
	c.num(m.wrote.Version, uidNumber(m.wrote.UID))
	c.bool(m.wrote.Deleted)
}

// maxActs is how many writes all members together may make before it counts as
// an endless fight.
const maxActs = 10

func (w *bus) memberSteps(out []step, i int8) []step {
	m := &w.readers[i].member
	held := false
	for j := range w.readers {
		held = held || w.readers[j].member.holds
	}
	if !m.holds {
		if w.left.claims > 0 && (!held || !w.cfg.alone) {
			out = append(out, step{actClaim, i, 0})
		}
		return out
	}
	if !w.cfg.alone || m.plan.do == planNone {
		out = append(out, step{actDrop, i, 0})
	}
	if m.plan.do != planNone {
		return append(out, step{actApply, i, 0})
	}
	if w.mayDecide(i) {
		out = append(out, step{actDecide, i, 0})
	}
	return out
}

func (w *bus) mayDecide(i int8) bool {
	r := &w.readers[i]
	synced := r.r.Synced("in") && r.r.Synced("out")
	return r.member.queue && r.begun && (synced || !w.cfg.without.keeps(ruleGate)) &&
		(r.member.wrote.Kind == "" || r.r.Seen(r.member.wrote))
}

func (w *bus) takeMember(s step) (violation string) {
	r := &w.readers[s.a]
	m := &r.member
	switch s.what {
	case actClaim:
		w.left.claims = max(w.left.claims-1, 0)
		*m = member{holds: true, fresh: true}
		r.begun = false
		r.r.Gap()
	case actDrop:
		*m = member{}
		*r = reader{r: NewReplay(r.r.scope, []Need{{Kind: "in"}, {Kind: "out"}}), cache: [][]cached{make([]cached, w.cfg.keys), make([]cached, w.cfg.keys)}}
		r.r.without, r.r.drift = w.cfg.without, 2
	case actDecide:
		w.decide(r)
	case actApply:
		return w.apply(r)
	}
	return ""
}

// outputs returns the live outputs, by the cache or as they are.
func (w *bus) outputs(r *reader, live bool) (names []int8, objects []cached) {
	for k := range w.keys() {
		o := r.cache[1][k]
		if live {
			c, version := w.at(1, k, w.now())
			o = cached{uid: c.uid, version: version, body: c.body}
		}
		if o.uid != 0 {
			names, objects = append(names, k), append(objects, o)
		}
	}
	return names, objects
}

func (w *bus) decide(r *reader) {
	m := &r.member
	m.queue = false
	p := w.plan(r, m.live)
	if p.do != planNone && m.fresh && !m.live && w.cfg.without.keeps(ruleLiveFirst) {
		p = w.plan(r, true)
	}
	if p.do == planCreate && (!w.cfg.without.keeps(ruleNames) || w.cfg.names > 1) {
		p.name = min(w.names, int8(w.cfg.keys)-1) //nolint:gosec // small
		w.names++
	}
	m.live, m.fresh = false, m.fresh && p.do == planNone
	m.plan = p
}

// plan is the judgement: what to write so that the output follows the input.
func (w *bus) plan(r *reader, live bool) plan {
	in := r.cache[0][0]
	names, objects := w.outputs(r, live)
	p := plan{body: in.body, inputWasThere: in.uid != 0, upto: r.r.Upto("in")}
	if !r.r.Synced("in") {
		p.upto = r.from
	}
	switch {
	case in.uid != 0 && len(names) == 0:
		p.do = planCreate
	case in.uid != 0 && objects[0].body != in.body:
		p.do, p.name, p.uid, p.version = planUpdate, names[0], objects[0].uid, objects[0].version
	case in.uid == 0 && len(names) > 0:
		p.do, p.name, p.uid, p.version = planDelete, names[0], objects[0].uid, objects[0].version
	default:
		return plan{}
	}
	return p
}

// apply is the API server's answer to a write.
func (w *bus) apply(r *reader) (violation string) {
	m := &r.member
	p := m.plan
	m.plan = plan{}
	c, version := w.at(1, p.name, w.now())
	fits := c.uid == p.uid && (p.uid == 0 || version == p.version)
	if !fits && (w.cfg.without.keeps(rulePreconditions) || p.do == planCreate || c.uid == 0) {
		m.queue = true
		m.live = w.cfg.without.keeps(ruleLiveOnConflict)
		m.wrote = Write{}
		return ""
	}
	if w.acts++; w.acts > maxActs {
		return "members fight without end"
	}
	if !fits {
		return fmt.Sprintf("a write decided on version %d of the output lands on version %d, which it never saw", p.version, version)
	}
	if p.do == planDelete {
		if bad := w.mayRemove(p); bad != "" {
			return bad
		}
		w.put(1, p.name, 0)
		m.wrote = Write{Kind: "out", Key: exploreKeys[p.name], UID: uidOf(p.uid), Deleted: true}
		return ""
	}
	v := w.put(1, p.name, p.body)
	now, _ := w.at(1, p.name, v)
	m.wrote = Write{Kind: "out", Key: exploreKeys[p.name], UID: uidOf(now.uid), Version: v}
	if names, _ := w.outputs(r, true); len(names) > 1 && w.cfg.alone {
		return "one input has two outputs though its holders followed one another"
	}
	return ""
}

// mayRemove checks that an output is removed only where the input was once
// gone, at a version not below what the cache had proved.
func (w *bus) mayRemove(p plan) string {
	for v := p.upto; v <= w.now(); v++ {
		if c, _ := w.at(0, 0, v); c.uid == 0 {
			return ""
		}
	}
	return fmt.Sprintf("an output is removed though its input was there at every version since %d", p.upto)
}

func (w *bus) healApply() (step, bool) {
	holders := 0
	for i := range w.readers {
		m := &w.readers[i].member
		if !m.holds {
			continue
		}
		holders++
		if m.plan.do != planNone {
			return step{actApply, int8(i), 0}, true //nolint:gosec // small
		}
	}
	if holders == 0 {
		return step{actClaim, 0, 0}, true
	}
	return step{}, false
}

func (w *bus) healDecide() (step, bool) {
	for i := range w.readers {
		if w.readers[i].member.holds && w.mayDecide(int8(i)) { //nolint:gosec // small
			return step{actDecide, int8(i), 0}, true //nolint:gosec // small
		}
	}
	return step{}, false
}

func (w *bus) restMembers() string {
	in, _ := w.at(0, 0, w.now())
	names, objects := w.outputs(&w.readers[0], true)
	switch {
	case in.uid == 0 && len(names) == 0, in.uid != 0 && len(names) == 1 && objects[0].body == in.body:
		return ""
	default:
		return fmt.Sprintf("the input is UID %q, body %d; the outputs are %+v", uidOf(in.uid), in.body, objects)
	}
}

func (w *bus) describeMember(s step) string {
	m := w.readers[s.a].member
	switch s.what {
	case actClaim:
		return fmt.Sprintf("member %d claims the key", s.a)
	case actDrop:
		return fmt.Sprintf("member %d drops the key", s.a)
	case actDecide:
		other := w.clone().(*bus) //nolint:forcetypeassert // it is
		other.decide(&other.readers[s.a])
		return fmt.Sprintf("member %d decides: %s", s.a, other.readers[s.a].member.plan)
	default:
		return fmt.Sprintf("member %d's write arrives: %s", s.a, m.plan)
	}
}

func (p plan) String() string {
	name := exploreKeys[max(p.name, 0)].Name
	switch p.do {
	case planCreate:
		return fmt.Sprintf("create output %s with body %d", name, p.body)
	case planUpdate:
		return fmt.Sprintf("update output %s (UID %s, version %d) to body %d", name, uidOf(p.uid), p.version, p.body)
	case planDelete:
		return fmt.Sprintf("delete output %s (UID %s, version %d)", name, uidOf(p.uid), p.version)
	default:
		return "nothing to write"
	}
}
