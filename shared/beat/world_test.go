package beat

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A world is an API server, nodes that beat or do not, watchers that succeed one
// another, a stream that keeps the last digest, and one reader. Both machines in
// it are the real ones. Everything else is modelled in steps of 100 ms, and goes
// wrong as its weather says.
const (
	stepTime = 100 * time.Millisecond
	grace    = 10 * time.Second
	// beatEvery is the most between two beats of a node that beats.
	beatEvery = 2 * time.Second
	// weatherEnds is when nothing more goes wrong; a world ends at worldEnds.
	weatherEnds = 60 * time.Second
	worldEnds   = weatherEnds + grace + 12*time.Second
	// inTime is how late a silence may be judged when nothing is wrong.
	inTime = 1500 * time.Millisecond
)

// weather is how often what goes wrong, as a chance per step.
type weather struct {
	freeze   float64 // of the watcher, also between making a digest and sending it
	kill     float64 // of the watcher
	handOver float64 // planned
	relay    bool    // a planned one every 6 s
	loose    bool    // the first bytes after a freeze are taken for a proof
	hang     float64 // of the API server, for the watchers
	stale    float64 // the watch delivers nothing, and pings are answered
	away     float64 // NATS
	sleep    float64 // of the reader, which has digests waiting for it then
	recreate float64 // of a node
	silence  float64 // a node falls silent for a while
}

var (
	calm  = weather{silence: 0.005}
	storm = weather{
		freeze: 0.006, kill: 0.002, handOver: 0.002, hang: 0.004, away: 0.003, sleep: 0.006, recreate: 0.005, silence: 0.005,
	}
	loose  = weather{freeze: 0.006, loose: true}
	relay  = weather{relay: true}
	mirage = weather{stale: 0.004}
)

// modelNode is one node as it truly is.
type modelNode struct {
	name, uid          string
	renewed, heartbeat int64
	status             bool // it beats by its status and has no Lease
	setback            bool // its clock is set back now and then
	quietUntil         time.Duration
	next               time.Duration
	beaten             time.Duration // the last beat
	since              time.Duration // from when on it has beaten without a pause
	made               time.Duration
}

type modelEvent struct {
	at   time.Duration
	node bool // of a node; else of a Lease
	beat Beat
}

// modelWatcher is one watcher process while it has, or believes to have, the
// lease.
type modelWatcher struct {
	ages     *Ages
	epoch    uint64
	offset   time.Duration // of its clock
	made     time.Duration
	begins   time.Duration
	phase    int
	read     int // events
	proof    time.Duration
	frozen   time.Duration // until then
	due      time.Duration
	outbox   []Digest
	heard    map[string]time.Duration // the last beat of each node that it was told of
	deposed  bool
	relisted bool
}

type world struct {
	*rand.Rand
	weather weather
	now     time.Duration
	without rule

	nodes     []*modelNode
	log       []modelEvent
	uids      int
	hung      time.Duration // until then the API server says nothing
	blind     time.Duration // until then the watch says nothing
	natsAway  time.Duration
	wasAway   bool
	epoch     uint64
	holder    *modelWatcher
	zombies   []*modelWatcher
	stored    *Digest
	queue     []delivery
	lastDue   time.Duration
	reader    *Silence
	readerOff time.Duration
	asleep    time.Duration
	denied    map[string]Beat // live reads that contradicted

	judged    map[string]bool // nodes ever judged silent
	broken    string
	suspended time.Duration // when the reader was last suspended
}

type delivery struct {
	due    time.Duration
	digest Digest
}

func newWorld(seed uint64, w weather, without rule) *world {
	r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a test's own luck
	m := &world{
		Rand: r, weather: w, without: without, epoch: 1000 + seed, now: time.Hour,
		reader: NewSilence(), readerOff: time.Duration(r.Int64N(int64(100 * time.Hour))),
		denied: map[string]Beat{}, judged: map[string]bool{},
	}
	m.hung, m.blind, m.natsAway, m.asleep = m.now, m.now, m.now, m.now
	m.reader.without = without
	for i := range 6 {
		n := &modelNode{name: fmt.Sprint("n", i), status: i%3 == 1, setback: i%3 == 2}
		m.nodes = append(m.nodes, n)
		m.make(n)
	}
	m.startWatcher()
	return m
}

