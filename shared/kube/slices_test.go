package kube

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

const sliceController = "endpointslice-controller.k8s.io"

// bench is a service, its pods, and the library behind a guarded client.
type bench struct {
	*testing.T

	api     *API
	wire    *wire
	client  *SliceClient
	lib     *endpointslice.Reconciler
	service *corev1.Service
}

func newBench(t *testing.T, opts WriteOptions) *bench {
	t.Helper()
	api, wire := dial(t)
	b := &bench{T: t, api: api, wire: wire, client: GuardEndpointSlices(api.Client(), GuardOptions{opts})}
	nodes := cache.NewIndexer(cache.MetaNamespaceKeyFunc, nil)
	if err := nodes.Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}); err != nil {
		t.Fatal(err)
	}
	b.lib = endpointslice.NewReconciler(b.client, corelisters.NewNodeLister(nodes), 2,
		endpointsliceutil.NewEndpointSliceTracker(), nil, record.NewFakeRecorder(100), sliceController)
	ns := kubetest.Shared(t).Namespace(t)
	b.service = must[*corev1.Service](t)(api.Client().CoreV1().Services(ns).Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Name: "http", Port: 80}}},
	}, metav1.CreateOptions{}))
	wire.take()
	return b
}

// slices reads what the API server has.
func (b *bench) slices() []*discoveryv1.EndpointSlice {
	b.Helper()
	list := must[*discoveryv1.EndpointSliceList](b)(b.api.Client().DiscoveryV1().EndpointSlices(b.service.Namespace).List(
		b.Context(), metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=" + b.service.Name}))
	b.wire.take()
	out := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out
}

func (b *bench) scope(existing []*discoveryv1.EndpointSlice) SliceScope {
	return SliceScope{
		Service: event.Key{Namespace: b.service.Namespace, Name: b.service.Name}, OwnerUID: string(b.service.UID), Existing: existing,
	}
}

// reconcile runs the library once, over the given slices and n pods.
func (b *bench) reconcile(existing []*discoveryv1.EndpointSlice, pods int, port int32) (*SliceSession, error) {
	b.Helper()
	s := b.client.Begin(b.Context(), b.scope(existing))
	defer s.End()
	service := b.service.DeepCopy()
	service.Spec.Ports[0].TargetPort.IntVal = port
	err := b.lib.Reconcile(klog.Background(), service, somePods(b.service.Namespace, pods), existing, time.Now())
	return s, err
}

func somePods(namespace string, n int) []*corev1.Pod {
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		name := fmt.Sprint("p", i)
		pods[i] = &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name), Labels: map[string]string{"app": "web"}},
			Spec:       corev1.PodSpec{NodeName: "n1"},
			Status: corev1.PodStatus{
				PodIP: fmt.Sprintf("10.0.0.%d", i+1), PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.0.0.%d", i+1)}},
				Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
			},
		}
	}
	return pods
}

func (b *bench) verbs(s *SliceSession) string {
	var out []string
	for _, w := range s.Writes() {
		out = append(out, string(w.Verb))
	}
	return strings.Join(out, " ")
}

