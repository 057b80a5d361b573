package protocol

import (
	"fmt"
	"slices"
	"time"
)

// The bucket world: members run Ownership over a bucket with compare and set,
// whose member keys expire. Time passes in steps of RenewEvery. A member trusts
// a unit while it holds it by its own books and its member lease, counted from
// before the last renewal was sent, has not run out less the margin.
//
// Checked at every step: no two members trust one unit, unless one of them has
// been evicted (it was cut off, and cannot renew any more) or the bucket itself
// was lost; and no epoch is given twice. At rest every unit has one living
// holder that knows it.

const kvTick = RenewEvery

type kvConfig struct {
	members, units, ids                                             int
	ticks, cuts, freezes, crashes, quick, losses, wipes, departures int8
	settled                                                         bool // everything is held when it begins
	without                                                         without
}

type kvEntry struct {
	holder  string // of a lease
	rev     uint64
	at      int // when it was stored
	there   bool
	evicted bool
}

type kvMember struct {
	o                        *Ownership
	id                       int8
	alive, frozen, connected bool
	joined                   bool
	rev                      uint64
	sent                     int
	seen                     uint64
	grants                   []uint64
	leaving                  bool
}

type kv struct {
	cfg      *kvConfig
	left     kvConfig
	now      int
	rev      uint64
	members  []kvMember
	keys     []kvEntry // by id
	leases   []kvEntry // by unit
	ids      int8
	maxEpoch uint64
	lossy    bool
}

const (
	kvTime act = iota
	kvView
	kvRenew
	kvWish
	kvConnect
	kvThaw
	kvStart
	kvCut
	kvFreeze
	kvCrash
	kvQuick
	kvLose
	kvWipe
	kvLeave
)

func newKV(cfg *kvConfig) *kv {
	w := &kv{cfg: cfg, left: *cfg, keys: make([]kvEntry, cfg.ids), leases: make([]kvEntry, cfg.units)}
	for range cfg.members {
		w.members = append(w.members, kvMember{})
		w.join(&w.members[len(w.members)-1])
	}
	for s, more := w.heal(); cfg.settled && more; s, more = w.heal() {
		w.take(s)
	}
	w.left.ticks = cfg.ticks
	return w
}

func kvID(id int8) string { return string(rune('p' + id)) }

func kvUnits(n int) []string { return []string{"u0", "u1", "u2"}[:n] }

// join makes m a member under a new id that has not written its key yet.
func (w *kv) join(m *kvMember) {
	id := w.ids
	if int(id) < w.cfg.ids-1 {
		w.ids++
	}
	*m = kvMember{id: id, alive: true, o: NewOwnership(kvID(id), "role", kvUnits(w.cfg.units)), grants: make([]uint64, w.cfg.units), sent: -9}
	m.o.without = w.cfg.without
	w.connect(m)
}

func (w *kv) time() time.Duration { return time.Duration(w.now) * kvTick }

// connect tells a view everything from the start.
func (w *kv) connect(m *kvMember) {
	if own := w.keys[m.id]; m.joined && (!own.there || own.evicted) {
		w.lose(m) // and a new membership connects
		return
	}
	m.connected = true
	m.o.Begin()
	for id := range w.keys {
		if w.keys[id].there {
			w.tellKey(m, int8(id)) //nolint:gosec // small
		}
	}
	for u := range w.leases {
		if w.leases[u].there {
			w.tellLease(m, u)
		}
	}
	m.o.Caught(w.time())
	m.seen = w.rev
	for u, epoch := range m.grants {
		if epoch != 0 && w.leases[u].rev != epoch {
			m.grants[u] = 0
		}
	}
}

func (w *kv) tellKey(m *kvMember, id int8) {
	e := w.keys[id]
	if !e.there {
		m.o.MemberExpired(kvID(id))
	} else {
		m.o.MemberSeen(kvID(id), e.rev, e.evicted, w.time())
	}
	if id == m.id && m.joined && (!e.there || e.evicted) {
		w.lose(m)
	}
}

func (w *kv) tellLease(m *kvMember, u int) {
	e := w.leases[u]
	m.o.LeaseSeen(kvUnits(w.cfg.units)[u], e.holder, e.rev, w.time())
	if m.grants[u] != 0 && e.rev > m.grants[u] {
		m.grants[u] = 0
	}
}

// lose ends a membership: everything is dropped, and the member rejoins under a
// new id.
func (w *kv) lose(m *kvMember) {
	if int(w.ids) >= w.cfg.ids-1 {
		*m = kvMember{id: m.id, grants: make([]uint64, w.cfg.units), o: m.o} // no more ids in this world
		return
	}
	w.join(m)
}

