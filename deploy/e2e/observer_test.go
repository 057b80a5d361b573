package e2e

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// record is one revision of one object.
type record struct {
	revision uint64
	at       time.Time
	object   metav1.Object
	deleted  bool
}

// gap is a span of revisions that one kind's watch may have missed.
type gap struct{ from, to uint64 }

// observer records every revision of services, pods and slices under a prefix of
// namespaces, and of nodes.
type observer struct {
	prefix string

	mu      sync.Mutex
	now     world
	log     []record
	gaps    []gap
	reached map[string]uint64 // revision by kind
}

// feed is how one kind is listed and watched.
type feed struct {
	kind  string
	list  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error)
	watch func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error)
}

func adminClient(f *fleet.Fleet) kubernetes.Interface {
	cfg := rest.CopyConfig(f.Cluster.Admin())
	cfg.ContentType = "application/vnd.kubernetes.protobuf"
	return kubernetes.NewForConfigOrDie(cfg)
}

func feeds(api kubernetes.Interface) []feed {
	pods, services := api.CoreV1().Pods(""), api.CoreV1().Services("")
	nodes, endpointSlices := api.CoreV1().Nodes(), api.DiscoveryV1().EndpointSlices("")
	return []feed{
		{"pods", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pods.List(ctx, o) }, pods.Watch},
		{"services", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return services.List(ctx, o) }, services.Watch},
		{"slices", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return endpointSlices.List(ctx, o)
		}, endpointSlices.Watch},
		{"nodes", func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) }, nodes.Watch},
	}
}

// observe starts to watch what happens in namespaces with that prefix, until the
// test ends.
func observe(ctx context.Context, t *testing.T, f *fleet.Fleet, prefix string) *observer {
	t.Helper()
	o := &observer{prefix: prefix, now: newWorld(), reached: map[string]uint64{}}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	t.Cleanup(func() { cancel(); tasks.Wait() })
	var listed sync.WaitGroup
	for _, fd := range feeds(adminClient(f)) {
		listed.Add(1)
		tasks.Go(func() { o.follow(ctx, fd, sync.OnceFunc(listed.Done)) })
	}
	listed.Wait()
	return o
}