func TestTheLibraryBehindTheGuard(t *testing.T) {
	t.Parallel()
	told := 0
	b := newBench(t, WriteOptions{Manager: "millrace-endpoints", OnWrite: func(Write) { told++ }})
	uid := string(b.service.UID)

	// Two slices of two: names that any owner would choose.
	s, err := b.reconcile(nil, 4, 80)
	if err != nil || s.Err() != nil || b.verbs(s) != "create create" {
		t.Fatalf("%q: %v, %v", b.verbs(s), err, s.Err())
	}
	if got := b.wire.take(); len(got) != 2 {
		t.Errorf("two creations took %q", got)
	}
	names := map[string]bool{}
	for _, slice := range b.slices() {
		names[slice.Name] = true
	}
	for n := range 2 {
		if want := SliceName("web", uid, discoveryv1.AddressTypeIPv4, n); !names[want] {
			t.Errorf("no %s in %v", want, names)
		}
	}
	if s.Writes()[0].Ref.Version == 0 || s.Writes()[0].Ref.UID == "" || told != 2 {
		t.Errorf("recorded %+v, told %d times", s.Writes(), told)
	}

	// I7: the same again writes nothing.
	if s, err = b.reconcile(b.slices(), 4, 80); err != nil || b.verbs(s) != "" || len(b.wire.take()) != 0 {
		t.Errorf("again: %q, %v", b.verbs(s), err)
	}

	// ⚠ Another target port: the library recycles slices as new objects without
	// UID and version.
	before := b.slices()
	s, err = b.reconcile(before, 4, 8080)
	if err != nil || b.verbs(s) != "update update" {
		t.Fatalf("%q: %v, %v", b.verbs(s), err, s.Err())
	}
	for _, slice := range b.slices() {
		if *slice.Ports[0].Port != 8080 || slice.UID != uidOf(before, slice.Name) {
			t.Errorf("%s has port %d and UID %s", slice.Name, *slice.Ports[0].Port, slice.UID)
		}
	}

	// ⚠ Recycled from what is no longer there: nothing is overwritten.
	s, err = b.reconcile(before, 4, 9090)
	if err == nil || !errors.Is(s.Err(), ErrConflict) || b.verbs(s) != "" {
		t.Errorf("with an old snapshot: %q, %v, %v", b.verbs(s), err, s.Err())
	}
	// ⚠ Deleted from what is no longer there: nothing is deleted.
	s, err = b.reconcile(before, 1, 8080)
	if err == nil || !errors.Is(s.Err(), ErrConflict) || len(b.slices()) != 2 {
		t.Errorf("with an old snapshot: %v, %v, %d slices left", err, s.Err(), len(b.slices()))
	}

	// Fewer pods: a deletion, with what is there.
	s, err = b.reconcile(b.slices(), 1, 8080)
	if err != nil || !strings.Contains(b.verbs(s), "delete") || len(b.slices()) != 1 {
		t.Errorf("%q: %v, %d slices left", b.verbs(s), err, len(b.slices()))
	}
}

func uidOf(slices []*discoveryv1.EndpointSlice, name string) types.UID {
	for _, s := range slices {
		if s.Name == name {
			return s.UID
		}
	}
	return ""
}

// ⚠ Two owners for a moment: the second creation collides instead of doubling.
func TestTwoOwnersCreateOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t, WriteOptions{})
	if _, err := b.reconcile(nil, 2, 80); err != nil {
		t.Fatal(err)
	}
	s, err := b.reconcile(nil, 2, 80) // has not seen it
	if err == nil || !errors.Is(s.Err(), ErrConflict) || Class(s.Err()) != "conflict" {
		t.Errorf("%v, %v", err, s.Err())
	}
	if n := len(b.slices()); n != 1 {
		t.Errorf("%d slices", n)
	}
}

// A name taken by what a reading by label never shows must not block for ever.
func TestAForeignSliceInTheWay(t *testing.T) {
	t.Parallel()
	b := newBench(t, WriteOptions{})
	name := SliceName("web", string(b.service.UID), discoveryv1.AddressTypeIPv4, 0)
	foreign := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, AddressType: discoveryv1.AddressTypeIPv4}
	slices := b.api.Client().DiscoveryV1().EndpointSlices(b.service.Namespace)
	must[*discoveryv1.EndpointSlice](t)(slices.Create(t.Context(), foreign, metav1.CreateOptions{}))
	s, err := b.reconcile(nil, 2, 80)
	if err != nil || b.verbs(s) != "create" || s.Writes()[0].Ref.Key.Name == name {
		t.Fatalf("%q: %v, %v", b.verbs(s), err, s.Err())
	}
	if live := must[*discoveryv1.EndpointSlice](t)(slices.Get(t.Context(), name, metav1.GetOptions{})); len(live.Labels) != 0 {
		t.Errorf("the foreign slice was changed: %v", live.Labels)
	}
}

