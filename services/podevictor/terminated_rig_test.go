package podevictor

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// endedPods stores pods that have ended, none of which the role is told of as a pod of a
// partition.
func (r *rig) endedPods(n int, options ...podOption) (out []*corev1.Pod) {
	r.Helper()
	for i := range n {
		is := []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed}[i%2]
		out = append(out, r.store(fmt.Sprint("p", i), "n", append([]podOption{phase(is)}, options...)...))
	}
	r.wire.Take()
	return out
}

func (r *rig) discards(over ...*corev1.Pod) error {
	return r.role.discardAll(r.Context(), r.p, over, 2)
}

// B2, collection 1, and B4: deleted at once, with no patch and no condition, and
// nothing is said; each deletion names the pod that was counted.
func TestPodsThatHaveEndedAreDeleted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	over := r.endedPods(4)
	if err := r.discards(over[:3]...); err != nil {
		t.Fatal(err)
	}
	writes, _ := r.wire.Writes()
	if len(writes) != 3 {
		t.Fatalf("wrote %v", writes)
	}
	for _, w := range writes {
		o, _ := w.Object().(*metav1.DeleteOptions)
		if w.String() != "DELETE pods" || *o.GracePeriodSeconds != 0 || o.Preconditions.UID == nil || o.Preconditions.ResourceVersion == nil {
			t.Errorf("%s with %+v", w, o)
		}
	}
	for i, want := range []string{"gone", "gone", "gone", "stays"} {
		if got := r.fate(fmt.Sprint("p", i)); got != want {
			t.Errorf("p%d %s, want %s", i, got, want)
		}
	}
	if got := r.p.Rules(); got != "terminated terminated terminated" {
		t.Errorf("recorded %q", got)
	}
	if got := r.counted("pod_gc_collector_force_delete_pods_total"); got != 3 {
		t.Errorf("counted %g", got)
	}
	if got := r.told(); got != nil {
		t.Errorf("events %q", got)
	}
}

// What is otherwise by a live look is left alone, and is no error: the next pass sees
// it as it is then.
func TestWhatHasChangedSinceTheCount(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *rig){
		"it is gone":                    func(r *rig) { r.force("p0") },
		"it is another one":             func(r *rig) { r.force("p0"); r.store("p0", "n", phase(corev1.PodFailed)) },
		"it has been deleted by force":  func(r *rig) { r.force("p0") },
		"it changes at the last moment": func(r *rig) { r.once(http.MethodDelete, "pods", func() { r.label("p0") }) },
		"it is made anew at the last moment": func(r *rig) {
			r.once(http.MethodDelete, "pods", func() { r.force("p0"); r.store("p0", "n", phase(corev1.PodFailed)) })
		},
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			var options []podOption
			if name == "it has been deleted by force" {
				options = append(options, finalized)
			}
			over := r.endedPods(1, options...)
			change(r)
			before := r.found("p0")
			r.wire.Take()
			if err := r.discards(over...); err != nil {
				t.Errorf("discardAll() = %v", err)
			}
			if after := r.found("p0"); strings.Contains(name, "another") && (after == nil || after.UID != before.UID || after.DeletionTimestamp != nil) {
				t.Error("the other one was deleted")
			}
			if after := r.found("p0"); strings.Contains(name, "last moment") && (after == nil || after.DeletionTimestamp != nil) {
				t.Error("it was deleted in a state that nobody has seen")
			}
			if got := r.writes(); got != "" && !strings.Contains(name, "last moment") {
				t.Errorf("wrote %q", got)
			}
		})
	}
}