func (m *world) chance(p float64) bool { return m.now < time.Hour+weatherEnds && m.Float64() < p }

func (m *world) upTo(d time.Duration) time.Duration { return time.Duration(m.Int64N(int64(d) + 1)) }

// until is when something that goes wrong ends, at the latest with the weather.
func (m *world) until(d time.Duration) time.Duration {
	return min(m.now+m.upTo(d), time.Hour+weatherEnds)
}

func (m *world) make(n *modelNode) {
	m.uids++
	n.uid, n.made, n.since = fmt.Sprint("uid", m.uids), m.now, m.now
	n.renewed, n.heartbeat = 0, 1
	m.log = append(m.log, modelEvent{at: m.now, node: true, beat: Beat{Node: n.name, UID: n.uid, Heartbeat: 1}})
	m.beat(n)
}

// beat: what changes has no relation to the time of anybody else.
func (m *world) beat(n *modelNode) {
	if m.now-n.beaten > beatEvery+stepTime {
		n.since = m.now
	}
	n.beaten = m.now
	n.next = m.now + stepTime + m.upTo(beatEvery-stepTime)
	m.uids++
	later := int64(1+m.IntN(1000))<<32 + int64(m.uids) // no time is ever written twice
	if n.setback && m.IntN(4) == 0 {
		later = -later
	}
	if n.status {
		n.heartbeat += 1 + m.Int64N(1000)
		m.log = append(m.log, modelEvent{at: m.now, node: true, beat: Beat{Node: n.name, UID: n.uid, Heartbeat: n.heartbeat}})
		return
	}
	n.renewed += later
	m.log = append(m.log, modelEvent{at: m.now, beat: Beat{Node: n.name, Renewed: n.renewed}})
}

func (m *world) startWatcher() {
	m.epoch += 1 + m.Uint64N(5)
	begins := m.now + m.upTo(2*time.Second)
	m.holder = &modelWatcher{made: m.now, heard: map[string]time.Duration{}, epoch: m.epoch, offset: m.upTo(100 * time.Hour), begins: begins}
}

// step lets 100 ms pass and says what was promised and not kept.
func (m *world) step() string {
	m.now += stepTime
	m.live()
	m.goWrong()
	for _, w := range append([]*modelWatcher{m.holder}, m.zombies...) {
		m.watch(w)
	}
	m.read()
	if m.broken != "" {
		return m.broken
	}
	return m.check()
}

func (m *world) live() {
	for i, n := range m.nodes {
		if m.chance(m.weather.recreate) {
			m.log = append(m.log, modelEvent{at: m.now, node: true, beat: Beat{Node: n.name}})
			n.quietUntil = 0
			m.make(n)
			continue
		}
		if i < 4 && m.chance(m.weather.silence) {
			n.quietUntil = m.now + m.upTo(3*grace)
		}
		if m.now >= n.next && m.now >= n.quietUntil && !m.dead(i) {
			m.beat(n)
		}
	}
}

// dead: the last node falls silent soon and for ever.
func (m *world) dead(i int) bool { return i == len(m.nodes)-1 && m.now > time.Hour+5*time.Second }

func (m *world) goWrong() {
	w := m.weather
	if m.chance(w.hang) {
		m.hung = m.until(30 * time.Second)
	}
	if m.chance(w.stale) {
		m.blind = m.until(30 * time.Second)
	}
	if m.chance(w.away) {
		m.natsAway = m.until(15 * time.Second)
	}
	if m.chance(w.sleep) {
		m.asleep = m.until(30 * time.Second)
	}
	if m.chance(w.freeze) {
		m.holder.frozen = m.until(30 * time.Second)
	}
	old := m.holder
	switch {
	case m.chance(w.kill), m.chance(w.handOver), w.relay && m.now < time.Hour+weatherEnds && m.now-old.made >= 6*time.Second:
		m.startWatcher()
	case m.now < old.frozen && m.IntN(80) == 0, m.now >= time.Hour+weatherEnds && m.now < old.frozen:
		old.deposed = true // it does not know, and may have a digest in hand
		m.zombies = append(m.zombies, old)
		m.startWatcher()
	}
	if away := m.now < m.natsAway; m.wasAway && !away && m.stored != nil {
		m.send(*m.stored) // a new connection, a new replay
		m.wasAway = away
	} else {
		m.wasAway = away
	}
}

