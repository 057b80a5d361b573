// Package operator is what a person runs against an installation: the state of
// its members and of the bus, and the repair of the bus. It reads what members
// say of themselves; only reset writes.
package operator

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/lease"
)

// Status is an installation at one moment, as its members tell it.
type Status struct {
	Cluster    string       `json:"cluster"`
	Partitions int          `json:"partitions"`
	Bus        string       `json:"bus"` // "ok", or what is wrong
	Roles      []RoleStatus `json:"roles"`
	Kinds      []KindStatus `json:"kinds"`
	// Heartbeats are told of by the watcher that holds nodes.
	Heartbeats *Heartbeats `json:"heartbeats,omitempty"`
	// Paused is what any member saw paused last, or that it cannot tell.
	Paused []string `json:"paused,omitempty"`
	// DeadLetters are keys that cannot be processed.
	DeadLetters []DeadLetter `json:"deadLetters,omitempty"`
}

// RoleStatus is one role.
type RoleStatus struct {
	Role    string         `json:"role"`
	Members []MemberStatus `json:"members"`
	// Held and Units: how many partitions (of the watcher: kinds) have a holder.
	Held  int `json:"held"`
	Units int `json:"units,omitempty"`
	// Backlog is what the durable positions have not passed, in messages: an
	// upper bound. Negative: unknown.
	Backlog int64 `json:"backlog"`
	// OldestSeconds is how long the key has waited that waits longest.
	OldestSeconds float64 `json:"oldestSeconds"`
	// Rates are the limits that the role's members share.
	Rates []RateStatus `json:"rates,omitempty"`
	// Jobs are pieces of work that are not cut into partitions, by name, as their
	// holders tell.
	Jobs []JobStatus `json:"jobs,omitempty"`
	// Heaviest are the partitions with the most objects, heaviest first.
	Heaviest []UnitStatus `json:"heaviest,omitempty"`
}

// MemberStatus is one replica.
type MemberStatus struct {
	ID            string       `json:"id"`
	Host          string       `json:"host"`
	Version       string       `json:"version"`
	AgeSeconds    float64      `json:"ageSeconds"`
	ResidentBytes uint64       `json:"residentBytes"`
	NotReady      []string     `json:"notReady,omitempty"`
	Mode          string       `json:"mode,omitempty"`
	Parts         []PartMode   `json:"parts,omitempty"`
	Units         []UnitStatus `json:"units"`
}

// PartMode is the mode of one part of a role: its own, and what holds, which is the
// more cautious of that and of the role's.
type PartMode struct {
	Part string `json:"part"`
	Own  string `json:"own"`
	Mode string `json:"mode"`
}

func partModes(said []*millracev1.PartMode) (out []PartMode) {
	for _, p := range said {
		out = append(out, PartMode{p.GetPart(), p.GetOwn(), p.GetHolds()})
	}
	return out
}

// UnitStatus is one partition or kind that a member holds.
type UnitStatus struct {
	Unit          string  `json:"unit"`
	Holder        string  `json:"holder,omitempty"`
	Epoch         uint64  `json:"epoch"`
	Synced        bool    `json:"synced"`
	Objects       uint64  `json:"objects"`
	Queued        uint64  `json:"queued"`
	OldestSeconds float64 `json:"oldestSeconds"`
	Reconciles    uint64  `json:"reconciles"`
}

// RateStatus is one token bucket, as the member knows it that saw most spent.
type RateStatus struct {
	Scope string `json:"scope"`
	// PerSecond and Burst are the limit in force, in tokens/s and tokens; Tokens
	// is how many there are.
	PerSecond float64 `json:"perSecond"`
	Burst     float64 `json:"burst"`
	Tokens    uint64  `json:"tokens"`
	// Spent counts the tokens taken since the bucket was made, Taker took the last.
	Spent uint64 `json:"spent"`
	Taker string `json:"taker,omitempty"`
	// Waiting is how many callers wait for a token, over all members.
	Waiting uint64 `json:"waiting"`
	Problem string `json:"problem,omitempty"`
}

// JobStatus is one job at the member that holds it.
type JobStatus struct {
	Job    string `json:"job"`
	Holder string `json:"holder"`
	Host   string `json:"host"`
	Epoch  uint64 `json:"epoch"`
	// Part is the part of the role that it belongs to, Mode what holds for it.
	Part string `json:"part,omitempty"`
	Mode string `json:"mode"`
	// Synced: what it reads of the whole cluster is complete, so many objects.
	Synced  bool   `json:"synced"`
	Objects uint64 `json:"objects"`
	Passes  uint64 `json:"passes"`
	// WaitsFor is what its next look needs, LastError why the last pass failed.
	WaitsFor  string `json:"waitsFor,omitempty"`
	LastError string `json:"lastError,omitempty"`
}

