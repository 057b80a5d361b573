package nodelifecycle

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// A key without a namespace is a node, any other a pod. A partition holds the
// nodes and the pods whose keys fall into it; every node is read by everybody.

func isNode(key event.Key) bool { return key.Namespace == "" }

// view is what is read of a partition.
type view interface {
	View(fn func(r controller.Reader))
	Number() int
}

// holds reports whether the key of a node falls into a partition.
func (s *nodeLifecycle) holds(p view, key event.Key) bool {
	return partition.OfKey(key, s.partitions) == p.Number()
}

// keys returns what a change concerns: a node itself and, while it is gone silent,
// the pods on it; a pod itself, if its node is.
func (s *nodeLifecycle) keys(p view, c cache.Change) (out []event.Key) {
	if c.Kind == nodes {
		s.census.outdated()
		if s.holds(p, c.Key) {
			out = append(out, c.Key)
		}
		if n, ok := c.New.(*corev1.Node); ok && s.marksPods(n) {
			p.View(func(r controller.Reader) { out = append(out, podsOn(r, c.Key.Name)...) })
		}
		return out
	}
	pod, ok := c.New.(*corev1.Pod)
	if !ok {
		return nil
	}
	p.View(func(r controller.Reader) {
		if n, ok := cache.Get[*corev1.Node](r, nodes, event.Key{Name: pod.Spec.NodeName}); ok && s.marksPods(n) {
			out = []event.Key{c.Key}
		}
	})
	return out
}

// all returns every key of a partition at which there may be something to do.
func (s *nodeLifecycle) all(p view) (out []event.Key) {
	s.census.outdated() // what changed before nothing was mapped for
	p.View(func(r controller.Reader) {
		for _, n := range cache.List[*corev1.Node](r, nodes, "") {
			if key := (event.Key{Name: n.Name}); s.holds(p, key) {
				out = append(out, key)
			}
			if s.marksPods(n) {
				out = append(out, podsOn(r, n.Name)...)
			}
		}
	})
	return out
}

// concerned returns the keys that an object of an input concerns, for who asks.
func (s *nodeLifecycle) concerned(kind event.Kind, key event.Key) []event.Key {
	if kind != pods {
		return nil
	}
	return []event.Key{key}
}

func podsOn(r controller.Reader, node string) (out []event.Key) {
	for _, pod := range cache.ByIndex[*corev1.Pod](r, pods, byNode, node) {
		out = append(out, event.Key{Namespace: pod.Namespace, Name: pod.Name})
	}
	return out
}

// marksPods reports whether pods on a node are made not Ready: it has fallen
// silent, or says itself that it is not ready and an operator wants that too.
func (s *nodeLifecycle) marksPods(n *corev1.Node) bool {
	switch status, _ := statusOf(n, corev1.NodeReady); status {
	case corev1.ConditionUnknown:
		return true
	case corev1.ConditionFalse:
		return s.policy.MarkPodsOfNotReadyNodes
	default:
		return false
	}
}