// One that cannot be deleted holds up no other, and the pass says so.
func TestOneThatIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	over := r.endedPods(4)
	r.wire.Meets(func(q *http.Request) int {
		if q.Method == http.MethodDelete && strings.HasSuffix(q.URL.Path, "/p1") {
			return http.StatusForbidden
		}
		return 0
	})
	if err := r.discards(over...); !errors.Is(err, kube.ErrForbidden) {
		t.Errorf("discardAll() = %v", err)
	}
	if got := r.fate("p0") + r.fate("p1") + r.fate("p2") + r.fate("p3"); got != "gonestaysgonegone" {
		t.Errorf("the pods: %s", got)
	}
	if total, failed := r.counted("pod_gc_collector_force_delete_pods_total"), r.counted("pod_gc_collector_force_delete_pod_errors_total"); total != 4 || failed != 1 {
		t.Errorf("counted %g, failed %g: upstream counts those that fail in both", total, failed)
	}
}

// While it is paused, too old, not ours or off nothing is read or deleted; in shadow
// it is recorded. Nor does a count go on that grew too old in the middle.
func TestWhatHoldsBackThePass(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		frame    func(r *rig)
		err      error
		recorded string
	}{
		"paused":         {func(r *rig) { r.p.Refuses(paused) }, controller.ErrPaused, ""},
		"too old":        {func(r *rig) { r.p.Refuses(stale) }, controller.ErrStale, ""},
		"off":            {func(r *rig) { r.p.Switch(partGarbage, controller.ModeOff) }, controller.ErrNotHolder, ""},
		"shadow":         {func(r *rig) { r.p.Switch(partGarbage, controller.ModeShadow) }, nil, "terminated(intended) terminated(intended) terminated(intended)"},
		"the other part": {func(r *rig) { r.p.Switch(partTaints, controller.ModeOff) }, nil, "terminated terminated terminated"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			over := r.endedPods(3)
			tt.frame(r)
			if err := r.discards(over...); !errors.Is(err, tt.err) {
				t.Errorf("discardAll() = %v", err)
			}
			if got := r.p.Rules(); got != tt.recorded {
				t.Errorf("recorded %q", got)
			}
			if sent := r.wire.Take(); tt.err != nil && len(sent) > 0 {
				t.Errorf("sent %v", sent)
			}
			if got := r.counted("pod_gc_collector_force_delete_pods_total"); (got > 0) != (name == "the other part") {
				t.Errorf("counted %g", got)
			}
			if name != "the other part" && r.fate("p0")+r.fate("p1")+r.fate("p2") != "staysstaysstays" {
				t.Error("deleted all the same")
			}
		})
	}
}

// The count grows too old in the middle: the rest is for the next one.
func TestACountThatGrowsOld(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	const many = 20
	over := r.endedPods(many)
	r.once(http.MethodDelete, "pods", func() { r.p.Refuses(stale) })
	if err := r.discards(over...); !errors.Is(err, controller.ErrStale) {
		t.Errorf("discardAll() = %v", err)
	}
	gone := 0
	for i := range many {
		if r.found(fmt.Sprint("p", i)) == nil {
			gone++
		}
	}
	if gone > 2 { // those in hand
		t.Errorf("%d are gone", gone)
	}
}

// What is kept of pods for the count: only those that have ended.
func TestDecodeFinished(t *testing.T) {
	t.Parallel()
	for _, is := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown, ""} {
		p := podOf(phase(is), tol("a"), func(p *corev1.Pod) { p.Status.Reason = "Evicted" })
		body, err := kube.Encode(p)
		if err != nil {
			t.Fatal(err)
		}
		object, err := decodeFinished(event.Message{Kind: pods, Key: event.Key{Namespace: "ns", Name: "p"}, Op: event.Put, UID: "uid-of-p", Version: 7, Body: body, Observed: time.Now()})
		if err != nil {
			t.Fatal(err)
		}
		kept, has := object.(*corev1.Pod)
		if has != finished(p) {
			t.Errorf("%q is kept: %t", is, has)
		}
		if has && (putOut(kept) != putOut(p) || !kept.CreationTimestamp.Time.Equal(then) || kept.Name != "p" || kept.UID != p.UID || len(kept.Spec.Tolerations) > 0) {
			t.Errorf("%q: kept %+v", is, kept)
		}
	}
}