// watch is one turn of a watcher process. What it does first is luck.
func (m *world) watch(w *modelWatcher) {
	if m.now < w.frozen {
		return
	}
	m.sendOut(w)
	if w.deposed || m.now < w.begins {
		return
	}
	if m.IntN(2) == 0 {
		m.hear(w)
		m.tell(w)
	} else {
		m.tell(w)
		m.hear(w)
	}
}

func (m *world) sendOut(w *modelWatcher) {
	for _, d := range w.outbox {
		if m.now >= m.natsAway {
			m.stored = &d
			m.send(d)
		}
	}
	w.outbox = nil
}

func (m *world) send(d Digest) {
	m.lastDue = max(m.lastDue, m.now+m.upTo(100*time.Millisecond))
	m.queue = append(m.queue, delivery{m.lastDue, d})
}

// hear reads the watch: some of what waits, then perhaps the rest.
func (m *world) hear(w *modelWatcher) {
	if m.now < m.hung {
		w.relisted = w.relisted || m.IntN(20) == 0 // the connection breaks
		return
	}
	if w.phase < 2 || w.relisted {
		m.list(w)
		return
	}
	if m.now >= m.blind {
		n := len(m.log) - w.read
		if m.IntN(4) == 0 {
			n = min(n, m.IntN(4))
		}
		for range n {
			m.deliver(w, m.log[w.read])
			w.read++
		}
		if n > 0 && (m.weather.loose || w.read == len(m.log)) {
			w.proof = m.now
		}
		if w.read < len(m.log) {
			return
		}
	}
	if m.now-w.proof >= time.Second { // a ping is answered behind what waited
		w.proof = m.now
	}
}

func (m *world) list(w *modelWatcher) {
	var leases, nodes []Beat
	for _, n := range m.nodes {
		nodes = append(nodes, Beat{Node: n.name, UID: n.uid, Heartbeat: n.heartbeat})
		if n.renewed != 0 {
			leases = append(leases, Beat{Node: n.name, Renewed: n.renewed})
		}
	}
	if w.phase == 0 {
		w.ages = NewAges(1, w.epoch, 0)
		w.ages.without = m.without
		if m.stored != nil {
			w.ages.Adopt(*m.stored)
		}
	}
	if w.phase < 2 && m.IntN(2) == 0 {
		w.phase++ // one list first, events of the other kind meanwhile
		w.ages.Leases(leases)
		if w.phase < 2 {
			return
		}
	}
	w.phase, w.relisted = 2, false
	w.ages.Leases(leases)
	w.ages.Nodes(nodes)
	w.read, w.proof = len(m.log), m.now
}

func (m *world) deliver(w *modelWatcher, e modelEvent) {
	w.heard[e.beat.Node] = e.at
	switch {
	case e.node && e.beat.UID == "":
		w.ages.NodeGone(e.beat.Node)
	case e.node:
		w.ages.Node(e.beat.Node, e.beat.UID, e.beat.Heartbeat)
	default:
		w.ages.Lease(e.beat.Node, e.beat.Renewed)
	}
}

