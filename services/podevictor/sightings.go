package podevictor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/facts"
)

type (
	taintFacts = facts.Topic[millracev1.TaintBorne, *millracev1.TaintBorne]
	taintView  = facts.View[millracev1.TaintBorne, *millracev1.TaintBorne]
)

// sightings knows since when nodes bear their NoExecute taints without a break. A
// taint mostly says so itself. Where it does not (kubectl sets no time), the first
// sight counts, and it is recorded, so that no restart begins anew. not-ready and
// unreachable are one: a taint that takes the place of the other goes on from there,
// whatever time was written into it.
type sightings struct {
	topic *taintFacts
	view  *taintView

	mu    sync.Mutex
	nodes map[string]*seen // by name: those that have borne a taint
	// broken is when a taint was last seen gone, by the name of its fact: an older
	// fact says nothing of the taint that has come since ⚠.
	broken map[string]time.Time
	stale  map[string]bool // facts to be forgotten
	known  bool            // the facts have been read once

	kick chan struct{} // there is something stale
}

// seen are the taints of one node.
type seen struct {
	uid, version string
	taints       map[string]*borne // by the name of their fact
}

// borne is one taint, or the row of not-ready and unreachable.
type borne struct {
	// since is when it began; zero: not known yet.
	since time.Time
	// times are the taints that it consists of, and what they say; zero: nothing.
	times map[string]time.Time
}

// future is how far in the future the time of a taint may lie to be believed. Unit:
// time. Source: ours; two clocks further apart stop everything destructive.
const future = 5 * time.Second

func newSightings(store facts.Store) *sightings {
	topic := facts.New[millracev1.TaintBorne](store, "taints")
	return &sightings{
		topic: topic, view: topic.View(), nodes: make(map[string]*seen), broken: make(map[string]time.Time),
		stale: make(map[string]bool), kick: make(chan struct{}, 1),
	}
}

// run follows the facts, and forgets those that are over, until ctx ends.
func (s *sightings) run(ctx context.Context) {
	var following sync.WaitGroup
	following.Go(func() { s.view.Run(ctx) })
	defer following.Wait()
	again := time.NewTicker(forgetAgain)
	defer again.Stop()
	for {
		select {
		case <-s.kick:
		case <-again.C:
		case <-ctx.Done():
			return
		}
		s.tidy(ctx)
	}
}

// forgetAgain is how often it is tried again to forget what could not be. Unit:
// time. Source: ours.
const forgetAgain = 5 * time.Second

// tidy forgets the facts of taints that are gone ⚠: who saw them go knows better, but
// a member that starts later would believe them of the next taint of that name.
func (s *sightings) tidy(ctx context.Context) {
	s.mu.Lock()
	names := slices.Collect(maps.Keys(s.stale))
	s.mu.Unlock()
	for _, name := range names {
		fact, _ := s.view.Fact(name)
		s.mu.Lock()
		delete(s.stale, name)
		anew := fact != nil && fact.GetSince().AsTime().After(s.broken[name])
		s.mu.Unlock()
		if anew { // the taint is back, and recorded
			continue
		}
		if err := s.topic.Forget(ctx, name); err != nil {
			s.mu.Lock()
			s.stale[name] = true
			s.mu.Unlock()
			return
		}
	}
}

// sickRow is the name of the two taints that are one.
const sickRow = "not-ready or unreachable"

// nameOf is what the fact about a taint is called.
func nameOf(uid string, t *corev1.Taint) string {
	if isSick(t) {
		return uid + " " + sickRow
	}
	return uid + " " + t.Key + "=" + t.Value
}

// saw takes a node as the cache shows it: from within a look at the cache, or in the
// order of its changes. now is the cluster's time. Nobody else may tell of a node ⚠:
// who decides has read it a while ago, and would bring a taint back that has gone.
func (s *sightings) saw(n *corev1.Node, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	was := s.nodes[n.Name]
	is := taintsOf(n, now)
	if was == nil && len(is.taints) == 0 {
		return
	}
	s.nodes[n.Name] = is
	if was == nil {
		return
	}
	for name, before := range was.taints {
		switch b := is.taints[name]; {
		case b == nil, before.brokenBy(b):
			s.end(name, before, now)
		case b.since.IsZero(), !before.since.IsZero() && before.since.Before(b.since):
			b.since = before.since
		}
	}
}

// taintsOf are the taints of a node by themselves.
func taintsOf(n *corev1.Node, now time.Time) *seen {
	is := &seen{uid: string(n.UID), version: n.ResourceVersion, taints: make(map[string]*borne)}
	for _, t := range executing(n) {
		name := nameOf(is.uid, &t)
		b := is.taints[name]
		if b == nil {
			b = &borne{times: make(map[string]time.Time)}
			is.taints[name] = b
		}
		b.times[t.Key] = time.Time{}
		if t.TimeAdded != nil {
			b.times[t.Key] = t.TimeAdded.Time
		}
		if at := stated(&t, now); !at.IsZero() && (b.since.IsZero() || at.Before(b.since)) {
			b.since = at
		}
	}
	return is
}

// gone takes the end of a node.
func (s *sightings) gone(name string, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(name, now)
}

// only takes the names of all nodes that there are; from within a look at the cache.
func (s *sightings) only(names map[string]bool, now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name := range s.nodes {
		if !names[name] {
			s.forget(name, now)
		}
	}
}

// forget is gone; s.mu is held.
func (s *sightings) forget(name string, now time.Time) {
	if was := s.nodes[name]; was != nil {
		for fact, before := range was.taints {
			s.end(fact, before, now)
		}
		delete(s.nodes, name)
	}
}

