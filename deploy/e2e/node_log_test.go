package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	watchtools "k8s.io/client-go/tools/watch"
)

// nodeLog is every revision of nodes, Leases and pods, by watches of its own, and
// what was wrong with them (node_judge_test.go).
type nodeLog struct {
	grace, startup time.Duration // of the role that writes

	mu     sync.Mutex
	nodes  map[string][]nodeRevision
	pods   map[string][]podRevision // by namespace/name
	beats  map[string][]beatRevision
	away   []blackout // when nobody could have heard a beat
	judged map[string]int
	broken error // a watch that missed revisions
}

type nodeRevision struct {
	revision uint64
	at       time.Time
	node     *corev1.Node
	deleted  bool
	listed   bool // it was there before we looked
}

type podRevision struct {
	at      time.Time
	pod     *corev1.Pod
	deleted bool
}

// beatRevision is one renewal: when its kubelet says it was.
type beatRevision struct {
	revision uint64
	renewed  time.Time
}

type blackout struct{ from, to time.Time }

func (s blackout) overlap(from, to time.Time) time.Duration {
	if s.from.After(from) {
		from = s.from
	}
	if s.to.Before(to) {
		to = s.to
	}
	return max(0, to.Sub(from))
}

// watcherOf makes a function a watcher.
type watcherOf func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)

func (w watcherOf) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	return w(ctx, o)
}

func nodeFeeds(api kubernetes.Interface) []feed {
	nodes, pods := api.CoreV1().Nodes(), api.CoreV1().Pods("")
	leases := api.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	return []feed{
		{"nodes", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) }, nodes.Watch},
		{"pods", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) }, pods.Watch},
		{"leases", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return leases.List(ctx, o) }, leases.Watch},
	}
}

// logNodes watches until the test ends.
func logNodes(ctx context.Context, t *testing.T, api kubernetes.Interface, grace, startup time.Duration) *nodeLog {
	t.Helper()
	l := &nodeLog{
		grace: grace, startup: startup, judged: map[string]int{},
		nodes: map[string][]nodeRevision{}, pods: map[string][]podRevision{}, beats: map[string][]beatRevision{},
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	t.Cleanup(func() { cancel(); tasks.Wait() })
	for _, fd := range nodeFeeds(api) {
		list, err := fd.list(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error { l.take(o, watch.Added, true); return nil }); err != nil {
			t.Fatal(err)
		}
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			t.Fatal(err)
		}
		w, err := watchtools.NewRetryWatcherWithContext(ctx, accessor.GetResourceVersion(), watcherOf(fd.watch))
		if err != nil {
			t.Fatal(err)
		}
		tasks.Go(func() {
			defer w.Stop()
			for e := range w.ResultChan() {
				l.take(e.Object, e.Type, false)
			}
			if ctx.Err() == nil {
				l.fail(fmt.Errorf("the watch of %s has ended", fd.kind))
			}
		})
	}
	return l
}

func (l *nodeLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = err
}

func (l *nodeLog) take(o runtime.Object, kind watch.EventType, listed bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch o := o.(type) {
	case *corev1.Node:
		o.SetManagedFields(nil)
		l.nodes[o.Name] = append(l.nodes[o.Name], nodeRevision{revisionOf(o), now, o, kind == watch.Deleted, listed})
	case *corev1.Pod:
		o.SetManagedFields(nil)
		l.pods[nameOf(o)] = append(l.pods[nameOf(o)], podRevision{now, o, kind == watch.Deleted})
	case *coordinationv1.Lease:
		if kind != watch.Deleted && o.Spec.RenewTime != nil {
			l.beats[o.Name] = append(l.beats[o.Name], beatRevision{revisionOf(o), o.Spec.RenewTime.Time})
		}
	default:
		l.broken = fmt.Errorf("a watch told of %T: %v", o, o)
	}
}

// node is the newest revision of a node; nil if there is none.
func (l *nodeLog) node(name string) *corev1.Node {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.nodes[name]
	if len(r) == 0 || r[len(r)-1].deleted {
		return nil
	}
	return r[len(r)-1].node
}

// first is when a node was first seen to be so, not before since.
func (l *nodeLog) first(name string, since time.Time, is func(*corev1.Node) bool) (at time.Time, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.nodes[name] {
		if !r.at.Before(since) && !r.deleted && is(r.node) {
			return r.at, true
		}
	}
	return at, false
}

// since are the revisions of a node from then on.
func (l *nodeLog) since(name string, since time.Time) (out []nodeRevision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.nodes[name] {
		if !r.at.Before(since) {
			out = append(out, r)
		}
	}
	return out
}

// podSince are the revisions of a pod from then on.
func (l *nodeLog) podSince(key string, since time.Time) (out []podRevision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.pods[key] {
		if !r.at.Before(since) {
			out = append(out, r)
		}
	}
	return out
}

// nobodyHears notes a time in which no beat could be heard, so that it is no
// silence: the API server or all of ours were away.
func (l *nodeLog) nobodyHears(from, to time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.away = append(l.away, blackout{from, to})
}
