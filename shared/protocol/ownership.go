package protocol

import (
	"slices"
	"time"

	"github.com/millrace-io/millrace/shared/partition"
)

// The times of ownership. Unit: see each. Source: architecture section 5.
const (
	// MemberTTL is how long a member key lives without renewal.
	MemberTTL = 6 * time.Second
	// RenewEvery is how often a member renews its key.
	RenewEvery = 2 * time.Second
	// Margin is how much earlier than others a member distrusts itself.
	Margin = time.Second
)

// Wish is the kind of an intent.
type Wish uint8

const (
	// WishClaim: take Unit by CAS on Revision; answer with LeaseSeen or, when
	// refused, nothing.
	WishClaim Wish = iota + 1
	// WishRelease: finish what is in hand on Unit, then give it up by CAS on
	// Revision.
	WishRelease
	// WishEvict: mark member Member as dead by CAS on Revision, which is zero
	// for one whose key was never told; answer with MemberSeen(…, evicted) or
	// nothing.
	WishEvict
)

// Intent is something a member should do now.
type Intent struct {
	Wish     Wish
	Unit     string
	Member   string
	Revision uint64
}

// Ownership decides which units one member claims, keeps and gives up. It is
// told what the bucket holds, and how much *connected* time has passed: silence
// counts against another only while this member could have heard it.
type Ownership struct {
	self, salt string
	units      []string
	members    map[string]memberView
	leases     map[string]leaseView
	caught     bool
	without    without
}

type memberView struct {
	revision uint64
	renewed  time.Duration // connected time at which the last renewal was seen
	present  bool
	evicted  bool
}

type leaseView struct {
	holder   string
	revision uint64
}

// NewOwnership returns a member that has seen nothing. salt is the role: it
// keeps different roles from preferring the same process. units is the same
// list, in the same order, for every member.
func NewOwnership(self, salt string, units []string) *Ownership {
	return &Ownership{
		self: self, salt: salt, units: units,
		members: make(map[string]memberView),
		leases:  make(map[string]leaseView),
	}
}

// Begin is called when the view of the bucket starts anew: what is not told
// again before Caught is not there.
func (o *Ownership) Begin() {
	o.caught = false
	for id, m := range o.members {
		// Revisions start over too: the bucket may have been rolled back.
		m.present, m.revision = false, 0
		o.members[id] = m
	}
	clear(o.leases)
}

// Caught is called when everything in the bucket has been told. now is
// connected time. Silence counts from here on: what was renewed while the view
// was interrupted, or was lost by the server since, could not be heard.
func (o *Ownership) Caught(now time.Duration) {
	o.caught = true
	if !o.without.keeps(ruleConnectedTime) {
		return
	}
	for id, m := range o.members {
		m.renewed = now
		o.members[id] = m
	}
}

// Gap is called when the view of the bucket is interrupted.
func (o *Ownership) Gap() { o.caught = false }

// MemberSeen tells a member key: renewed, or evicted (by another, or by itself
// when it left).
func (o *Ownership) MemberSeen(id string, revision uint64, evicted bool, now time.Duration) {
	m, known := o.members[id]
	if known && revision < m.revision {
		return
	}
	if !known || revision > m.revision {
		m.renewed = now
	}
	m.revision, m.present, m.evicted = revision, true, evicted
	o.members[id] = m
}

// MemberExpired tells that a member key is no longer there, without anyone
// having evicted it.
func (o *Ownership) MemberExpired(id string) {
	if m, known := o.members[id]; known {
		m.present = false
		o.members[id] = m
	}
}

// LeaseSeen tells the lease of a unit; holder is empty once released.
func (o *Ownership) LeaseSeen(unit, holder string, revision uint64, now time.Duration) {
	if l, known := o.leases[unit]; known && revision < l.revision {
		return
	}
	o.leases[unit] = leaseView{holder: holder, revision: revision}
	if _, known := o.members[holder]; !known && holder != "" {
		// Its key may be renewed ahead of this view for long: that it was not
		// told does not mean that it is not there, unless all has been told.
		o.members[holder] = memberView{renewed: now, present: o.caught}
	}
}

// Holder returns who holds unit, and under which epoch.
func (o *Ownership) Holder(unit string) (holder string, epoch uint64) {
	l := o.leases[unit]
	return l.holder, l.revision
}

// Held returns the units that self holds by the bucket, in order.
func (o *Ownership) Held() []string {
	var held []string
	for _, u := range o.units {
		if o.leases[u].holder == o.self {
			held = append(held, u)
		}
	}
	return held
}

// Living returns the members that count, sorted. now is connected time.
func (o *Ownership) Living(now time.Duration) []string {
	var ids []string
	for id := range o.members {
		if !o.dead(id, now) && o.members[id].present {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// dead reports whether id's leases may be taken.
func (o *Ownership) dead(id string, now time.Duration) bool {
	if id == o.self {
		return false
	}
	m, known := o.members[id]
	if !o.without.keeps(ruleConnectedTime) && !m.present {
		return true
	}
	return known && (m.evicted || now-m.renewed >= MemberTTL)
}

// Step returns what to do now. now is connected time. It wishes nothing while
// the view of the bucket is incomplete or self is not a member.
func (o *Ownership) Step(now time.Duration) []Intent {
	me := o.members[o.self]
	if !o.caught || !me.present || me.evicted {
		return nil
	}
	var intents []Intent
	for _, id := range o.sortedMembers() {
		m := o.members[id]
		if m.present && !m.evicted && o.dead(id, now) && o.without.keeps(ruleEvictFirst) {
			intents = append(intents, Intent{Wish: WishEvict, Member: id, Revision: m.revision})
		}
	}
	living := o.Living(now)
	winners := partition.Assign(o.salt, living, len(o.units))
	surplus := len(o.Held()) - partition.Cap(len(o.units), len(living))
	for i, unit := range o.units {
		l := o.leases[unit]
		switch {
		case l.holder == o.self:
			if surplus > 0 && winners[i] != o.self {
				surplus--
				intents = append(intents, Intent{Wish: WishRelease, Unit: unit, Revision: l.revision})
			}
		case winners[i] == o.self && o.free(l, now):
			intents = append(intents, Intent{Wish: WishClaim, Unit: unit, Revision: l.revision})
		}
	}
	return intents
}

// free reports whether a lease may be claimed: never held, released, or held by
// a dead member whose key is gone or says so.
func (o *Ownership) free(l leaseView, now time.Duration) bool {
	if l.holder == "" {
		return true
	}
	m := o.members[l.holder]
	return o.dead(l.holder, now) && (m.evicted || !m.present || !o.without.keeps(ruleEvictFirst))
}

func (o *Ownership) sortedMembers() []string {
	ids := make([]string, 0, len(o.members))
	for id := range o.members {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// Forget drops members that are neither present nor hold anything, so that the
// view does not grow with every restart.
func (o *Ownership) Forget() {
	holders := make(map[string]bool, len(o.leases))
	for _, l := range o.leases {
		holders[l.holder] = true
	}
	for id, m := range o.members {
		if (!m.present || m.evicted) && !holders[id] && id != o.self {
			delete(o.members, id)
		}
	}
}