func (w *kv) trusts(m *kvMember, u int) bool {
	return m.alive && m.joined && m.grants[u] != 0 && w.sure(m)
}

func (w *kv) sure(m *kvMember) bool {
	return time.Duration(w.now-m.sent)*kvTick < MemberTTL-Margin
}

func (w *kv) clone() world {
	out := *w
	out.keys, out.leases, out.members = slices.Clone(w.keys), slices.Clone(w.leases), slices.Clone(w.members)
	for i := range out.members {
		m := &out.members[i]
		m.grants = slices.Clone(m.grants)
		if m.o != nil {
			m.o = m.o.copy()
		}
	}
	return &out
}

// next returns the oldest entry that m's view has not been told.
func (w *kv) next(m *kvMember) (key, lease int) {
	key, lease = -1, -1
	best := uint64(1<<63 - 1)
	for i, e := range w.keys {
		if e.rev > m.seen && e.rev < best {
			key, best = i, e.rev
		}
	}
	for i, e := range w.leases {
		if e.rev > m.seen && e.rev < best {
			key, lease, best = -1, i, e.rev
		}
	}
	return key, lease
}

func (w *kv) behind(m *kvMember) bool {
	key, lease := w.next(m)
	return key >= 0 || lease >= 0
}

func (w *kv) steps(out []step) []step {
	add := func(ok bool, what act, a, b int8) {
		if ok {
			out = append(out, step{what, a, b})
		}
	}
	add(w.left.ticks > 0, kvTime, 0, 0)
	add(w.left.wipes > 0, kvWipe, 0, 0)
	for i := range w.members {
		m, i8 := &w.members[i], int8(i) //nolint:gosec // small
		if !m.alive {
			continue
		}
		add(w.left.crashes > 0, kvCrash, i8, 0)
		if m.frozen {
			add(true, kvThaw, i8, 0)
			continue
		}
		add(w.left.freezes > 0, kvFreeze, i8, 0)
		add(w.left.losses > 0 && m.joined && w.keys[m.id].there, kvLose, i8, 0)
		if !m.connected {
			add(true, kvConnect, i8, 0)
			continue
		}
		add(w.left.cuts > 0, kvCut, i8, 0)
		add(w.left.departures > 0 && m.joined && !m.leaving, kvLeave, i8, 0)
		add(w.behind(m), kvView, i8, 0)
		add(!m.joined || w.now > m.sent, kvRenew, i8, 0)
		for n := range w.wishes(m) {
			add(true, kvWish, i8, int8(n)) //nolint:gosec // small
		}
		for j := range w.members {
			other := &w.members[j]
			gone := !other.alive || !other.connected
			add(w.left.quick > 0 && j != i && gone && m.joined && w.sure(m) && other.o != nil && m.o.members[kvID(other.id)].present, kvQuick, i8, int8(j)) //nolint:gosec // small
		}
	}
	return out
}

func (w *kv) wishes(m *kvMember) []Intent {
	if !m.joined || !w.sure(m) {
		return nil
	}
	return m.o.Step(w.time())
}

func (w *kv) take(s step) (violation string) {
	m := &w.members[s.a]
	switch s.what {
	case kvTime:
		w.left.ticks = max(w.left.ticks-1, 0)
		w.now++
		for id := range w.keys {
			if e := &w.keys[id]; e.there && time.Duration(w.now-e.at)*kvTick >= MemberTTL {
				w.rev++
				*e = kvEntry{rev: w.rev}
			}
		}
	case kvView:
		key, lease := w.next(m)
		if key >= 0 {
			m.seen = w.keys[key].rev
			w.tellKey(m, int8(key)) //nolint:gosec // small
		} else {
			m.seen = w.leases[lease].rev
			w.tellLease(m, lease)
		}
	case kvRenew:
		w.renew(m)
	case kvWish:
		if bad := w.carryOut(m, w.wishes(m)[s.b]); bad != "" {
			return bad
		}
	case kvLeave:
		w.left.departures--
		m.leaving = true
		w.leave(m)
	case kvConnect:
		w.connect(m)
	case kvThaw:
		m.frozen = false
	case kvStart:
		w.join(m)
	default:
		w.goWrong(s, m)
	}
	return w.exclusive()
}