// follow lists once, then watches; it lists again only when the server has
// forgotten where it was.
func (o *observer) follow(ctx context.Context, fd feed, listed func()) {
	defer listed()
	for at := uint64(0); ctx.Err() == nil; {
		if at == 0 {
			if list, err := fd.list(ctx, metav1.ListOptions{}); err == nil {
				at = o.listed(fd.kind, list)
				listed()
			}
		} else if w, err := fd.watch(ctx, metav1.ListOptions{
			ResourceVersion: strconv.FormatUint(at, 10), AllowWatchBookmarks: true,
		}); err == nil {
			at = o.consume(ctx, fd.kind, w, at)
			w.Stop()
			continue
		} else if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
			at = 0
			continue
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (o *observer) consume(ctx context.Context, kind string, w watch.Interface, at uint64) uint64 {
	for {
		select {
		case <-ctx.Done():
			return at
		case e, ok := <-w.ResultChan():
			if !ok {
				return at
			}
			if e.Type == watch.Error {
				if status, ok := e.Object.(*metav1.Status); ok && (status.Reason == metav1.StatusReasonExpired || status.Code == 410) {
					return 0
				}
				return at
			}
			object, ok := e.Object.(metav1.Object)
			if !ok {
				return at
			}
			at = revisionOf(object)
			if e.Type == watch.Bookmark {
				continue
			}
			o.mu.Lock()
			o.take(kind, record{revision: at, at: time.Now(), object: object, deleted: e.Type == watch.Deleted})
			o.mu.Unlock()
		}
	}
}

func revisionOf(object metav1.Object) uint64 {
	n, _ := strconv.ParseUint(object.GetResourceVersion(), 10, 64) // the server's own
	return n
}

// listed takes a list: what it has, and the deletion of what it has not.
func (o *observer) listed(kind string, list runtime.Object) uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	var objects []metav1.Object
	gone := map[string]metav1.Object{}
	var at string
	switch l := list.(type) {
	case *corev1.PodList:
		objects, at = pointers(l.Items), l.ResourceVersion
		known(gone, o.now.pods)
	case *corev1.ServiceList:
		objects, at = pointers(l.Items), l.ResourceVersion
		known(gone, o.now.services)
	case *discoveryv1.EndpointSliceList:
		objects, at = pointers(l.Items), l.ResourceVersion
		known(gone, o.now.slices)
	case *corev1.NodeList:
		objects, at = pointers(l.Items), l.ResourceVersion
		known(gone, o.now.nodes)
	}
	revision, _ := strconv.ParseUint(at, 10, 64)
	if from := o.reached[kind]; from > 0 {
		o.gaps = append(o.gaps, gap{from, revision})
	}
	for _, object := range objects {
		delete(gone, nameOf(object))
		o.take(kind, record{revision: revisionOf(object), at: time.Now(), object: object})
	}
	for _, object := range gone {
		o.take(kind, record{revision: revision, at: time.Now(), object: object, deleted: true})
	}
	o.reached[kind] = revision
	return revision
}

func pointers[T any, P interface {
	*T
	metav1.Object
}](items []T) (out []metav1.Object) {
	for i := range items {
		out = append(out, P(&items[i]))
	}
	return out
}

func known[T metav1.Object](into map[string]metav1.Object, from map[string]T) {
	for k, v := range from {
		into[k] = v
	}
}

func nameOf(object metav1.Object) string {
	if object.GetNamespace() == "" {
		return object.GetName()
	}
	return object.GetNamespace() + "/" + object.GetName()
}

// take adds a record; o.mu is held.
func (o *observer) take(kind string, r record) {
	o.reached[kind] = max(o.reached[kind], r.revision)
	if ns := r.object.GetNamespace(); ns != "" && !strings.HasPrefix(ns, o.prefix) {
		return
	}
	r.object.SetManagedFields(nil)
	o.now.apply(r)
	o.log = append(o.log, r)
}

func (w world) apply(r record) {
	key := nameOf(r.object)
	switch object := r.object.(type) {
	case *corev1.Pod:
		put(w.pods, key, object, r.deleted)
	case *corev1.Service:
		put(w.services, key, object, r.deleted)
	case *discoveryv1.EndpointSlice:
		put(w.slices, key, object, r.deleted)
	case *corev1.Node:
		put(w.nodes, key, object, r.deleted)
	}
}

func put[T any](m map[string]T, key string, value T, deleted bool) {
	if deleted {
		delete(m, key)
	} else {
		m[key] = value
	}
}

// snapshot is the world as far as it has been observed.
func (o *observer) snapshot() world {
	o.mu.Lock()
	defer o.mu.Unlock()
	return world{
		services: maps.Clone(o.now.services), pods: maps.Clone(o.now.pods),
		slices: maps.Clone(o.now.slices), nodes: maps.Clone(o.now.nodes),
	}
}

// written counts the revisions of slices so far.
func (o *observer) written() (n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.log {
		if _, ok := o.log[i].object.(*discoveryv1.EndpointSlice); ok {
			n++
		}
	}
	return n
}

// live reads the world anew, so that an observer that has stopped to observe
// cannot confirm anything.
func live(ctx context.Context, api kubernetes.Interface, prefix string) (world, error) {
	w := newWorld()
	for _, fd := range feeds(api) {
		list, err := fd.list(ctx, metav1.ListOptions{})
		if err != nil {
			return w, fmt.Errorf("listing %s: %w", fd.kind, err)
		}
		var objects []metav1.Object
		switch l := list.(type) {
		case *corev1.PodList:
			objects = pointers(l.Items)
		case *corev1.ServiceList:
			objects = pointers(l.Items)
		case *discoveryv1.EndpointSliceList:
			objects = pointers(l.Items)
		case *corev1.NodeList:
			objects = pointers(l.Items)
		}
		for _, object := range objects {
			if ns := object.GetNamespace(); ns == "" || strings.HasPrefix(ns, prefix) {
				w.apply(record{object: object})
			}
		}
	}
	return w, nil
}

// awaitRest waits until every service's slices say what its pods do, and returns
// how long that took.
func (o *observer) awaitRest(ctx context.Context, t *testing.T, f *fleet.Fleet, within time.Duration) time.Duration {
	t.Helper()
	began := time.Now()
	api := adminClient(f)
	var last []string
	for {
		if last = o.snapshot().differences(slicesHold); len(last) == 0 {
			w, err := live(ctx, api, o.prefix)
			if err != nil {
				last = []string{err.Error()}
			} else if last = w.differences(slicesHold); len(last) == 0 {
				return time.Since(began)
			}
		}
		if time.Since(began) > within || ctx.Err() != nil {
			t.Fatalf("not at rest after %s: %d differences:\n%s", within, len(last), strings.Join(last[:min(len(last), 12)], "\n"))
		}
		time.Sleep(100 * time.Millisecond) // the world is real, and so is its time
	}
}

// noHoles fails the test for every hole.
func (o *observer) noHoles(t *testing.T, echo time.Duration) {
	t.Helper()
	holes, late := o.holes(echo)
	o.mu.Lock()
	t.Logf("observed %d revisions, %d spans not seen, %d late echoes", len(o.log), len(o.gaps), late)
	o.mu.Unlock()
	for _, h := range holes[:min(len(holes), 10)] {
		t.Error(h)
	}
	if len(holes) > 10 {
		t.Errorf("and %d holes more", len(holes)-10)
	}
}
