package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

func readPod(t *testing.T, api *API, ref Ref) *corev1.Pod {
	t.Helper()
	return must[*corev1.Pod](t)(api.Client().CoreV1().Pods(ref.Key.Namespace).Get(t.Context(), ref.Key.Name, metav1.GetOptions{}))
}

// condition is a strategic patch of one condition, as an evictor sends it.
func condition(kind, status string) any {
	return map[string]any{"status": map[string]any{"conditions": []any{map[string]any{"type": kind, "status": status}}}}
}

func TestPatch(t *testing.T) {
	t.Parallel()
	api, wire := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	first := podRef(makePod(t.Context(), t, api, ns, "a"))
	var writes []Write
	w := api.Writer(WriteOptions{Manager: "millrace-podevictor", OnWrite: func(w Write) { writes = append(writes, w) }})
	wire.take()

	// ⚠ Status and spec share a version: the second patch is based on what the
	// first returned, and on nothing else.
	second, err := w.PatchStatus(t.Context(), first, condition("DisruptionTarget", "True"))
	if err != nil || second.Version <= first.Version || second.UID != first.UID {
		t.Fatalf("%+v after %+v: %v", second, first, err)
	}
	if _, err := w.Patch(t.Context(), first, []byte(`{"metadata":{"labels":{"x":"y"}}}`)); !errors.Is(err, ErrConflict) {
		t.Errorf("based on the old version: %v", err)
	}
	third, err := w.Patch(t.Context(), second, []byte(`{"metadata":{"labels":{"x":"y"}}}`))
	if err != nil {
		t.Errorf("based on the new version: %v", err)
	}
	if got := wire.take(); len(got) != 3 {
		t.Errorf("three patches took %d requests: %q", len(got), got)
	}

	// A patch that changes nothing is not sent.
	same, err := w.Patch(t.Context(), third, []byte(`{}`))
	if err != nil || same != third || len(wire.take()) != 0 {
		t.Errorf("an empty patch was sent, or failed: %v", err)
	}

	// I12: what others wrote stays.
	pod := readPod(t, api, third)
	if pod.Labels["app"] != "web" || pod.Labels["x"] != "y" || len(pod.Status.Conditions) != 1 {
		t.Errorf("labels %v, conditions %v", pod.Labels, pod.Status.Conditions)
	}
	fourth, err := w.PatchStatus(t.Context(), third, condition("Ready", "False"))
	if err != nil {
		t.Fatal(err)
	}
	if got := len(readPod(t, api, fourth).Status.Conditions); got != 2 {
		t.Errorf("%d conditions; a strategic patch merges them by type", got)
	}
	fifth, err := w.PatchStatus(t.Context(), fourth, MergePatch{condition("Ready", "True")})
	if err != nil {
		t.Fatal(err)
	}
	pod = readPod(t, api, fifth)
	if len(pod.Status.Conditions) != 1 {
		t.Errorf("%d conditions; a merge patch replaces the list", len(pod.Status.Conditions))
	}
	managers := map[string]bool{}
	for _, f := range pod.ManagedFields {
		managers[f.Manager] = true
	}
	if !managers["millrace-podevictor"] {
		t.Errorf("field managers are %v", managers)
	}

	if len(writes) != 4 || writes[0].Verb != VerbPatchStatus || writes[0].Ref != second || writes[0].Base != first.Version || !json.Valid(writes[0].Body) {
		t.Errorf("recorded %+v", writes)
	}
}