func (w *kv) goWrong(s step, m *kvMember) {
	switch s.what {
	case kvCut:
		w.left.cuts--
		w.cut(m)
	case kvFreeze:
		w.left.freezes--
		m.frozen = true
	case kvCrash:
		w.left.crashes--
		*m = kvMember{id: m.id, grants: make([]uint64, w.cfg.units), o: m.o}
	case kvQuick:
		w.left.quick--
		id := w.members[s.b].id
		known := m.o.members[kvID(id)].revision
		if !w.cfg.without.keeps(ruleEvictFirst) {
			m.o.MemberSeen(kvID(id), known, true, w.time())
		} else if e := &w.keys[id]; e.there && e.rev == known {
			w.rev++
			*e = kvEntry{rev: w.rev, at: w.now, there: true, evicted: true}
		}
	case kvLose:
		w.left.losses--
		w.keys[m.id] = kvEntry{}
		w.cutAll()
	case kvWipe:
		w.left.wipes--
		clear(w.keys)
		clear(w.leases)
		w.lossy = true
		w.rev += 100
		if !w.cfg.without.keeps(ruleFirstSeq) {
			w.rev = 0
		}
		w.cutAll()
	}
}

func (w *kv) cutAll() {
	for i := range w.members {
		if m := &w.members[i]; m.alive {
			w.cut(m)
		}
	}
}

func (w *kv) cut(m *kvMember) {
	m.connected = false
	m.o.Gap()
}

func (w *kv) renew(m *kvMember) {
	e := &w.keys[m.id]
	if m.joined && (!e.there || e.evicted || e.rev != m.rev) {
		w.lose(m)
		return
	}
	w.rev++
	*e = kvEntry{rev: w.rev, at: w.now, there: true}
	m.joined, m.rev, m.sent = true, w.rev, w.now
	m.o.MemberSeen(kvID(m.id), w.rev, false, w.time())
}

// leave gives everything up, and the membership last.
func (w *kv) leave(m *kvMember) {
	for u := range m.grants {
		if e := &w.leases[u]; m.grants[u] != 0 && e.rev == m.grants[u] {
			w.rev++
			*e = kvEntry{rev: w.rev, there: true}
		}
	}
	if e := &w.keys[m.id]; e.rev == m.rev {
		w.rev++
		*e = kvEntry{rev: w.rev, at: w.now, there: true, evicted: true}
	}
	*m = kvMember{id: m.id, grants: make([]uint64, w.cfg.units), o: m.o}
}

func (w *kv) carryOut(m *kvMember, in Intent) (violation string) {
	u := slices.Index(kvUnits(w.cfg.units), in.Unit)
	switch in.Wish {
	case WishClaim:
		if w.leases[u].rev != in.Revision {
			return ""
		}
		w.rev++
		if w.rev <= w.maxEpoch {
			return fmt.Sprintf("epoch %d is not above %d, which was given before", w.rev, w.maxEpoch)
		}
		w.maxEpoch = w.rev
		w.leases[u] = kvEntry{holder: kvID(m.id), rev: w.rev, there: true}
		m.grants[u] = w.rev
		m.o.LeaseSeen(in.Unit, kvID(m.id), w.rev, w.time())
	case WishRelease:
		m.grants[u] = 0
		if w.leases[u].rev == in.Revision {
			w.rev++
			w.leases[u] = kvEntry{rev: w.rev, there: true}
			m.o.LeaseSeen(in.Unit, "", w.rev, w.time())
		}
	case WishEvict:
		id := int8(in.Member[0] - 'p')
		if e := &w.keys[id]; e.there && e.rev == in.Revision {
			w.rev++
			*e = kvEntry{rev: w.rev, at: w.now, there: true, evicted: true}
		}
	}
	return ""
}

func (w *kv) exclusive() string {
	if w.lossy {
		return ""
	}
	for u := range w.leases {
		var who []string
		for i := range w.members {
			m := &w.members[i]
			if w.trusts(m, u) && !w.keys[m.id].evicted {
				who = append(who, kvID(m.id))
			}
		}
		if len(who) > 1 {
			return fmt.Sprintf("members %v trust u%d at once, and none is evicted", who, u)
		}
	}
	return ""
}

