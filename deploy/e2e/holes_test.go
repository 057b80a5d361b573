package e2e

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// inputsMayBe is how old the inputs of a slice may be when it is seen: 3 s where a
// kind's watch is broken (services/endpoints), and 2 s for the write and for what
// the observer is behind. Unit: time.
const inputsMayBe = 5 * time.Second

// holes returns where a pod that stayed ready was absent from its service's
// slices at an observed revision after it had appeared, and how often one was
// absent by what had been so until at most echo ago: see wasRight.
func (o *observer) holes(echo time.Duration) (holes []*hole, late int) {
	o.mu.Lock()
	log, gaps := slices.Clone(o.log), slices.Clone(o.gaps)
	o.mu.Unlock()
	slices.SortStableFunc(log, func(a, b record) int { return cmp.Compare(a.revision, b.revision) })
	log = slices.CompactFunc(log, func(a, b record) bool { // listed again
		return a.revision == b.revision && a.deleted == b.deleted && a.object.GetUID() == b.object.GetUID()
	})
	s := sweep{
		w: newWorld(), stays: map[string]*stay{}, echo: echo, union: map[string]map[string]string{},
		services: map[string]history[*corev1.Service]{}, pods: map[string]history[*corev1.Pod]{},
	}
	for _, r := range log {
		blind := slices.ContainsFunc(gaps, func(g gap) bool { return r.revision >= g.from && r.revision <= g.to })
		s.step(r, blind)
	}
	return s.holes, s.late
}

// sweep goes through the revisions in order.
type sweep struct {
	w        world
	stays    map[string]*stay // by service UID and pod UID
	union    map[string]map[string]string
	services map[string]history[*corev1.Service] // by UID
	pods     map[string]history[*corev1.Pod]     // by UID
	echo     time.Duration
	holes    []*hole
	late     int
}

// hole is a time during which a pod that stays ready was absent.
type hole struct {
	text     string
	from, to time.Time // to is zero if it never ended
}

func (h *hole) String() string {
	if h.to.IsZero() {
		return h.text + " for good"
	}
	return h.text + " for " + h.to.Sub(h.from).Round(time.Millisecond).String()
}

// stay is the time during which one service wants one pod as ready.
type stay struct {
	since    time.Time
	unsure   bool // the service's ports changed as it began, or nobody looked
	wanted   bool
	appeared bool
	present  bool
	learnt   learnt
	hole     *hole // that is open
}

func (s *sweep) step(r record, blind bool) {
	key := nameOf(r.object)
	switch object := r.object.(type) {
	case *corev1.Service:
		before := s.w.services[key]
		s.w.apply(r)
		s.services[string(object.UID)] = s.services[string(object.UID)].with(object, r)
		changed := before == nil || before.UID != object.UID || !slices.Equal(before.Spec.Ports, object.Spec.Ports)
		s.gather(object)
		s.judge(object, r, blind, changed)
	case *corev1.Pod:
		s.w.apply(r)
		s.pods[string(object.UID)] = s.pods[string(object.UID)].with(object, r)
		for _, svc := range s.w.services {
			if svc.Namespace == object.Namespace {
				s.judgePod(svc, object, r, blind, false)
			}
		}
	case *discoveryv1.EndpointSlice:
		before := s.w.slices[key]
		s.w.apply(r)
		for _, slice := range []*discoveryv1.EndpointSlice{before, object} {
			if slice == nil {
				continue
			}
			if svc := s.w.services[slice.Namespace+"/"+slice.Labels[discoveryv1.LabelServiceName]]; svc != nil {
				s.gather(svc)
				s.judge(svc, r, blind, false)
			}
		}
	case *corev1.Node:
		s.w.apply(r)
	}
}

// gather notes which pods the slices of a service call ready, and at what ports.
func (s *sweep) gather(svc *corev1.Service) {
	ready := map[string]string{}
	for _, slice := range s.w.slices {
		if slice.Namespace != svc.Namespace || slice.Labels[discoveryv1.LabelServiceName] != svc.Name || !belongs(svc, slice) {
			continue
		}
		for _, e := range endpointsIn(slice) {
			if e.Ready {
				ready[string(e.UID)+" "+e.Ports] = e.Pod
			}
		}
	}
	s.union[string(svc.UID)] = ready
}

func (s *sweep) judge(svc *corev1.Service, r record, blind, changed bool) {
	for _, p := range s.w.pods {
		if p.Namespace == svc.Namespace {
			s.judgePod(svc, p, r, blind, changed)
		}
	}
}

