package controller

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
)

// grace is how long inputs may be incomplete before the member calls itself not
// ready: every claim and every reconnect reads anew. Unit: time. Source: ours.
const grace = 5 * time.Second

// Status returns what this member holds and knows; the process fills in the
// rest.
func (c *Controller) Status() *millracev1.MemberStatus {
	s := &millracev1.MemberStatus{NotReady: c.missing(), Mode: c.modes.mode(), Parts: c.partModes()}
	held := c.partitions()
	slices.SortFunc(held, func(a, b *Partition) int { return cmp.Compare(a.Number(), b.Number()) })
	for _, p := range held {
		s.Partitions = append(s.Partitions, p.status())
	}
	for _, j := range c.heldJobs() {
		s.Jobs = append(s.Jobs, j.status())
	}
	kinds := c.kinds()
	for _, kind := range slices.Sorted(maps.Keys(kinds)) {
		s.Kinds = append(s.Kinds, kindStatus(kinds[kind]))
	}
	return s
}

func kindStatus(st cache.Status) *millracev1.KindStatus {
	k := &millracev1.KindStatus{
		Kind: string(st.Kind), Synced: st.Synced, Absent: st.Absent, Upto: st.Upto,
		Objects: uint64(st.Objects), //nolint:gosec // a count
	}
	if st.Known {
		k.Age = durationpb.New(st.Age)
	}
	return k
}

func (p *Partition) status() *millracev1.PartitionStatus {
	s := &millracev1.PartitionStatus{Unit: strconv.Itoa(p.Number()), Epoch: p.Epoch(), Reconciles: p.reconciles.Load()}
	p.mu.Lock()
	at, complete := p.complete()
	s.Synced = complete && at == p.opened
	p.mu.Unlock()
	for _, st := range p.cache.Status() {
		s.Objects += uint64(st.Objects) //nolint:gosec // a count
	}
	keys, oldest := p.ledger.waiting()
	s.Queued = uint64(keys) //nolint:gosec // a count
	if !oldest.IsZero() {
		s.Oldest = durationpb.New(time.Since(oldest))
	}
	return s
}

// kinds returns each kind as the worst of the partitions knows it.
func (c *Controller) kinds() map[event.Kind]cache.Status {
	kinds := make(map[event.Kind]cache.Status)
	add := func(st cache.Status) {
		have, known := kinds[st.Kind]
		if known {
			st.Synced = st.Synced && have.Synced
			st.Absent = st.Absent && have.Absent
			st.Known = st.Known && have.Known
			st.Age = max(st.Age, have.Age)
			st.Upto = min(st.Upto, have.Upto)
			st.Objects += have.Objects
			st.Opaque += have.Opaque
			st.Problem = cmp.Or(have.Problem, st.Problem)
		}
		kinds[st.Kind] = st
	}
	for _, p := range c.partitions() {
		for _, st := range p.cache.Status() {
			add(st)
		}
	}
	for _, st := range c.wide.Status() {
		add(st)
	}
	return kinds
}

// Ready returns what is missing, nil if nothing is: a kind that nobody watches,
// one too old, partitions that are still being read.
func (c *Controller) Ready() error {
	if missing := c.missing(); len(missing) > 0 {
		return errors.New(strings.Join(missing, "; "))
	}
	return nil
}

func (c *Controller) missing() (out []string) {
	switch c.modes.mode() {
	case "":
		return []string{"the mode is not known yet"}
	case ModeOff:
		return nil
	}
	for _, part := range c.partModes() {
		if part.GetOwn() == "" {
			out = append(out, fmt.Sprintf("the mode of %s is not known yet", part.GetPart()))
		}
	}
	closed := 0
	problems := make(map[string]struct{})
	for _, p := range c.partitions() {
		if !p.closedFor(grace) {
			continue
		}
		closed++
		for _, st := range p.cache.Status() {
			if st.Problem != "" {
				problems[st.Problem] = struct{}{}
			}
		}
	}
	for _, st := range c.wide.Status() {
		if st.Problem != "" {
			problems[st.Problem] = struct{}{}
		}
	}
	out = append(out, slices.Sorted(maps.Keys(problems))...)
	for kind, st := range c.kinds() {
		if limit := max(c.limit(kind, Harmless), grace); st.Synced && st.Known && st.Age > limit {
			out = append(out, fmt.Sprintf("%s: no bookmark for %s", kind, st.Age.Round(time.Second)))
		}
	}
	if err := c.skewed(); err != nil {
		out = append(out, err.Error())
	}
	if closed > 0 {
		out = append(out, fmt.Sprintf("%d partitions are not complete", closed))
	}
	return out
}

// closedFor reports whether the partition has waited for inputs that long.
func (p *Partition) closedFor(d time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed.IsZero() && time.Since(p.closed) > d
}
