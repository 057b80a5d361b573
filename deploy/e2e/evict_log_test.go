package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	watchtools "k8s.io/client-go/tools/watch"
)

// evictLog is every revision of nodes and pods, by watches of its own, and what
// was wrong with them (evict_judge_test.go).
type evictLog struct {
	quarantine time.Duration

	mu     sync.Mutex
	nodes  map[string][]nodeRevision
	lives  map[types.UID]*life
	order  []*life
	test   map[types.UID]bool // deleted by the test itself
	judged map[types.UID]bool
	bound  map[string]time.Time // nodes: when a pod of theirs was first seen
	ends   map[string]int       // namespaces: how many pods are being deleted or gone
	broken error                // a watch that missed revisions
}

// life is all revisions of one pod.
type life struct {
	ns, name  string
	uid       types.UID
	revisions []lifeRevision
}

type lifeRevision struct {
	revision uint64
	at       time.Time
	pod      *corev1.Pod
	deleted  bool
}

func (l *life) last() *lifeRevision { return &l.revisions[len(l.revisions)-1] }

// deletion is the first revision at which it is being deleted, and the one before.
func (l *life) deletion() (before, at *lifeRevision) {
	for i := range l.revisions {
		if r := &l.revisions[i]; r.deleted || r.pod.DeletionTimestamp != nil {
			return &l.revisions[max(0, i-1)], r
		}
	}
	return nil, nil
}

// end is when it was gone.
func (l *life) end() (at time.Time, ok bool) {
	return l.last().at, l.last().deleted
}

// logEvictions watches until the test ends.
func logEvictions(ctx context.Context, t *testing.T, api kubernetes.Interface, quarantine time.Duration) *evictLog {
	t.Helper()
	l := &evictLog{
		quarantine: quarantine, nodes: map[string][]nodeRevision{}, lives: map[types.UID]*life{},
		test: map[types.UID]bool{}, judged: map[types.UID]bool{}, bound: map[string]time.Time{}, ends: map[string]int{},
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	t.Cleanup(func() { cancel(); tasks.Wait() })
	for _, fd := range nodeFeeds(api)[:2] { // nodes and pods
		list, err := fd.list(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		accessor, err := meta.ListAccessor(list)
		if err != nil {
			t.Fatal(err)
		}
		if n := meta.LenList(list); n > 0 {
			t.Fatalf("there are %d %s already", n, fd.kind)
		}
		w, err := watchtools.NewRetryWatcherWithContext(ctx, accessor.GetResourceVersion(), watcherOf(fd.watch))
		if err != nil {
			t.Fatal(err)
		}
		tasks.Go(func() {
			defer w.Stop()
			for e := range w.ResultChan() {
				l.take(e.Object, e.Type)
			}
			if ctx.Err() == nil {
				l.fail(fmt.Errorf("the watch of %s has ended", fd.kind))
			}
		})
	}
	return l
}

func (l *evictLog) fail(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.broken = err
}

func (l *evictLog) take(o runtime.Object, kind watch.EventType) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	switch o := o.(type) {
	case *corev1.Node:
		o.SetManagedFields(nil)
		l.nodes[o.Name] = append(l.nodes[o.Name], nodeRevision{revisionOf(o), now, o, kind == watch.Deleted, false})
	case *corev1.Pod:
		o.SetManagedFields(nil)
		p, ok := l.lives[o.UID]
		if !ok {
			p = &life{ns: o.Namespace, name: o.Name, uid: o.UID}
			l.lives[o.UID], l.order = p, append(l.order, p)
		}
		if _, ends := p.deletion(); ends == nil && (kind == watch.Deleted || o.DeletionTimestamp != nil) {
			l.ends[o.Namespace]++
		}
		p.revisions = append(p.revisions, lifeRevision{revisionOf(o), now, o, kind == watch.Deleted})
		if n := o.Spec.NodeName; n != "" && l.bound[n].IsZero() {
			l.bound[n] = now
		}
	default:
		l.broken = fmt.Errorf("a watch told of %T: %v", o, o)
	}
}

// ours says that a pod is deleted by the test.
func (l *evictLog) ours(uid types.UID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.test[uid] = true
}

// of are the lives in a namespace, in the order in which they began.
func (l *evictLog) of(ns string) (out []*life) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.order {
		if p.ns == ns {
			c := *p // a copy, that later revisions do not change
			out = append(out, &c)
		}
	}
	return out
}

// life is that of one pod.
func (l *evictLog) life(uid types.UID) (life, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if p, ok := l.lives[uid]; ok {
		return *p, true
	}
	return life{}, false
}

// deletions is how many pods of a namespace are being deleted or gone.
func (l *evictLog) deletions(ns string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ends[ns]
}

// living are the names of pods of a namespace that nobody has asked to delete.
func (l *evictLog) living(ns string) (names []string) {
	for _, p := range l.of(ns) {
		if _, at := p.deletion(); at == nil {
			names = append(names, p.name)
		}
	}
	return names
}

// awaitDeleted waits until every pod of the stage is being deleted or gone.
func (s *stage) awaitDeleted(ctx context.Context, within time.Duration, want int) time.Duration {
	s.t.Helper()
	began := time.Now()
	for {
		n := s.log.deletions(s.ns)
		if n >= want && len(s.log.living(s.ns)) == 0 {
			return time.Since(began)
		}
		if time.Since(began) > within || ctx.Err() != nil {
			living := s.log.living(s.ns)
			explained := ""
			if len(living) > 0 {
				explained = s.explained(context.WithoutCancel(ctx), living[0])
			}
			s.t.Fatalf("%d of %d pods deleted after %s, %d live, such as:\n%s", n, want, within, len(living), explained)
		}
		pause(ctx, 20*time.Millisecond)
	}
}