func (w *kv) heal() (step, bool) {
	anybody := false
	for i := range w.members {
		m, i8 := &w.members[i], int8(i) //nolint:gosec // small
		if !m.alive {
			continue
		}
		anybody = true
		switch {
		case m.frozen:
			return step{kvThaw, i8, 0}, true
		case !m.connected:
			return step{kvConnect, i8, 0}, true
		}
	}
	if !anybody {
		return step{kvStart, 0, 0}, true
	}
	for i := range w.members {
		m, i8 := &w.members[i], int8(i) //nolint:gosec // small
		switch {
		case !m.alive:
		case w.behind(m):
			return step{kvView, i8, 0}, true
		case !m.joined || w.now > m.sent:
			return step{kvRenew, i8, 0}, true
		}
	}
	for i := range w.members {
		if m := &w.members[i]; m.alive && len(w.wishes(m)) > 0 {
			return step{kvWish, int8(i), 0}, true //nolint:gosec // small
		}
	}
	if w.rest() != "" {
		return step{what: kvTime}, true
	}
	return step{}, false
}

func (w *kv) rest() string {
	for u, e := range w.leases {
		if e.holder == "" {
			return fmt.Sprintf("nobody holds u%d", u)
		}
		for i := range w.members {
			m := &w.members[i]
			if mine := m.alive && kvID(m.id) == e.holder; mine != w.trusts(m, u) {
				return fmt.Sprintf("u%d is held by %s; member %s thinks otherwise", u, e.holder, kvID(m.id))
			}
		}
		if !slices.ContainsFunc(w.members, func(m kvMember) bool { return m.alive && kvID(m.id) == e.holder }) {
			return fmt.Sprintf("u%d is held by %s, who is dead", u, e.holder)
		}
	}
	return ""
}

func (w *kv) encode(c *code) {
	l := w.left
	for _, v := range [...]int8{l.ticks, l.cuts, l.freezes, l.crashes, l.quick, l.losses, l.wipes, l.departures, w.ids} {
		c.int(int(v))
	}
	c.bool(w.lossy)
	c.seq(w.rev)
	if w.cfg.wipes > 0 {
		c.seq(w.maxEpoch)
	}
	age := func(at int) { c.int(min(w.now-at, 4)) }
	for _, e := range w.keys {
		c.bool(e.there, e.evicted)
		c.seq(e.rev)
		if e.there {
			age(e.at)
		}
	}
	for _, e := range w.leases {
		c.bool(e.there)
		c.seq(e.rev)
		encodeID(c, e.holder)
	}
	for i := range w.members {
		m := &w.members[i]
		c.bool(m.alive, m.frozen, m.connected, m.joined, m.leaving)
		c.int(int(m.id))
		if !m.alive {
			continue
		}
		c.seq(m.rev)
		age(m.sent)
		c.seq(m.seen)
		for _, g := range m.grants {
			c.seq(g)
		}
		c.bool(m.o.caught)
		for id := range int8(w.cfg.ids) { //nolint:gosec // small
			v, known := m.o.members[kvID(id)]
			c.bool(known, v.present, v.evicted)
			if known {
				c.seq(v.revision)
				age(int(v.renewed / kvTick))
			}
		}
		for _, u := range m.o.units {
			c.seq(m.o.leases[u].revision)
			encodeID(c, m.o.leases[u].holder)
		}
	}
}

func encodeID(c *code, id string) {
	if id == "" {
		c.num(0)
		return
	}
	c.num(uint64(id[0]))
}

func (w *kv) describe(s step) string {
	m := &w.members[s.a]
	id := kvID(m.id)
	switch s.what {
	case kvTime:
		return fmt.Sprintf("%s pass", kvTick)
	case kvView:
		key, lease := w.next(m)
		if key >= 0 {
			e := w.keys[key]
			return fmt.Sprintf("%s sees member key %s: there %v, evicted %v, revision %d", id, kvID(int8(key)), e.there, e.evicted, e.rev) //nolint:gosec // small
		}
		return fmt.Sprintf("%s sees lease u%d: holder %q, revision %d", id, lease, w.leases[lease].holder, w.leases[lease].rev)
	case kvRenew:
		return id + " renews its member key"
	case kvWish:
		in := w.wishes(m)[s.b]
		return fmt.Sprintf("%s %s %s%s, expecting revision %d", id, map[Wish]string{WishClaim: "claims", WishRelease: "releases", WishEvict: "evicts"}[in.Wish], in.Unit, in.Member, in.Revision)
	case kvQuick:
		return fmt.Sprintf("%s finds that nobody answers for %s", id, kvID(w.members[s.b].id))
	case kvWipe:
		return "the bucket is lost; every connection breaks"
	default:
		return id + map[act]string{
			kvConnect: " connects again", kvThaw: " thaws", kvStart: " is started", kvCut: " loses its connection", kvFreeze: " freezes",
			kvCrash: " is killed", kvLose: "'s last renewal is lost by the server; every connection breaks", kvLeave: " leaves",
		}[s.what]
	}
}
