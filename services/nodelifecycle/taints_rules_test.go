package nodelifecycle

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"pgregory.net/rapid"
)

// anyNode draws nodes with any conditions and any list of taints that an API
// server would hold: at most one of a key and effect.
var anyNode = rapid.Custom(func(t *rapid.T) *corev1.Node {
	n := node("n")
	for _, c := range append(slices.Clone(judgedConditions), corev1.NodeNetworkUnavailable, "example.com/Frosty") {
		if status := rapid.SampledFrom([]corev1.ConditionStatus{"", "True", "False", "Unknown"}).Draw(t, string(c)); status != "" {
			says(c, status)(n)
		}
	}
	n.Spec.Unschedulable = rapid.Bool().Draw(t, "unschedulable")
	keys := []string{
		notReady, unreachable, cordoned, "node.kubernetes.io/memory-pressure", "node.kubernetes.io/disk-pressure",
		"node.kubernetes.io/pid-pressure", "node.kubernetes.io/network-unavailable", "node.kubernetes.io/out-of-service",
		"node.cloudprovider.kubernetes.io/shutdown", "example.com/x", "not-ready",
	}
	n.Spec.Taints = rapid.SliceOfNDistinct(rapid.Custom(func(t *rapid.T) corev1.Taint {
		out := corev1.Taint{
			Key:    rapid.SampledFrom(keys).Draw(t, "key"),
			Value:  rapid.SampledFrom([]string{"", "v"}).Draw(t, "value"),
			Effect: rapid.SampledFrom([]corev1.TaintEffect{noSched, noExec, preferNo}).Draw(t, "effect"),
		}
		if at := rapid.IntRange(-1, 100).Draw(t, "timeAdded"); at >= 0 {
			added := metav1.NewTime(then.Add(time.Duration(at) * time.Second))
			out.TimeAdded = &added
		}
		return out
	}), 0, 12, func(t corev1.Taint) string { return t.Key + ":" + string(t.Effect) }).Draw(t, "taints")
	return n
})

// foreign returns the taints that are not ours to touch: contract 1, section 3.1.
func foreign(taints []corev1.Taint) []corev1.Taint {
	out := []corev1.Taint{}
	for _, t := range taints {
		ours := t.Effect == noSched && noSchedule[t.Key] || t.Effect == noExec && (t.Key == notReady || t.Key == unreachable)
		if !ours {
			out = append(out, t)
		}
	}
	return out
}

// complain is what checkTaints says it with: a *testing.T, a *rapid.T.
type complain interface {
	Helper()
	Errorf(format string, args ...any)
}

// checkTaints holds what may be written of a node against what holds for every
// node, whatever it is.
func checkTaints(t complain, n *corev1.Node, down bool) {
	t.Helper()
	before := n.DeepCopy()
	after := n.DeepCopy()
	p := planned(after, down, later)
	if p.tainted {
		after.Spec.Taints = p.taints
	}
	checkForeign(t, "planned", before, after)
	checkPlanned(t, before, after, down)

	if want := wantedNoExecute(after); !down && (want == add || want == swap) {
		bearing := after.DeepCopy()
		after.Spec.Taints = executed(after, later)
		checkForeign(t, "executed", before, after)
		checkExecuted(t, bearing, after)
	}
	checkSettled(t, after, down)
	if diff := cmp.Diff(before, n); diff != "" {
		t.Errorf("the node itself was changed:\n%s", diff)
	}
}

// checkForeign: I12. No foreign taint is lost or changed: key, value, effect, time,
// order.
func checkForeign(t complain, what string, before, after *corev1.Node) {
	t.Helper()
	if diff := cmp.Diff(foreign(before.Spec.Taints), foreign(after.Spec.Taints)); diff != "" {
		t.Errorf("%s: foreign taints, -before +after:\n%s", what, diff)
	}
}

