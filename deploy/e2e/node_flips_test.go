package e2e

import (
	"context"
	"encoding/json"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// foreign are taints of other people: other keys, values, times and effects, and
// our keys with effects that are not ours.
func foreign() []corev1.Taint {
	long := metav1.NewTime(time.Date(2020, 2, 3, 4, 5, 6, 0, time.UTC))
	return []corev1.Taint{
		{Key: "example.com/maintenance", Value: "tonight", Effect: corev1.TaintEffectNoExecute, TimeAdded: &long},
		{Key: "example.com/maintenance", Value: "later", Effect: corev1.TaintEffectNoSchedule},
		{Key: corev1.TaintNodeUnreachable, Value: "perhaps", Effect: corev1.TaintEffectPreferNoSchedule},
		{Key: corev1.TaintNodeMemoryPressure, Effect: corev1.TaintEffectNoExecute, TimeAdded: &long},
		{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectPreferNoSchedule},
		{Key: "node.cloudprovider.kubernetes.io/shutdown", Effect: corev1.TaintEffectNoSchedule, TimeAdded: &long},
	}
}

// foreignOf is what a node bears that is not ours, byte by byte.
func foreignOf(t *testing.T, n *corev1.Node) string {
	t.Helper()
	text, err := json.Marshal(slices.DeleteFunc(slices.Clone(n.Spec.Taints), ours))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Contract: "flip" of issue 4. A dead node whose kubelet says False, then nothing,
// then False bears exactly one NoExecute taint at every revision, which has one
// time; one that is removed by hand comes back, through the bucket; taints of
// others survive everything. Long form: ROUNDS=10.
func TestNodeFlips(t *testing.T) {
	const rate = 0.5 // NoExecute taints per second
	rounds, times := number(t, "ROUNDS", 1), 1
	if long("ROUNDS") {
		times = 3
	}
	ctx, f := begin(t, 2*time.Minute+time.Duration(rounds)*time.Minute)
	w := nodesIn(ctx, t, f, nodeSetup{
		nodes: 5, zones: []string{"a"}, beat: beatEvery, grace: 4 * time.Second, replicas: 2, env: append(evictions(rate), unlimited...),
	})
	name := w.names[0]
	w.setTaints(ctx, name, foreign())
	began := time.Now()
	for round := range rounds {
		w.silence(name)
		w.await(ctx, t, 30*time.Second, "it is tainted", w.names[:1], unreachableNoExecute)
		tainted := time.Now()
		for range times {
			w.report(ctx, t, name, false)
			w.await(ctx, t, 15*time.Second, "unreachable is swapped for not-ready", w.names[:1], both(notReadyNoExecute, notReadyNoSchedule))
			w.silence(name)
			w.await(ctx, t, 15*time.Second, "not-ready is swapped for unreachable", w.names[:1], both(unreachableNoExecute, unreachableNoSchedule))
		}
		for _, r := range w.log.since(name, tainted) {
			if !anyNoExecute(r.node) {
				t.Errorf("round %d: no NoExecute taint at revision %d: %s", round, r.revision, describe(r.node))
			}
		}
		w.byHand(ctx, t, name, rate, times)
		w.report(ctx, t, name, true)
		w.await(ctx, t, 30*time.Second, "it is healthy", w.names[:1], healthyNow)
	}
	want := foreignOf(t, &corev1.Node{Spec: corev1.NodeSpec{Taints: foreign()}})
	for _, r := range w.log.since(name, began) {
		if got := foreignOf(t, r.node); got != want {
			t.Fatalf("taints of others at revision %d: %s, want %s", r.revision, got, want)
		}
	}
	t.Logf("%d revisions in %s", len(w.log.since(name, began)), time.Since(began).Round(100*time.Millisecond))
	w.await(ctx, t, time.Second, "all others are healthy", w.names[1:], healthyNow)
	w.log.judge(t)
}

// byHand removes our taints from a dead node, again as soon as they are back.
func (w *nodeWorld) byHand(ctx context.Context, t *testing.T, name string, rate float64, times int) {
	t.Helper()
	began := time.Now()
	for range times {
		removed := time.Now()
		w.setTaints(ctx, name, foreign())
		eventually(ctx, t, 20*time.Second, "both are back", func() (bool, string) {
			_, ok := w.log.first(name, removed, both(unreachableNoExecute, unreachableNoSchedule))
			return ok, describe(w.log.node(name))
		})
		schedule, _ := w.log.first(name, removed, unreachableNoSchedule)
		execute, _ := w.log.first(name, removed, unreachableNoExecute)
		t.Logf("removed by hand: NoSchedule is back after %s, NoExecute after %s",
			schedule.Sub(removed).Round(time.Millisecond), execute.Sub(removed).Round(time.Millisecond))
	}
	withinRate(t, rate, w.log.additions([]string{name}, began))
}

// setTaints makes these a node's taints, as a person would: without a look at
// what is there.
func (w *nodeWorld) setTaints(ctx context.Context, name string, taints []corev1.Taint) {
	w.t.Helper()
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	w.must(err)
	_, err = w.api.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
	w.must(err)
}

// report lets a silent node speak, and say whether it is ready.
func (w *nodeWorld) report(ctx context.Context, t *testing.T, name string, ready bool) {
	t.Helper()
	_ = w.kubelet.SetNodeReady(ctx, name, ready) // silent yet: it will say so
	w.resume(name)
	eventually(ctx, t, 10*time.Second, name+" has reported", func() (bool, string) {
		n := w.log.node(name)
		return (readyOf(n) == corev1.ConditionTrue) == ready && !unknownNow(n), describe(n)
	})
}

func both(one, other func(*corev1.Node) bool) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return one(n) && other(n) }
}
