package endpoints

import (
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
)

// view is what mapping and gathering need of a partition.
type view interface {
	View(fn func(r cache.Reader))
}

// keys returns the services that a change concerns: those that should name the
// object now, and those whose slices do. own are the writes that wake nobody
// when they come back.
func keys(p view, c cache.Change, own *ownWrites) (out []event.Key) {
	switch c.Kind {
	case services:
		if before, after := as[corev1.Service](c.Old), as[corev1.Service](c.New); serviceMatters(before, after) {
			out = append(out, c.Key)
		}
	case sliceKind:
		if own.take(c.Key, c.Message.Version) && !c.Deleted() {
			return nil
		}
		for _, obj := range []any{c.Old, c.New} {
			if s := as[discoveryv1.EndpointSlice](obj); s != nil {
				if service, ok := ours(s); ok {
					out = append(out, service)
				}
			}
		}
	case pods:
		before, after := as[corev1.Pod](c.Old), as[corev1.Pod](c.New)
		if podMatters(before, after) {
			p.View(func(r cache.Reader) { out = ofPod(r, c.Key, before, after) })
		}
	case nodes:
		if nodeMatters(as[corev1.Node](c.Old), as[corev1.Node](c.New)) {
			p.View(func(r cache.Reader) { out = ofNode(r, c.Key.Name) })
		}
	}
	return out
}

// as returns obj as a *T; nil where there is none.
func as[T any](obj any) *T {
	typed, _ := obj.(*T)
	return typed
}

// set collects keys and repeats none.
type set struct {
	seen map[event.Key]struct{}
	keys []event.Key
}

func (s *set) add(key event.Key) {
	if _, ok := s.seen[key]; ok {
		return
	}
	if s.seen == nil {
		s.seen = make(map[event.Key]struct{})
	}
	s.seen[key] = struct{}{}
	s.keys = append(s.keys, key)
}

// addSelecting adds the services that select a pod.
func (s *set) addSelecting(r cache.Reader, pod *corev1.Pod) {
	if pod == nil {
		return
	}
	for k, v := range pod.Labels {
		s.addAt(r, pair(pod.Namespace, k, v), pod.Labels)
	}
}

func (s *set) addAt(r cache.Reader, place string, labels map[string]string) {
	for _, service := range cache.ByIndex[*corev1.Service](r, services, bySelects, place) {
		if selects(service, labels) {
			s.add(event.Key{Namespace: service.Namespace, Name: service.Name})
		}
	}
}

// ofPod returns the services that select the pod and those whose slices name
// it. One that selected it until now and has not written it yet is found by
// before: it is on its way to a decision that this change may overturn.
func ofPod(r cache.Reader, key event.Key, before, after *corev1.Pod) []event.Key {
	var out set
	out.addSelecting(r, before)
	out.addSelecting(r, after)
	for _, slice := range cache.ByIndex[*discoveryv1.EndpointSlice](r, sliceKind, byPod, key.String()) {
		if service, ok := ours(slice); ok {
			out.add(service)
		}
	}
	return out.keys
}

// ofNode returns the services with pods on a node.
func ofNode(r cache.Reader, name string) []event.Key {
	var out set
	for _, pod := range cache.ByIndex[*corev1.Pod](r, pods, byNode, name) {
		out.addSelecting(r, pod)
	}
	return out.keys
}

// all returns every service of the partition, and every service that left
// slices of ours behind.
func all(p view) []event.Key {
	var out set
	p.View(func(r cache.Reader) {
		for _, key := range r.Keys(services) {
			out.add(key)
		}
		for _, slice := range cache.List[*discoveryv1.EndpointSlice](r, sliceKind, "") {
			if service, ok := ours(slice); ok {
				out.add(service)
			}
		}
	})
	return out.keys
}
