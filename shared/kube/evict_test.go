package kube

import (
	"errors"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// An eviction hits what was decided on, or nothing, and a PodDisruptionBudget holds
// it back.
func TestEvictionsHitWhatWasDecidedOn(t *testing.T) {
	t.Parallel()
	api, _ := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	var told []Write
	w := api.Writer(WriteOptions{OnWrite: func(w Write) { told = append(told, w) }})

	old := podRef(makePod(t.Context(), t, api, ns, "a"))
	now, err := w.Patch(t.Context(), old, []byte(`{"metadata":{"labels":{"x":"y"}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Evict(t.Context(), old); !errors.Is(err, ErrConflict) {
		t.Errorf("evicting an old state: %v", err)
	}
	other := now
	other.UID = "of-another"
	if err := w.Evict(t.Context(), other); !errors.Is(err, ErrGone) && !errors.Is(err, ErrConflict) {
		t.Errorf("evicting another pod: %v", err)
	}

	none := intstr.FromInt32(0)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &none, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"x": "y"}}},
	}
	admin := kubetest.Shared(t).Client()
	if _, err := admin.PolicyV1().PodDisruptionBudgets(ns).Create(t.Context(), budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	running, err := w.PatchStatus(t.Context(), now, map[string]any{"status": map[string]any{
		"phase": "Running", "conditions": []map[string]any{{"type": "Ready", "status": "True"}},
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Evict(t.Context(), running); !errors.Is(err, ErrThrottled) {
		t.Errorf("evicting against a budget: %v", err)
	}
	if err := admin.PolicyV1().PodDisruptionBudgets(ns).Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := w.Evict(t.Context(), running); err != nil {
		t.Error(err)
	}
	if last := told[len(told)-1]; last.Verb != VerbEvict || !last.Later || last.Ref != running {
		t.Errorf("told of %+v", last)
	}
}

// Who asks for the same object within a moment gets one read, and knows how old it is.
func TestReadsAreSharedForAMoment(t *testing.T) {
	t.Parallel()
	api, wire := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	reads := func() int { return wire.count("GET", "/pods/a") }
	const age = time.Hour // as good as for ever
	shared := api.SharedReads(Pods, age)
	key := event.Key{Namespace: ns, Name: "a"}

	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if _, _, err := shared.Get(t.Context(), key); !errors.Is(err, ErrNotFound) {
				t.Errorf("reading what is not there: %v", err)
			}
		})
	}
	all.Wait()
	if n := reads(); n != 1 {
		t.Errorf("%d reads, want 1", n)
	}
	made := makePod(t.Context(), t, api, ns, "a")
	if _, _, err := shared.Get(t.Context(), key); !errors.Is(err, ErrNotFound) {
		t.Error("a read that counts was made again")
	}
	fresh := api.SharedReads(Pods, 0) // too old at once
	before := time.Now()
	o, asked, err := fresh.Get(t.Context(), key)
	if err != nil || o.UID != string(made.UID) || asked.Before(before) {
		t.Errorf("read %s as of %s: %v", o.UID, asked, err)
	}
	if pod, ok := o.Raw.(*corev1.Pod); !ok || pod.Name != "a" {
		t.Errorf("read a %T", o.Raw)
	}
	count := reads()
	if _, _, err := fresh.Get(t.Context(), key); err != nil || reads() != count+1 {
		t.Error("a read that is too old was shared")
	}
}