// KindStatus is one kind, as the member knows it that is furthest behind.
type KindStatus struct {
	Kind       string  `json:"kind"`
	Role       string  `json:"role"`
	AgeSeconds float64 `json:"ageSeconds"`
	Upto       uint64  `json:"upto"`
	Objects    uint64  `json:"objects"`
	Synced     bool    `json:"synced"`
	Absent     bool    `json:"absent,omitempty"`
	Problem    string  `json:"problem,omitempty"`
}

// Heartbeats is how the beats of nodes are followed.
type Heartbeats struct {
	Nodes         uint64  `json:"nodes"`
	OldestSeconds float64 `json:"oldestSeconds"`
	// DigestBytes is the size of the largest partition's last digest.
	DigestBytes uint64 `json:"digestBytes"`
	// Problem is why nobody can judge by the digests; empty while they can.
	Problem string `json:"problem,omitempty"`
}

// DeadLetter is one key that cannot be processed.
type DeadLetter struct {
	Role, Kind, Key, Reason string
	At                      time.Time
}

// gatherWait is how long members may take to answer. Unit: time. Source: an
// answer is ready in microseconds; a frozen member never comes.
const gatherWait = 500 * time.Millisecond

// heaviest is how many partitions are named. Unit: partitions.
const heaviest = 3

// Gather asks the bus and every member.
func Gather(ctx context.Context, b *bus.Bus) (Status, error) {
	s := Status{Cluster: b.Cluster(), Partitions: b.Partitions(), Bus: "ok"}
	if err := b.Verify(ctx); err != nil {
		s.Bus = err.Error()
	}
	answers, err := b.AskAll(ctx, lease.StatusSubject(b.Cluster()), nil, gatherWait)
	if err != nil && !errors.Is(err, event.ErrNoResponders) {
		return s, fmt.Errorf("asking members: %w", err)
	}
	members := make([]*millracev1.MemberStatus, 0, len(answers))
	for _, a := range answers {
		m := &millracev1.MemberStatus{}
		if err := proto.Unmarshal(a, m); err != nil {
			return s, fmt.Errorf("reading a member's answer: %w", err)
		}
		members = append(members, m)
	}
	s.add(members, time.Now())
	for _, m := range members {
		s.Paused = append(s.Paused, m.GetPaused()...)
	}
	slices.Sort(s.Paused)
	s.Paused = slices.Compact(s.Paused)
	for i := range s.Roles {
		s.Roles[i].Backlog = backlog(ctx, b, s.Roles[i])
	}
	letters, err := b.DeadLetters(ctx)
	if err != nil {
		return s, fmt.Errorf("reading dead letters: %w", err)
	}
	for _, l := range letters {
		s.DeadLetters = append(s.DeadLetters, deadLetter(l))
	}
	return s, nil
}

func deadLetter(l *millracev1.DeadLetter) DeadLetter {
	return DeadLetter{
		Role: l.GetRole(), Kind: l.GetKind(), Reason: l.GetReason(), At: l.GetAt().AsTime(),
		Key: event.Key{Namespace: l.GetNamespace(), Name: l.GetName()}.String(),
	}
}

// backlog sums what the durable positions of a role have not passed.
func backlog(ctx context.Context, b *bus.Bus, r RoleStatus) int64 {
	var sum int64
	for i := range r.Units {
		n, err := b.Backlog(ctx, r.Role, i)
		if err != nil {
			return -1
		}
		sum += int64(n) //nolint:gosec // messages of a stream
	}
	return sum
}

// add sorts the members into roles.
func (s *Status) add(members []*millracev1.MemberStatus, now time.Time) {
	slices.SortFunc(members, func(a, b *millracev1.MemberStatus) int {
		return cmp.Or(
			cmp.Compare(a.GetMember().GetRole(), b.GetMember().GetRole()),
			cmp.Compare(a.GetMember().GetHost(), b.GetMember().GetHost()),
			cmp.Compare(a.GetMember().GetId(), b.GetMember().GetId()),
		)
	})
	for _, m := range members {
		role := m.GetMember().GetRole()
		if n := len(s.Roles); n == 0 || s.Roles[n-1].Role != role {
			s.Roles = append(s.Roles, RoleStatus{Role: role})
		}
		s.Roles[len(s.Roles)-1].add(m, now)
		for _, k := range m.GetKinds() {
			s.addKind(role, k)
		}
		if h := m.GetHeartbeats(); h != nil {
			s.Heartbeats = &Heartbeats{
				Nodes: h.GetNodes(), OldestSeconds: h.GetOldest().AsDuration().Seconds(), DigestBytes: h.GetDigestBytes(), Problem: h.GetProblem(),
			}
		}
	}
	for i := range s.Roles {
		s.Roles[i].finish(s.Partitions)
	}
	slices.SortFunc(s.Kinds, func(a, b KindStatus) int {
		return cmp.Or(cmp.Compare(a.Role, b.Role), cmp.Compare(a.Kind, b.Kind))
	})
}