// manyBroken is how many ends of taints are remembered at least, and keepBroken for
// how long: by then what was recorded before is forgotten. Units: taints, time.
// Source: ours.
const (
	manyBroken = 1000
	keepBroken = 10 * time.Minute
)

// end notes that a taint has come to an end. s.mu is held.
func (s *sightings) end(name string, b *borne, now time.Time) {
	if len(s.broken) > manyBroken {
		maps.DeleteFunc(s.broken, func(name string, at time.Time) bool { return now.Sub(at) > keepBroken && !s.stale[name] })
	}
	s.broken[name] = now
	if fact, _ := s.view.Fact(name); fact == nil && b.says() {
		return // nobody had to record it
	}
	s.stale[name] = true
	select {
	case s.kick <- struct{}{}:
	default:
	}
}

// stated is what a taint says of its beginning; zero: nothing that can be believed.
func stated(t *corev1.Taint, now time.Time) time.Time {
	if t.TimeAdded == nil || t.TimeAdded.After(now.Add(future)) {
		return time.Time{}
	}
	return t.TimeAdded.Time
}

// brokenBy reports whether a taint was away in between: it says another time than
// before. That of the other key in its row goes on.
func (b *borne) brokenBy(now *borne) bool {
	for key, at := range now.times {
		if was, had := b.times[key]; had && !was.Equal(at) {
			return true
		}
	}
	return false
}

// says reports whether the taints themselves say since.
func (b *borne) says() bool {
	for _, at := range b.times {
		if !at.IsZero() && at.Equal(b.since) {
			return true
		}
	}
	return false
}

// is reports whether a fact is about this taint ⚠: one that was left behind is about
// another that is gone, and its beginning long ago. broken is when it was last seen
// gone. Of a taint that says nothing of its beginning, that is all there is to go by.
func (b *borne) is(fact *millracev1.TaintBorne, broken time.Time) bool {
	if fact.GetSince() == nil || !fact.GetSince().AsTime().After(broken) {
		return false
	}
	says := b.stated()
	return len(says) == 0 || slices.ContainsFunc(says, func(at *timestamppb.Timestamp) bool {
		return slices.ContainsFunc(fact.GetStated(), func(was *timestamppb.Timestamp) bool { return was.AsTime().Equal(at.AsTime()) })
	})
}

// stated is what the taints say; those that say nothing are left out.
func (b *borne) stated() (out []*timestamppb.Timestamp) {
	for _, at := range b.times {
		if !at.IsZero() {
			out = append(out, timestamppb.New(at))
		}
	}
	return out
}

// errNoFacts: it is not known yet what was recorded.
var errNoFacts = fmt.Errorf("%w: what is recorded of taints has not been read", controller.ErrNotSynced)

// complete reports whether the facts have been read once. Since then, those that
// are being read again are known.
func (s *sightings) complete() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.known {
		_, s.known = s.view.Fact("")
	}
	return s.known
}

// errMoved: what was decided on is not what was seen last, or not yet.
var errMoved = errors.New("the node has changed")

// terms returns the NoExecute taints of a node with their beginnings, and records
// what only memory would keep.
func (s *sightings) terms(ctx context.Context, n *corev1.Node, now time.Time) ([]term, error) {
	taints := executing(n)
	if len(taints) > 0 && !s.complete() {
		return nil, errNoFacts
	}
	out := make([]term, 0, len(taints))
	for i := range taints {
		name := nameOf(string(n.UID), &taints[i])
		since, known, err := s.since(n, name)
		if err == nil && !known {
			since, err = s.record(ctx, n, name, since, now)
		}
		if err != nil {
			return nil, err
		}
		out = append(out, term{taints[i], since})
	}
	return out, nil
}

// borneBy returns a taint of a node as it was read; s.mu is held.
func (s *sightings) borneBy(n *corev1.Node, name string) (*borne, error) {
	is := s.nodes[n.Name]
	if is == nil || is.version != n.ResourceVersion || is.uid != string(n.UID) || is.taints[name] == nil {
		return nil, errMoved
	}
	return is.taints[name], nil
}

// since returns the beginning of a taint, as far as it is known here. known: what
// was recorded, or what the taint says, bears it out; else it is to be recorded.
func (s *sightings) since(n *corev1.Node, name string) (since time.Time, known bool, err error) {
	fact, _ := s.view.Fact(name)
	s.mu.Lock()
	defer s.mu.Unlock()
	b, err := s.borneBy(n, name)
	if err != nil {
		return since, false, err
	}
	if !b.is(fact, s.broken[name]) {
		return b.since, b.says(), nil
	}
	at := fact.GetSince().AsTime()
	if !b.says() || at.Before(b.since) {
		b.since = at
	}
	return b.since, true, nil
}

// record writes the beginning of a taint, now if it is not known, unless an earlier
// one stands.
func (s *sightings) record(ctx context.Context, n *corev1.Node, name string, since, now time.Time) (time.Time, error) {
	if since.IsZero() {
		since = now
	}
	s.mu.Lock()
	b, err := s.borneBy(n, name)
	broken := s.broken[name]
	s.mu.Unlock()
	if err != nil {
		return time.Time{}, err
	}
	stands, err := s.topic.Update(ctx, name, func(m *millracev1.TaintBorne) bool {
		if b.is(m, broken) && !since.Before(m.GetSince().AsTime()) {
			return false
		}
		m.Node, m.Taint, m.Since = n.Name, strings.TrimPrefix(name, string(n.UID)+" "), timestamppb.New(since)
		m.Stated = b.stated()
		return true
	})
	if err != nil {
		return time.Time{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if b, err = s.borneBy(n, name); err != nil {
		return time.Time{}, err
	}
	b.since = stands.GetSince().AsTime()
	return b.since, nil
}