// judgePod follows one pod in one service. changed: the service's ports are
// others, or it is another service.
func (s *sweep) judgePod(svc *corev1.Service, p *corev1.Pod, r record, blind, changed bool) {
	id := string(svc.UID) + " " + string(p.UID)
	st := s.stays[id]
	if st == nil {
		st = &stay{}
		s.stays[id] = st
	}
	var ports string
	wanted := false
	if _, there := s.w.pods[nameOf(p)]; there && hasSlices(svc) && s.w.services[nameOf(svc)] == svc && selected(svc, p) {
		for _, e := range endpointsOf(svc, p, s.w.nodes) {
			wanted, ports = wanted || e.Ready, e.Ports
		}
	}
	_, present := s.union[string(svc.UID)][string(p.UID)+" "+ports]
	if _, written := r.object.(*discoveryv1.EndpointSlice); written && present != st.present {
		st.learnt = s.learn(svc, p, ports, st.learnt, r.at, present)
	}
	if st.hole != nil && (present || !wanted) {
		st.hole.to, st.hole = r.at, nil
	}
	switch {
	case !wanted:
		*st = stay{present: present, learnt: st.learnt}
		return
	case !st.wanted || changed || blind:
		unsure := changed || blind
		*st = stay{wanted: true, since: r.at, unsure: unsure, present: present, appeared: present && !unsure, learnt: st.learnt}
		return
	case present && !st.present, present && r.at.Sub(st.since) > s.echo:
		st.appeared = true
	case !present && st.appeared:
		if st.unsure && r.at.Sub(st.since) < s.echo || s.wasRight(svc, p, ports, st.learnt, r.at) {
			s.late++
		} else {
			st.hole = &hole{from: r.at, text: fmt.Sprintf("revision %d: pod %s/%s, ready since %s, left service %s",
				r.revision, p.Namespace, p.Name, r.at.Sub(st.since).Round(time.Millisecond), svc.Name)}
			s.holes = append(s.holes, st.hole)
		}
		st.appeared = false // one hole is told once
	}
	st.present = present
}

// learnt is what whoever wrote a service's slices must have seen of it and of a
// pod, as revisions. Nobody may fall behind that: who writes over what another
// has written lets its inputs catch up first.
type learnt struct{ service, pod uint64 }

// wasRight reports whether the pod was not wanted by the service as it was at some
// moment and the pod as it was at some moment, both no longer than echo ago and
// not before what the slices have already shown. Inputs may be so old, each by
// itself: such a removal is what was known, and put right by what comes.
func (s *sweep) wasRight(svc *corev1.Service, p *corev1.Pod, ports string, from learnt, now time.Time) (right bool) {
	s.known(svc, p, ports, from, now, func(_ learnt, wanted bool) { right = right || !wanted })
	return right
}

// learn returns what must have been seen at least by whoever has just made the
// pod present, or absent.
func (s *sweep) learn(svc *corev1.Service, p *corev1.Pod, ports string, from learnt, now time.Time, present bool) learnt {
	least := learnt{math.MaxUint64, math.MaxUint64}
	s.known(svc, p, ports, from, now, func(at learnt, wanted bool) {
		if wanted == present {
			least = learnt{min(least.service, at.service), min(least.pod, at.pod)}
		}
	})
	if least.pod == math.MaxUint64 {
		return from // nothing explains it
	}
	return least
}

// known goes through what may be known of a service and a pod now, and says
// whether that pod is wanted by that service, ready and at those ports.
func (s *sweep) known(svc *corev1.Service, p *corev1.Pod, ports string, from learnt, now time.Time, see func(at learnt, wanted bool)) {
	for _, service := range s.services[string(svc.UID)] {
		if service.revision < from.service || service.longAgo(now, s.echo) {
			continue
		}
		for _, pod := range s.pods[string(p.UID)] {
			if pod.revision < from.pod || pod.longAgo(now, s.echo) {
				continue
			}
			wanted := hasSlices(service.object) && selected(service.object, pod.object) &&
				slices.ContainsFunc(endpointsOf(service.object, pod.object, s.w.nodes), func(e endpoint) bool {
					return e.Ready && e.Ports == ports
				})
			see(learnt{service.revision, pod.revision}, wanted)
		}
	}
}

// history is one object's versions, oldest first.
type history[T any] []version[T]

// version is an object as it was from a revision on, until it was changed; zero:
// it has not been.
type version[T any] struct {
	object   T
	revision uint64
	until    time.Time
}

func (h history[T]) with(object T, r record) history[T] {
	if n := len(h); n > 0 {
		h[n-1].until = r.at
	}
	return append(h, version[T]{object: object, revision: r.revision})
}

// longAgo: it was changed more than d before now.
func (v version[T]) longAgo(now time.Time, d time.Duration) bool {
	return !v.until.IsZero() && now.Sub(v.until) > d
}