func checkPlanned(t complain, before, after *corev1.Node, down bool) {
	t.Helper()
	wanted := wantedNoSchedule(before)
	slices.Sort(wanted)
	if got := keysOf(after.Spec.Taints, noSched); !slices.Equal(got, wanted) {
		t.Errorf("NoSchedule %q, want %q", got, wanted)
	}
	for _, taint := range after.Spec.Taints {
		old, had := find(before, taint.Key, taint.Effect)
		if had && !cmp.Equal(old, taint) {
			t.Errorf("a taint that was there was changed: %v, want %v", taint, old)
		}
		if !had && (taint.Effect != noSched || taint.TimeAdded == nil || !taint.TimeAdded.Time.Equal(later) || taint.Value != "") {
			t.Errorf("added %v", taint)
		}
	}
	status, _ := statusOf(before, corev1.NodeReady)
	if (down || status == "True") && isTainted(after) {
		t.Errorf("Ready %q, down %v: %s", status, down, said(after.Spec.Taints))
	}
}

// checkExecuted: never both of ours, the right one, and the time of a swap.
func checkExecuted(t complain, before, after *corev1.Node) {
	t.Helper()
	key := sickness(after)
	got, has := find(after, key, noExec)
	if _, both := find(after, other(key), noExec); both || !has {
		t.Errorf("NoExecute taints %s", said(after.Spec.Taints))
		return
	}
	want := &metav1.Time{Time: later}
	if was, had := find(before, other(key), noExec); had && was.TimeAdded != nil {
		want = was.TimeAdded
	}
	if was, had := find(before, key, noExec); had {
		want = was.TimeAdded
	}
	if !want.Equal(got.TimeAdded) {
		t.Errorf("timeAdded %v, want %v", got.TimeAdded, want)
	}
}

// checkSettled: I7. Deciding again changes nothing.
func checkSettled(t complain, n *corev1.Node, down bool) {
	t.Helper()
	if p := planned(n, down, later.Add(time.Minute)); p.needed() {
		t.Errorf("decided again: %s, %s", p.rule, said(p.taints))
	}
	if want := wantedNoExecute(n); !down && want != leave {
		t.Errorf("decided again: NoExecute %d with %s", want, said(n.Spec.Taints))
	}
}

func find(n *corev1.Node, key string, effect corev1.TaintEffect) (corev1.Taint, bool) {
	for _, t := range n.Spec.Taints {
		if t.Key == key && t.Effect == effect {
			return t, true
		}
	}
	return corev1.Taint{}, false
}

// For any node: no foreign taint is lost, changed or moved; never both NoExecute
// taints; the time of a swap is kept; deciding twice changes nothing.
func TestTaintsOfAnyNode(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		checkTaints(t, anyNode.Draw(t, "node"), rapid.Bool().Draw(t, "down"))
	})
}

// The same from bytes.
func FuzzTaints(f *testing.F) {
	seed := make([]byte, 1024) // a node takes some hundreds
	for i := range seed {
		seed[i] = byte(i * 31)
	}
	f.Add(seed)
	f.Fuzz(rapid.MakeFuzz(func(t *rapid.T) {
		checkTaints(t, anyNode.Draw(t, "node"), rapid.Bool().Draw(t, "down"))
	}))
}

// A node flips between Ready, False and Unknown, and others set and take taints
// meanwhile: at no revision both NoExecute taints, no row is broken by a swap, and
// its time is that of its first.
func TestTheTimeOfAnUnbrokenRowIsThatOfItsFirst(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := node("n", ready)
		now := then
		var since *time.Time // of the row
		for range rapid.IntRange(1, 20).Draw(t, "steps") {
			now = now.Add(time.Second)
			n.Status.Conditions[0].Status = rapid.SampledFrom([]corev1.ConditionStatus{"True", "False", "Unknown"}).Draw(t, "Ready")
			if p := planned(n, false, now); p.tainted {
				n.Spec.Taints = p.taints
			}
			if want := wantedNoExecute(n); want == add || want == swap {
				n.Spec.Taints = executed(n, now)
			}
			if n.Status.Conditions[0].Status == "True" {
				since = nil
				continue
			}
			if since == nil {
				at := now
				since = &at
			}
			got, has := find(n, sickness(n), noExec)
			if _, both := find(n, other(sickness(n)), noExec); both || !has || !got.TimeAdded.Time.Equal(*since) {
				t.Fatalf("%s since %v, want since %v", said(n.Spec.Taints), got.TimeAdded, since)
			}
		}
	})
}