// tell ticks, makes a digest when one is due, and sends it, unless the process
// is frozen in between.
func (m *world) tell(w *modelWatcher) {
	if w.phase < 2 {
		return
	}
	proof := w.proof + w.offset
	if w.relisted && m.now >= m.hung {
		proof = 0 // no watch
	}
	w.ages.Tick(m.now+w.offset, proof)
	if m.now < w.due {
		return
	}
	d, ok := w.ages.Digest(0, m.now+w.offset)
	if !ok {
		return
	}
	w.due = m.now + time.Second
	for _, b := range d.Beats {
		if heard, ok := w.heard[b.Node]; ok && b.Age > m.now-heard {
			m.broken = fmt.Sprintf("at %s: %s has age %s, %s after its last beat", m.now-time.Hour, b.Node, b.Age, m.now-heard)
		}
	}
	d.Beats = append([]Beat(nil), d.Beats...)
	w.outbox = append(w.outbox, d)
	if m.chance(10 * m.weather.freeze) {
		w.frozen = m.until(30 * time.Second)
		return
	}
	m.sendOut(w)
}

// read takes some of the digests that wait; the reader may be asleep, and its
// clock runs on.
func (m *world) read() {
	if m.now < m.asleep || m.now < m.natsAway {
		return
	}
	for len(m.queue) > 0 && m.queue[0].due <= m.now {
		m.reader.Digest(m.queue[0].digest, m.now+m.readerOff)
		m.queue = m.queue[1:]
		if m.IntN(3) == 0 {
			return // it judges in between
		}
	}
}

func (m *world) check() string {
	if m.now < m.asleep {
		return ""
	}
	now := m.now + m.readerOff
	for i, n := range m.nodes {
		v := m.reader.Of(n.name, n.uid, now)
		if v.Why != "" {
			if i == 0 {
				m.suspended = m.now
			}
			continue
		}
		if v.Silence >= grace {
			m.judged[n.name] = true
		}
		if s := m.wrong(n, v); s != "" {
			return fmt.Sprintf("at %s: %s is told to be silent for %s, has been for %s, beats since %s: %s",
				m.now-time.Hour, n.name, v.Silence, m.now-n.beaten, n.since-time.Hour, s)
		}
	}
	return ""
}

func (m *world) wrong(n *modelNode, v Verdict) string {
	truly := m.now - n.beaten
	switch {
	case m.weather == mirage:
		return m.act(n, v)
	case v.Silence > m.now-n.made+digestLife+maxTick:
		return "it is not that old"
	case v.Silence >= grace && truly <= beatEvery+stepTime && m.now-n.since >= grace:
		return "it beats"
	case m.weather == calm && v.Silence < truly-inTime && n.beaten > time.Hour+4*time.Second:
		return "too late"
	}
	return ""
}

// act is what a controller does with a verdict: it reads live, and believes the
// digest only if that agrees. A watch that is blind is found by the first of
// these reads, and the digest is not believed of anybody else then.
func (m *world) act(n *modelNode, v Verdict) string {
	if v.Silence < grace {
		return ""
	}
	for node, shown := range m.denied {
		if b, _ := m.reader.beat(node); b.Same(shown) {
			return "the digest was contradicted"
		}
		delete(m.denied, node)
	}
	live := Beat{Node: n.name, UID: n.uid, Renewed: n.renewed, Heartbeat: n.heartbeat}
	if !m.reader.Live(v.Beat, live) {
		m.denied[n.name] = v.Beat
	} else if m.now-n.beaten < grace {
		return "the live read agreed"
	}
	return ""
}

// run returns what was not kept, with the seed's story cut to one line.
func (m *world) run() string {
	last := m.nodes[len(m.nodes)-1]
	for m.now < time.Hour+worldEnds {
		if s := m.step(); s != "" {
			return s
		}
		if m.weather.relay && m.now == time.Hour+weatherEnds && !m.judged[last.name] {
			return fmt.Sprintf("%s has been silent for %s and hand-overs have hidden it", last.name, m.now-last.beaten)
		}
	}
	switch {
	case m.suspended > time.Hour+worldEnds-2*time.Second:
		return "still suspended: " + string(m.reader.Suspended(m.now+m.readerOff))
	case !m.judged[last.name]:
		return fmt.Sprintf("%s has been silent for %s and was never told to be", last.name, m.now-last.beaten)
	}
	return ""
}
