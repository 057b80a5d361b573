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

// ofPod returns the services that select the pod and those whose slices name
// it. One that selected it until now and has not written it yet is found by
// before: it is on its way to a decision that this change may overturn.
func ofPod(r cache.Reader, key event.Key, before, after *corev1.Pod) (out []event.Key) {
	for _, obj := range r.List(services, key.Namespace) {
		s := obj.(*corev1.Service)
		if after != nil && selects(s, after.Labels) || before != nil && selects(s, before.Labels) {
			out = append(out, event.Key{Namespace: s.Namespace, Name: s.Name})
		}
	}
	for _, obj := range r.ByIndex(sliceKind, byPod, key.String()) {
		if service, ok := ours(obj.(*discoveryv1.EndpointSlice)); ok {
			out = append(out, service)
		}
	}
	return out
}

// ofNode returns the services with pods on a node.
func ofNode(r cache.Reader, name string) (out []event.Key) {
	seen := make(map[event.Key]bool)
	for _, obj := range r.ByIndex(pods, byNode, name) {
		pod := obj.(*corev1.Pod)
		for _, svc := range r.List(services, pod.Namespace) {
			s := svc.(*corev1.Service)
			key := event.Key{Namespace: s.Namespace, Name: s.Name}
			if !seen[key] && selects(s, pod.Labels) {
				seen[key] = true
				out = append(out, key)
			}
		}
	}
	return out
}

// all returns every service of the partition, and every service that left
// slices of ours behind.
func all(p view) (out []event.Key) {
	seen := make(map[event.Key]bool)
	add := func(key event.Key) {
		if !seen[key] {
			seen[key] = true
			out = append(out, key)
		}
	}
	p.View(func(r cache.Reader) {
		for _, key := range r.Keys(services) {
			add(key)
		}
		for _, obj := range r.List(sliceKind, "") {
			if service, ok := ours(obj.(*discoveryv1.EndpointSlice)); ok {
				add(service)
			}
		}
	})
	return out
}
