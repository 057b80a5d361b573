package beat

import (
	"slices"
	"strings"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// maxTick is the most that one tick may add to the age of everybody. Unit: time.
// Source: architecture section 7. What lies beyond it is time in which nobody
// watched: a frozen process, a suspended machine.
const maxTick = 2 * time.Second

// Beat is what is known of the heartbeats of one node.
type Beat struct {
	Node string
	UID  string
	// Renewed is renewTime of the node's Lease, in microseconds since 1970, and
	// Heartbeat lastHeartbeatTime of its Ready condition, in seconds, the finest
	// that either is written in; 0 where there is none. They come from the node's
	// own clock, so they are told apart and never compared with a time.
	Renewed, Heartbeat int64
	// Age is how long the node has been watched without a beat.
	Age time.Duration
}

// Same reports whether two observations of a node show the same beat.
func (b Beat) Same(other Beat) bool {
	return b.UID == other.UID && b.Renewed == other.Renewed && b.Heartbeat == other.Heartbeat
}

// Digest is everything that is known of the nodes of one partition. It holds all
// of them every time, so that any one is enough to judge.
type Digest struct {
	// Epoch is that of the watcher's lease on nodes.
	Epoch uint64
	// Counter grows with each digest of one epoch and partition.
	Counter uint64
	// At is the watcher's clock when this was made: it has no zero that means
	// anything, and tells how long a digest was on its way compared with others.
	At time.Duration
	// Beats has one entry per node, by name, ascending.
	Beats []Beat
}

// Ages keeps, for every node, how long ago its last beat came, and says it in
// digests. A beat is any change of the Lease's renewTime or of the node's own
// heartbeat; ages are measured here and never read off such a time.
//
// Time passes by Tick alone, and only while it is proven that a beat would have
// been heard: time that nobody watched is not silence. now is always the same
// clock, which must count the suspension of the machine.
//
// Order of use: Adopt for each digest of a predecessor, then the methods that
// tell of nodes and Leases as their lists and watches do, and Tick and Digest
// whenever they are due.
type Ages struct {
	epoch  uint64
	slices []agesSlice
	hearts map[string]*heart
	// listed: both lists have come once.
	nodesListed, leasesListed bool

	// clock is watched time; it is what ages are differences of.
	clock time.Duration
	// heard is up to when the clock has run, in the caller's time; watching is
	// false while nothing proves that a beat would be heard.
	heard    time.Duration
	watching bool
	// fresh have beaten since the last tick, and young before it, in order; their
	// age is 0 until the proof has come as far as they.
	fresh []*heart
	young []cohort
	ticks uint64

	without rule
}

// heart is one node, or a Lease whose node is not known.
type heart struct {
	Beat
	slice int
	// since is the clock at the last beat. fresh says that it is not known yet, and
	// tick whose cohort will tell.
	since time.Duration
	fresh bool
	tick  uint64
	// node and lease exist; adopted: the predecessor knew the node.
	node, lease, adopted bool
}

// cohort are the nodes that had beaten by a tick and not by the one before.
type cohort struct {
	tick   uint64
	at     time.Duration // of the tick, in the caller's time
	hearts []*heart
}

type agesSlice struct {
	counter uint64
	heard   time.Duration // of the last digest
	told    bool
	hearts  []*heart // nodes that exist
	sorted  bool
	oldest  time.Duration
	beats   []Beat // of the last digest
}

// NewAges returns the ages of no nodes at all. counter is the highest that this
// epoch may have used already.
func NewAges(partitions int, epoch, counter uint64) *Ages {
	a := &Ages{epoch: epoch, slices: make([]agesSlice, partitions), hearts: make(map[string]*heart)}
	for i := range a.slices {
		a.slices[i].counter = counter
	}
	return a
}

// Adopt takes over what a predecessor knew of one partition, before anything else
// is told. It changes no age: what has beaten meanwhile shows in the lists as
// another renewTime or heartbeat, and an older digest than the last one only
// knows smaller ages.
func (a *Ages) Adopt(d Digest) {
	for _, b := range d.Beats {
		if !a.without.keeps(ruleInherit) {
			continue
		}
		h := a.heart(b.Node)
		h.UID, h.Renewed, h.Heartbeat = b.UID, b.Renewed, b.Heartbeat
		h.since, h.adopted = a.clock-b.Age, true
	}
	if d.Epoch == a.epoch {
		for i := range a.slices {
			a.slices[i].counter = max(a.slices[i].counter, d.Counter)
		}
	}
}

// Nodes takes a consistent list; of each entry Node, UID and Heartbeat count.
func (a *Ages) Nodes(list []Beat) {
	exists := make(map[string]bool, len(list))
	for i := range list {
		exists[list[i].Node] = true
		a.Node(list[i].Node, list[i].UID, list[i].Heartbeat)
	}
	a.nodesListed = true
	for name := range a.hearts {
		if !exists[name] {
			a.NodeGone(name)
		}
	}
}

// Node tells of a node as it is now. A UID that was not known starts at age 0: a
// node made anew is not its predecessor.
func (a *Ages) Node(name, uid string, heartbeat int64) {
	h := a.heart(name)
	if !h.node {
		h.node = true
		s := &a.slices[h.slice]
		s.hearts, s.sorted = append(s.hearts, h), false
	}
	silently := h.adopted && !a.nodesListed && !a.without.keeps(ruleMissed)
	switch {
	case h.UID == "":
		a.beat(h)
		if !a.without.keeps(ruleFirstSight) {
			h.fresh, h.since = false, a.clock-time.Hour
		}
	case h.UID != uid:
		if a.without.keeps(ruleNewUID) {
			a.beat(h)
		}
	case a.changed(h.Heartbeat, heartbeat) && a.without.keeps(ruleHeartbeat) && !silently:
		a.beat(h)
	}
	h.UID, h.Heartbeat = uid, heartbeat
}

// NodeGone tells that a node was deleted.
func (a *Ages) NodeGone(name string) {
	h := a.hearts[name]
	if h == nil {
		return
	}
	if h.node {
		s := &a.slices[h.slice]
		s.hearts = slices.DeleteFunc(s.hearts, func(other *heart) bool { return other == h })
	}
	h.node, h.Heartbeat = false, 0
	if a.without.keeps(ruleNewUID) {
		h.UID = ""
	}
	a.forget(h)
}

// Leases takes a consistent list; of each entry Node and Renewed count.
func (a *Ages) Leases(list []Beat) {
	exists := make(map[string]bool, len(list))
	for i := range list {
		exists[list[i].Node] = true
		a.Lease(list[i].Node, list[i].Renewed)
	}
	for name, h := range a.hearts {
		if !exists[name] {
			h.lease, h.Renewed = false, 0
			a.forget(h)
		}
	}
	a.leasesListed = true
}

// Lease tells of a node's Lease as it is now. Its node need not be known.
func (a *Ages) Lease(name string, renewed int64) {
	h := a.heart(name)
	h.lease = true
	silently := h.adopted && !a.leasesListed && !a.without.keeps(ruleMissed)
	if a.changed(h.Renewed, renewed) && !silently {
		a.beat(h)
	}
	h.Renewed = renewed
}

// LeaseGone tells that a Lease was deleted, which is neither a beat nor a sign of
// silence.
func (a *Ages) LeaseGone(name string) {
	if h := a.hearts[name]; h != nil {
		h.lease, h.Renewed = false, 0
		a.forget(h)
	}
}

// changed: a clock that was set back beats like any other.
func (a *Ages) changed(was, is int64) bool {
	if a.without.keeps(ruleAnyChange) {
		return is != was
	}
	return is > was
}

func (a *Ages) heart(name string) *heart {
	h := a.hearts[name]
	if h == nil {
		h = &heart{Beat: Beat{Node: name}, slice: partition.OfKey(event.Key{Name: name}, len(a.slices))}
		a.hearts[name] = h
	}
	return h
}

// forget drops a heart of which nothing is left. What a predecessor knew stays
// until the list of nodes tells what became of it.
func (a *Ages) forget(h *heart) {
	if !h.node && !h.lease && (a.nodesListed || !h.adopted) {
		delete(a.hearts, h.Node)
	}
}

// beat: the clock may stand a proof behind, so the age is counted from where the
// clock stands when a proof has come as far as the tick that follows the beat.
func (a *Ages) beat(h *heart) {
	h.since = a.clock
	if a.without.keeps(ruleNextTick) && (!h.fresh || h.tick != a.ticks) {
		h.fresh, h.tick = true, a.ticks
		a.fresh = append(a.fresh, h)
	}
}

// Tick lets time pass. proof is up to when every beat has certainly been told
// here: the last event of the watch, or the last answered ping; 0 while the watch
// is not known to live.
func (a *Ages) Tick(now, proof time.Duration) {
	to, exact := min(now, proof), false
	if !a.without.keeps(ruleProof) {
		to = now
	}
	switch {
	case to <= 0:
		a.watching = false
	case !a.watching:
		a.watching, a.heard = true, to
	case to > a.heard:
		passed := to - a.heard
		if exact = passed <= maxTick || !a.without.keeps(ruleMaxTick); !exact {
			passed = maxTick
		}
		a.clock, a.heard = a.clock+passed, to
	}
	a.grow(now, exact)
}

// grow lets those age that the proof has come as far as. exact: the clock has run
// as long as the time that it has come further.
func (a *Ages) grow(now time.Duration, exact bool) {
	if len(a.fresh) > 0 {
		a.young = append(a.young, cohort{tick: a.ticks, at: now, hearts: a.fresh})
		a.fresh = nil
	}
	a.ticks++
	for len(a.young) > 0 && a.watching && a.young[0].at <= a.heard {
		since := a.clock
		if exact {
			since -= a.heard - a.young[0].at
		}
		for _, h := range a.young[0].hearts {
			if h.fresh && h.tick == a.young[0].tick {
				h.since, h.fresh = since, false
			}
		}
		a.young = a.young[1:]
	}
}

// Digest returns what is known of a partition as of the last tick, unless it must
// not be said: before both lists have come, and until the watch has proven to
// live since the last digest and of late. A digest that repeats old ages, or tells
// at a thaw how things stood before the freeze, would let its reader go on
// counting on no knowledge at all. Beats is reused by the next call for this
// partition.
func (a *Ages) Digest(slice int, now time.Duration) (Digest, bool) {
	s := &a.slices[slice]
	proven := a.watching && (!s.told || a.heard > s.heard) && now-a.heard <= maxTick
	if !a.nodesListed || !a.leasesListed || !proven && a.without.keeps(ruleNoDigest) {
		return Digest{}, false
	}
	if !s.sorted {
		slices.SortFunc(s.hearts, func(a, b *heart) int { return strings.Compare(a.Node, b.Node) })
		s.sorted = true
	}
	s.told, s.heard, s.oldest = true, a.heard, 0
	s.counter++
	s.beats = s.beats[:0]
	for _, h := range s.hearts {
		b := h.Beat
		if !h.fresh {
			b.Age = a.clock - h.since
		}
		s.oldest = max(s.oldest, b.Age)
		s.beats = append(s.beats, b)
	}
	return Digest{Epoch: a.epoch, Counter: s.counter, At: now, Beats: s.beats}, true
}

// Count returns how many nodes there are.
func (a *Ages) Count() int {
	n := 0
	for i := range a.slices {
		n += len(a.slices[i].hearts)
	}
	return n
}

// Oldest returns the greatest age that the last digests told.
func (a *Ages) Oldest() time.Duration {
	var oldest time.Duration
	for i := range a.slices {
		oldest = max(oldest, a.slices[i].oldest)
	}
	return oldest
}

// Counter returns the highest counter that was used.
func (a *Ages) Counter() uint64 {
	var highest uint64
	for i := range a.slices {
		highest = max(highest, a.slices[i].counter)
	}
	return highest
}