func TestShadowAndGuardOfSlices(t *testing.T) {
	t.Parallel()
	lost := errors.New("the lease is gone")
	refuse := false
	b := newBench(t, WriteOptions{Shadow: true, Guard: func(context.Context) error {
		if refuse {
			return lost
		}
		return nil
	}})
	s, err := b.reconcile(nil, 3, 80)
	if err != nil || b.verbs(s) != "create create" || !s.Writes()[0].Shadow {
		t.Errorf("%q: %v", b.verbs(s), err)
	}
	refuse = true
	if s, err = b.reconcile(nil, 3, 80); err == nil || !errors.Is(s.Err(), lost) || !errors.Is(s.Err(), ErrRefused) || b.verbs(s) != "" {
		t.Errorf("%q: %v, %v", b.verbs(s), err, s.Err())
	}
	if got := b.wire.take(); len(got) != 0 {
		t.Errorf("these left: %q", got)
	}
}

// A mode that changes in the middle of a session: what was held back is what the
// rest builds on, so nothing of it is sent any more.
func TestASessionStaysInTheShadow(t *testing.T) {
	t.Parallel()
	asked := 0
	b := newBench(t, WriteOptions{Guard: func(context.Context) error {
		if asked++; asked == 1 {
			return ErrShadow
		}
		return nil
	}})
	s, err := b.reconcile(nil, 3, 80)
	if err != nil || b.verbs(s) != "create create" || !s.Writes()[0].Shadow || !s.Writes()[1].Shadow || len(s.Slices()) != 2 {
		t.Errorf("%q, %d slices: %v", b.verbs(s), len(s.Slices()), err)
	}
	if got := b.wire.take(); len(got) != 0 {
		t.Errorf("these left: %q", got)
	}
}