func (r *RoleStatus) add(m *millracev1.MemberStatus, now time.Time) {
	out := MemberStatus{
		ID: m.GetMember().GetId(), Host: m.GetMember().GetHost(), Version: m.GetMember().GetVersion(),
		AgeSeconds:    now.Sub(m.GetMember().GetStarted().AsTime()).Seconds(),
		ResidentBytes: m.GetResidentBytes(), NotReady: m.GetNotReady(), Mode: m.GetMode(),
		Parts: partModes(m.GetParts()),
	}
	for _, p := range m.GetPartitions() {
		out.Units = append(out.Units, UnitStatus{
			Unit: p.GetUnit(), Holder: out.ID, Epoch: p.GetEpoch(), Synced: p.GetSynced(), Objects: p.GetObjects(),
			Queued: p.GetQueued(), OldestSeconds: p.GetOldest().AsDuration().Seconds(), Reconciles: p.GetReconciles(),
		})
	}
	r.Members = append(r.Members, out)
	for _, said := range m.GetRates() {
		r.addRate(said)
	}
	for _, j := range m.GetJobs() {
		r.Jobs = append(r.Jobs, JobStatus{
			Job: j.GetName(), Holder: out.ID, Host: out.Host, Epoch: j.GetEpoch(), Part: j.GetPart(), Mode: j.GetMode(),
			Synced: j.GetSynced(), Objects: j.GetObjects(), Passes: j.GetPasses(), WaitsFor: j.GetWaitsFor(), LastError: j.GetLastError(),
		})
	}
}

// addRate keeps, of what members say of one bucket, what is newest: spent only
// grows.
func (r *RoleStatus) addRate(said *millracev1.RateStatus) {
	now := RateStatus{
		Scope: said.GetScope(), PerSecond: said.GetRate(), Burst: said.GetBurst(), Tokens: said.GetTokens(),
		Spent: said.GetSpent(), Taker: said.GetTaker(), Waiting: said.GetWaiting(), Problem: said.GetProblem(),
	}
	for i := range r.Rates {
		have := &r.Rates[i]
		if have.Scope != now.Scope {
			continue
		}
		waiting, problem := have.Waiting+now.Waiting, cmp.Or(have.Problem, now.Problem)
		if now.Spent > have.Spent {
			*have = now
		}
		have.Waiting, have.Problem = waiting, problem
		return
	}
	r.Rates = append(r.Rates, now)
}

// finish adds up what the members said. The watcher's units are kinds, of which
// nobody but its own members knows the number.
func (r *RoleStatus) finish(partitions int) {
	var units []UnitStatus
	for _, m := range r.Members {
		units = append(units, m.Units...)
	}
	r.Held = len(units)
	if r.Role != "watcher" {
		r.Units = partitions
	}
	for _, u := range units {
		r.OldestSeconds = max(r.OldestSeconds, u.OldestSeconds)
	}
	slices.SortFunc(units, func(a, b UnitStatus) int {
		return cmp.Or(cmp.Compare(b.Objects, a.Objects), cmp.Compare(a.Unit, b.Unit))
	})
	r.Heaviest = units[:min(heaviest, len(units))]
	slices.SortFunc(r.Jobs, func(a, b JobStatus) int { return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Epoch, b.Epoch)) })
}

// addKind keeps, of what members of one role say, the worst.
func (s *Status) addKind(role string, k *millracev1.KindStatus) {
	said := KindStatus{
		Kind: k.GetKind(), Role: role, AgeSeconds: k.GetAge().AsDuration().Seconds(), Upto: k.GetUpto(),
		Objects: k.GetObjects(), Synced: k.GetSynced(), Absent: k.GetAbsent(), Problem: k.GetProblem(),
	}
	for i := range s.Kinds {
		have := &s.Kinds[i]
		if have.Kind != said.Kind || have.Role != role {
			continue
		}
		have.AgeSeconds = max(have.AgeSeconds, said.AgeSeconds)
		have.Upto = min(have.Upto, said.Upto)
		have.Objects += said.Objects
		have.Synced = have.Synced && said.Synced
		have.Absent = have.Absent || said.Absent
		have.Problem = cmp.Or(have.Problem, said.Problem)
		return
	}
	s.Kinds = append(s.Kinds, said)
}
