package podevictor

import (
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
)

// A key is a pod. A change of a pod concerns it, and one of a node all pods on it.

// view is what is read of a partition.
type view interface {
	View(fn func(r controller.Reader))
}

func (s *podEvictor) keys(p view, c cache.Change) (out []event.Key) {
	if c.Kind != nodes {
		return []event.Key{c.Key}
	}
	s.heard(c)
	if !matters(c) {
		return nil
	}
	p.View(func(r controller.Reader) {
		for _, pod := range cache.ByIndex[*corev1.Pod](r, pods, byNode, c.Key.Name) {
			out = append(out, event.Key{Namespace: pod.Namespace, Name: pod.Name})
		}
	})
	return out
}

// heard keeps what is remembered of nodes beside the cache true.
func (s *podEvictor) heard(c cache.Change) {
	if n, ok := c.New.(*corev1.Node); ok {
		s.quarantine.there(n.Name)
		s.sightings.saw(n, s.clusterTime())
	} else if c.Deleted() {
		s.sightings.gone(c.Key.Name, s.clusterTime())
	}
}

// clusterTime is the API server's clock, or ours as long as nothing was heard of it.
// What is noted by it says only what is older than what.
func (s *podEvictor) clusterTime() time.Time {
	now := time.Now()
	if t, _, known := s.cluster(now); known {
		return t
	}
	return now
}

// matters reports whether a change of a node can mean anything to the pods on it:
// a heartbeat does not.
func matters(c cache.Change) bool {
	was, had := c.Old.(*corev1.Node)
	is, has := c.New.(*corev1.Node)
	if !had || !has || was.UID != is.UID {
		return true
	}
	return !reflect.DeepEqual(was.Spec.Taints, is.Spec.Taints) || isReady(was) != isReady(is)
}

// all returns every pod of a partition, and those that are gone and remembered.
func (s *podEvictor) all(p view) (out []event.Key) {
	names, now := make(map[string]bool), s.clusterTime()
	p.View(func(r controller.Reader) {
		for _, n := range cache.List[*corev1.Node](r, nodes, "") { // what changed before nothing was mapped for
			names[n.Name] = true
			s.quarantine.there(n.Name)
			s.sightings.saw(n, now)
		}
		s.sightings.only(names, now)
		out = r.Keys(pods)
	})
	return append(out, s.remembered(p)...)
}