func TestSlicesInATerminatingNamespace(t *testing.T) {
	t.Parallel()
	b := newBench(t, WriteOptions{})
	if err := b.api.Client().CoreV1().Namespaces().Delete(t.Context(), b.service.Namespace, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	// The library recognises the cause and gives up; the session still knows.
	s, err := b.reconcile(nil, 1, 80)
	if err != nil || !errors.Is(s.Err(), ErrNamespaceTerminating) {
		t.Errorf("%v, %v", err, s.Err())
	}
}

// The rest of the session, without the library.
func TestSliceSession(t *testing.T) {
	t.Parallel()
	b := newBench(t, WriteOptions{})
	ns, ctx := b.service.Namespace, t.Context()
	labels := map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: sliceController}
	slices := b.api.Client().DiscoveryV1().EndpointSlices(ns)
	made := must[*discoveryv1.EndpointSlice](t)(slices.Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "old", Labels: labels, Finalizers: []string{"example.com/keep"},
			Annotations: map[string]string{"theirs": "1", corev1.EndpointsLastChangeTriggerTime: "2020-01-01T00:00:00Z"},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}, metav1.CreateOptions{}))
	b.wire.take()
	s := NewSliceSession(ctx, b.api.Client(), GuardOptions{}, b.scope([]*discoveryv1.EndpointSlice{made}))
	guarded := s.DiscoveryV1().EndpointSlices(ns)

	recycled := func() *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: ns, Name: "old", Labels: labels},
			AddressType: discoveryv1.AddressTypeIPv4, Endpoints: []discoveryv1.Endpoint{},
		}
	}
	t.Run("an update that changes nothing is not sent", func(t *testing.T) {
		slice := recycled()
		slice.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"}
		got, err := guarded.Update(ctx, slice, metav1.UpdateOptions{})
		if err != nil || got.ResourceVersion != made.ResourceVersion || len(b.wire.take()) != 0 {
			t.Errorf("%v: %v", got, err)
		}
	})
	t.Run("a recycled slice keeps what others wrote", func(t *testing.T) {
		slice := recycled()
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}}
		got, err := guarded.Update(ctx, slice, metav1.UpdateOptions{})
		if err != nil || got.Annotations["theirs"] != "1" || len(got.Finalizers) != 1 || got.UID != made.UID {
			t.Errorf("%+v: %v", got, err)
		}
		if _, old := got.Annotations[corev1.EndpointsLastChangeTriggerTime]; old {
			t.Error("the old trigger time was kept")
		}
	})
	t.Run("a second update builds on the first", func(t *testing.T) {
		slice := recycled()
		slice.Endpoints = []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.2"}}}
		if _, err := guarded.Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("a deletion decided on an old state deletes nothing", func(t *testing.T) { // ⚠
		old := NewSliceSession(ctx, b.api.Client(), GuardOptions{}, b.scope([]*discoveryv1.EndpointSlice{made}))
		if err := old.DiscoveryV1().EndpointSlices(ns).Delete(ctx, "old", metav1.DeleteOptions{}); !errors.Is(err, ErrConflict) {
			t.Errorf("got %v", err)
		}
		if live := must[*discoveryv1.EndpointSlice](t)(slices.Get(ctx, "old", metav1.GetOptions{})); live.DeletionTimestamp != nil {
			t.Error("it is being deleted")
		}
		another := made.DeepCopy()
		another.UID = "of-the-past"
		old = NewSliceSession(ctx, b.api.Client(), GuardOptions{}, b.scope([]*discoveryv1.EndpointSlice{another}))
		if err := old.DiscoveryV1().EndpointSlices(ns).Delete(ctx, "old", metav1.DeleteOptions{}); !errors.Is(err, ErrGone) {
			t.Errorf("by a UID of the past: %v", err)
		}
		b.wire.take()
	})
	t.Run("another UID is a conflict", func(t *testing.T) {
		slice := recycled()
		slice.UID = "other"
		if _, err := guarded.Update(ctx, slice, metav1.UpdateOptions{}); !errors.Is(err, ErrConflict) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a slice outside the snapshot is not written", func(t *testing.T) {
		slice := recycled()
		slice.Name = "unknown"
		_, err := guarded.Update(ctx, slice, metav1.UpdateOptions{})
		if !errors.Is(err, ErrConflict) {
			t.Errorf("updated: %v", err)
		}
		if err := guarded.Delete(ctx, "unknown", metav1.DeleteOptions{}); !errors.Is(err, ErrRefused) {
			t.Errorf("deleted: %v", err)
		}
		slice.Labels = map[string]string{discoveryv1.LabelServiceName: "other"}
		if _, err := guarded.Create(ctx, slice, metav1.CreateOptions{}); !errors.Is(err, ErrMalformed) {
			t.Errorf("created for another service: %v", err)
		}
	})
	t.Run("reads pass, everything else is refused", func(t *testing.T) {
		if got, err := guarded.Get(ctx, "old", metav1.GetOptions{}); err != nil || got.Name != "old" {
			t.Errorf("%v", err)
		}
		b.wire.take()
		_, podErr := s.CoreV1().Pods(ns).Get(ctx, "x", metav1.GetOptions{})
		_, patchErr := guarded.Patch(ctx, "old", types.MergePatchType, []byte("{}"), metav1.PatchOptions{})
		_, applyErr := guarded.Apply(ctx, nil, metav1.ApplyOptions{})
		for what, err := range map[string]error{
			"a pod read": podErr, "a patch": patchErr, "an apply": applyErr,
			"a pod deleted":      s.CoreV1().Pods(ns).Delete(ctx, "x", metav1.DeleteOptions{}),
			"deletion in bulk":   guarded.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}),
			"the way around it":  s.DiscoveryV1().RESTClient().Delete().Resource("endpointslices").Namespace(ns).Name("old").Do(ctx).Error(),
			"a pod of a library": b.client.CoreV1().Pods(ns).Delete(ctx, "x", metav1.DeleteOptions{}),
		} {
			if !errors.Is(err, ErrRefused) {
				t.Errorf("%s: %v", what, err)
			}
		}
		if got := b.wire.take(); len(got) != 0 {
			t.Errorf("these left: %q", got)
		}
	})
	t.Run("gone already is deleted", func(t *testing.T) {
		if _, err := b.api.Writer(WriteOptions{}).Patch(ctx, must[Object](t)(b.api.GetOne(ctx, EndpointSlices, event.Key{Namespace: ns, Name: "old"})).Ref(EndpointSlices), []byte(`{"metadata":{"finalizers":null}}`)); err != nil {
			t.Fatal(err)
		}
		if err := slices.Delete(ctx, "old", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := guarded.Delete(ctx, "old", metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	t.Run("after its end nothing is written", func(t *testing.T) {
		s.End()
		if _, err := guarded.Create(ctx, recycled(), metav1.CreateOptions{}); !errors.Is(err, ErrRefused) {
			t.Errorf("got %v", err)
		}
	})
}

func TestSliceClientRoutes(t *testing.T) {
	api, _ := answering(t, Config{QPS: -1}, 500, nil)
	client := GuardEndpointSlices(api.Client(), GuardOptions{})
	ctx := t.Context()
	key := func(name string) event.Key { return event.Key{Namespace: "a", Name: name} }
	slice := func(service string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "a", Name: "s", UID: "u", ResourceVersion: "1", Labels: map[string]string{discoveryv1.LabelServiceName: service},
			},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
	}
	guarded := client.DiscoveryV1().EndpointSlices("a")

	if _, err := guarded.Create(ctx, slice("x"), metav1.CreateOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("without a session: %v", err)
	}
	x := client.Begin(ctx, SliceScope{Service: key("x"), Existing: []*discoveryv1.EndpointSlice{slice("x")}})
	again := client.Begin(ctx, SliceScope{Service: key("x")})
	if _, err := again.DiscoveryV1().EndpointSlices("a").Create(ctx, slice("x"), metav1.CreateOptions{}); !errors.Is(err, ErrConflict) {
		t.Errorf("a second session at the same time: %v", err)
	}
	again.End() // must not end the first

	y := client.Begin(ctx, SliceScope{Service: key("y")})
	defer y.End()
	_, _ = guarded.Create(ctx, slice("y"), metav1.CreateOptions{})
	if x.Err() != nil || !errors.Is(y.Err(), ErrUnavailable) {
		t.Errorf("x: %v, y: %v", x.Err(), y.Err())
	}
	if err := client.DiscoveryV1().EndpointSlices("b").Delete(ctx, "s", metav1.DeleteOptions{}); !errors.Is(err, ErrRefused) || x.Err() != nil {
		t.Errorf("a slice of another namespace: %v, %v", err, x.Err())
	}
	if err := guarded.Delete(ctx, "s", metav1.DeleteOptions{}); err == nil || !errors.Is(x.Err(), ErrUnavailable) {
		t.Errorf("%v, %v", err, x.Err())
	}

	// Two services that claim one slice: neither may delete it.
	z := client.Begin(ctx, SliceScope{Service: key("z"), Existing: []*discoveryv1.EndpointSlice{slice("z")}})
	defer z.End()
	if err := guarded.Delete(ctx, "s", metav1.DeleteOptions{}); !errors.Is(err, ErrConflict) || !errors.Is(z.Err(), ErrConflict) || !errors.Is(x.Err(), ErrConflict) {
		t.Errorf("%v, %v, %v", err, x.Err(), z.Err())
	}
	x.End()
	if _, err := guarded.Create(ctx, slice("x"), metav1.CreateOptions{}); !errors.Is(err, ErrRefused) {
		t.Errorf("after the end: %v", err)
	}
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	w := client.Begin(canceled, SliceScope{Service: key("w")})
	defer w.End()
	if _, err := guarded.Create(ctx, slice("w"), metav1.CreateOptions{}); !errors.Is(err, context.Canceled) || Class(w.Err()) != "canceled" {
		t.Errorf("with an ended context: %v", err)
	}
}