// ⚠ Every write hits the object that was decided on, or nothing.
func TestWritesHitWhatWasDecidedOn(t *testing.T) {
	t.Parallel()
	api, _ := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	w, now := api.Writer(WriteOptions{}), int64(0)

	old := podRef(makePod(t.Context(), t, api, ns, "a"))
	changed, err := w.Patch(t.Context(), old, []byte(`{"metadata":{"labels":{"x":"y"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(t.Context(), old, &now); !errors.Is(err, ErrConflict) {
		t.Errorf("deleting an old state: %v", err)
	}
	if err := w.Delete(t.Context(), changed, &now); err != nil {
		t.Fatal(err)
	}
	if err := w.Delete(t.Context(), changed, &now); !errors.Is(err, ErrGone) || !errors.Is(err, ErrNotFound) {
		t.Errorf("deleting what is gone: %v", err)
	}
	if _, err := w.Patch(t.Context(), changed, []byte(`{"spec":{"activeDeadlineSeconds":5}}`)); !errors.Is(err, ErrGone) {
		t.Errorf("patching what is gone: %v", err)
	}

	// Another pod of the same name: the old references do not reach it.
	fresh := podRef(makePod(t.Context(), t, api, ns, "a"))
	if err := w.Delete(t.Context(), changed, &now); !errors.Is(err, ErrGone) {
		t.Errorf("deleting by a UID of the past: %v", err)
	}
	mixed := fresh // as a cache that mixed two generations would have it
	mixed.UID = changed.UID
	if err := w.Delete(t.Context(), mixed, &now); !errors.Is(err, ErrGone) {
		t.Errorf("deleting by the right version and a UID of the past: %v", err)
	}
	if _, err := w.Patch(t.Context(), mixed, []byte(`{"metadata":{"labels":{"x":"z"}}}`)); !errors.Is(err, ErrGone) {
		t.Errorf("patching by the right version and a UID of the past: %v", err)
	}
	if _, err := w.Patch(t.Context(), changed, []byte(`{"metadata":{"labels":{"x":"z"}}}`)); !errors.Is(err, ErrConflict) && !errors.Is(err, ErrGone) {
		t.Errorf("patching by a reference of the past: %v", err)
	}
	if pod := readPod(t, api, fresh); pod.Labels["x"] != "" || podRef(pod) != fresh {
		t.Errorf("the new pod was changed: %v", pod.Labels)
	}
}

func TestARefusedWriteLeavesNothing(t *testing.T) {
	t.Parallel()
	api, wire := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	ref := podRef(makePod(t.Context(), t, api, ns, "a"))
	paused := errors.New("paused")
	told := 0
	tests := map[string]struct {
		opts WriteOptions
		want error
		told int
	}{
		"the guard says no": {WriteOptions{Guard: func(context.Context) error { return paused }}, paused, 0},
		"shadow mode":       {WriteOptions{Shadow: true}, nil, 4},
		"the guard says no in shadow mode": {
			WriteOptions{Shadow: true, Guard: func(context.Context) error { return paused }}, paused, 0,
		},
		"the guard says that only shadow mode forbids it": {
			WriteOptions{Guard: func(context.Context) error { return fmt.Errorf("%w: today", ErrShadow) }}, nil, 4,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			told = 0
			tt.opts.OnWrite = func(w Write) {
				told++
				if !w.Shadow {
					t.Errorf("%+v is not marked", w)
				}
			}
			w := api.Writer(tt.opts)
			wire.take()
			_, patchErr := w.Patch(t.Context(), ref, []byte(`{"metadata":{"labels":{"x":"y"}}}`))
			_, statusErr := w.PatchStatus(t.Context(), ref, condition("Ready", "True"))
			_, createErr := w.CreateEndpoints(t.Context(), &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "e"}})
			for _, err := range []error{patchErr, statusErr, createErr, w.Delete(t.Context(), ref, nil)} {
				if !errors.Is(err, tt.want) || (tt.want != nil) != errors.Is(err, ErrRefused) {
					t.Errorf("got %v", err)
				}
			}
			if got := wire.take(); len(got) != 0 || told != tt.told {
				t.Errorf("these left: %q; told of %d writes, want %d", got, told, tt.told)
			}
		})
	}
}

func TestRefusalsByTheServer(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	api, _ := dialTo(t, cluster.Config(kubetest.RoleEndpoints), Config{QPS: -1})
	admin, _ := dial(t)
	ns := cluster.Namespace(t)
	ref := podRef(makePod(t.Context(), t, admin, ns, "a"))
	if err := api.Writer(WriteOptions{}).Delete(t.Context(), ref, nil); !errors.Is(err, ErrForbidden) {
		t.Errorf("without the right: %v", err)
	}
	for _, reason := range []metav1.StatusReason{metav1.StatusReasonForbidden, metav1.StatusReasonInvalid} {
		remove, err := cluster.DenyVerb(t.Context(), kubetest.Denial{
			Operation: admissionv1.Create, Group: "discovery.k8s.io", Resource: "endpointslices", User: "millrace:endpoints", Reason: reason,
		})
		if err != nil {
			t.Fatal(err)
		}
		slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "e"}, AddressType: discoveryv1.AddressTypeIPv4}
		_, err = api.Writer(WriteOptions{}).CreateEndpointSlice(t.Context(), slice)
		if !errors.Is(err, ErrForbidden) {
			t.Errorf("denied by a policy with reason %s: %v", reason, err)
		}
		if err := remove(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	_, err := admin.Writer(WriteOptions{}).Patch(t.Context(), ref, []byte(`{"spec":{"nodeName":"other"}}`))
	if !errors.Is(err, ErrInvalid) {
		t.Errorf("an immutable field: %v", err)
	}
}

// What the API server refuses is told; what never left is not.
func TestAWriteThatFailsIsTold(t *testing.T) {
	t.Parallel()
	api, _ := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	ref := podRef(makePod(t.Context(), t, api, ns, "a"))
	var told []Write
	var failed []error
	allow := true
	w := api.Writer(WriteOptions{
		Guard: func(context.Context) error {
			if !allow {
				return errors.New("no")
			}
			return nil
		},
		OnWrite: func(Write) { t.Error("told of a write that was not taken") },
		OnFail:  func(w Write, err error) { told, failed = append(told, w), append(failed, err) },
	})
	old := ref
	old.Version--
	_, _ = w.Patch(t.Context(), old, []byte(`{"metadata":{"labels":{"x":"y"}}}`))
	_ = w.Delete(t.Context(), old, nil)
	allow = false
	_ = w.Delete(t.Context(), ref, nil)
	if len(told) != 2 || told[0].Verb != VerbPatch || told[0].Base != old.Version || len(told[0].Body) == 0 || told[1].Verb != VerbDelete {
		t.Fatalf("told of %+v", told)
	}
	for _, err := range failed {
		if Class(err) != "conflict" {
			t.Errorf("it failed with %v, class %s", err, Class(err))
		}
	}
}

func TestATerminatingNamespace(t *testing.T) {
	t.Parallel()
	api, _ := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	if err := api.Client().CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := api.Writer(WriteOptions{}).CreateEndpoints(t.Context(), &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "e"}})
	if !errors.Is(err, ErrNamespaceTerminating) {
		t.Errorf("got %v", err)
	}
}

func TestPutOfEndpoints(t *testing.T) {
	t.Parallel()
	api, wire := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	w := api.Writer(WriteOptions{})
	wire.take()
	want := &corev1.Endpoints{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "web", Labels: map[string]string{"a": "b"}},
		Subsets:    []corev1.EndpointSubset{{Addresses: []corev1.EndpointAddress{{IP: "10.0.0.1"}}, Ports: []corev1.EndpointPort{{Port: 80}}}},
	}
	made, err := w.CreateEndpoints(t.Context(), want)
	if err != nil || made.UID == "" || made.Subsets[0].Addresses[0].IP != "10.0.0.1" {
		t.Fatalf("%+v: %v", made, err)
	}
	if _, err := w.CreateEndpoints(t.Context(), want); !errors.Is(err, ErrConflict) {
		t.Errorf("creating it again: %v", err)
	}
	if _, err := w.UpdateEndpoints(t.Context(), want); !errors.Is(err, ErrMalformed) {
		t.Errorf("an update without UID and version: %v", err)
	}
	next := made.DeepCopy()
	next.Subsets[0].Addresses[0].IP = "10.0.0.2"
	updated, err := w.UpdateEndpoints(t.Context(), next)
	if err != nil || updated.Subsets[0].Addresses[0].IP != "10.0.0.2" {
		t.Fatalf("%+v: %v", updated, err)
	}
	if _, err := w.UpdateEndpoints(t.Context(), made); !errors.Is(err, ErrConflict) {
		t.Errorf("an update of an old state: %v", err)
	}
	stranger := updated.DeepCopy()
	stranger.UID = "somebody-else"
	if _, err := w.UpdateEndpoints(t.Context(), stranger); !errors.Is(err, ErrGone) {
		t.Errorf("an update of another UID: %v", err)
	}
	if got := wire.take(); len(got) != 5 {
		t.Errorf("five requests are %d: %q", len(got), got)
	}
	slice := &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: ns, GenerateName: "web-"}, AddressType: discoveryv1.AddressTypeIPv4}
	if _, err := w.CreateEndpointSlice(t.Context(), slice); !errors.Is(err, ErrMalformed) {
		t.Errorf("a slice without a name: %v", err)
	}
	slice.Name = "web-0"
	created, err := w.CreateEndpointSlice(t.Context(), slice)
	if err != nil {
		t.Fatal(err)
	}
	created.Labels = map[string]string{"a": "b"}
	if again, err := w.UpdateEndpointSlice(t.Context(), created); err != nil || again.Labels["a"] != "b" {
		t.Errorf("%+v: %v", again, err)
	}
}

// What travels on the bus and comes back is what can be PUT.
func TestAPutOfADecodedCopyChangesOnlyWhatItSays(t *testing.T) {
	t.Parallel()
	api, _ := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	w := api.Writer(WriteOptions{})
	made, err := w.CreateEndpoints(t.Context(), &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{
		Namespace: ns, Name: "web", Annotations: map[string]string{"a": "b"}, Finalizers: []string{"example.com/keep"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	made.ManagedFields = nil // what the bus leaves out
	body := must[[]byte](t)(Encode(made))
	var copied corev1.Endpoints
	if err := Decode(body, &copied); err != nil {
		t.Fatal(err)
	}
	copied.Labels = map[string]string{"x": "y"}
	after, err := w.UpdateEndpoints(t.Context(), &copied)
	if err != nil {
		t.Fatal(err)
	}
	if len(after.ManagedFields) == 0 {
		t.Error("managedFields are gone")
	}
	made.Labels, made.ResourceVersion, after.ResourceVersion, after.ManagedFields = copied.Labels, "", "", nil
	if diff := cmp.Diff(made, after); diff != "" {
		t.Error(diff)
	}
}

func TestRefString(t *testing.T) {
	if got := (Ref{Kind: Nodes, Key: event.Key{Name: "n1"}}).String(); got != "nodes n1" {
		t.Errorf("%q", got)
	}
}
