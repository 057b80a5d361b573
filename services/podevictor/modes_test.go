package podevictor

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/controller"
)

// victims are a pod to be evicted and one that is garbage, each by the first of its
// rules.
func victims(t *testing.T, set ...func(p *policy)) *rig {
	t.Helper()
	r := newRig(t, append([]func(p *policy){quickly}, set...)...)
	r.node("n", untimed("a"))
	r.pod("evicted", "n")
	r.pod("orphan", "never-was")
	r.quarantined("orphan")
	r.wire.Take()
	return r
}

// Each part by itself, and the role over both: the more cautious counts. In shadow
// what would be written is recorded and nothing is said; what is off is not even
// looked at.
func TestModesOfTheParts(t *testing.T) {
	t.Parallel()
	const (
		both     = "taint-eviction taint-eviction orphaned orphaned"
		intended = "taint-eviction(intended) taint-eviction(intended)"
		orphans  = "orphaned(intended) orphaned(intended)"
		marking  = "Normal TaintManagerEviction Marking for deletion Pod evicted"
	)
	tests := map[string]struct {
		role, taints, garbage string
		recorded, said        string
		evicted, orphan       string
	}{
		"both active":              {"active", "active", "active", both, marking, "ending", "gone"},
		"taint eviction off":       {"active", "off", "active", "orphaned orphaned", "", "stays", "gone"},
		"garbage collection off":   {"active", "active", "off", "taint-eviction taint-eviction", marking, "ending", "stays"},
		"taint eviction shadow":    {"active", "shadow", "active", intended + " orphaned orphaned", "", "stays", "gone"},
		"garbage shadow":           {"active", "active", "shadow", "taint-eviction taint-eviction " + orphans, marking, "ending", "stays"},
		"the role shadow":          {"shadow", "active", "active", intended + " " + orphans, "", "stays", "stays"},
		"the role shadow, one off": {"shadow", "off", "active", orphans, "", "stays", "stays"},
		"the role off":             {"off", "active", "active", "", "", "stays", "stays"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := victims(t)
			r.p.Switch("", tt.role)
			r.p.Switch(partTaints, tt.taints)
			r.p.Switch(partGarbage, tt.garbage)
			for _, pod := range []string{"evicted", "orphan"} {
				if _, err := r.reconcile(pod); err != nil && !errors.Is(err, controller.ErrShadow) {
					t.Errorf("Reconcile(%s) = %v", pod, err)
				}
			}
			if got := r.p.Rules(); got != tt.recorded {
				t.Errorf("recorded %q, want %q", got, tt.recorded)
			}
			if got := join(r.told()); got != tt.said {
				t.Errorf("said %q, want %q", got, tt.said)
			}
			if a, b := r.fate("evicted"), r.fate("orphan"); a != tt.evicted || b != tt.orphan {
				t.Errorf("evicted %s, orphan %s; want %s, %s", a, b, tt.evicted, tt.orphan)
			}
			for metric, is := range map[string]bool{
				"taint_eviction_controller_pod_deletions_total": tt.evicted != "stays", "pod_gc_collector_force_delete_pods_total": tt.orphan != "stays",
			} {
				if got := r.counted(metric); (got > 0) != is {
					t.Errorf("%s is %g", metric, got)
				}
			}
			if contains(tt.recorded, "intended") == (r.waiting("evicted").Waiting != waitsShadow && r.waiting("orphan").Waiting != waitsShadow) {
				t.Errorf("waiting for %q and %q", r.waiting("evicted").Waiting, r.waiting("orphan").Waiting)
			}
		})
	}
}

// What was only intended in shadow is done, and said, once the part is active; where
// it was off, too.
func TestFromShadowToActive(t *testing.T) {
	t.Parallel()
	for _, before := range []string{controller.ModeShadow, controller.ModeOff} {
		t.Run(before, func(t *testing.T) {
			t.Parallel()
			r := victims(t)
			r.p.Switch(partTaints, before)
			for range 3 {
				if _, err := r.reconcile("evicted"); err != nil && !errors.Is(err, controller.ErrShadow) {
					t.Fatal(err)
				}
			}
			if got := r.writes(); got != "" {
				t.Fatalf("wrote %q", got)
			}
			r.p.Switch(partTaints, controller.ModeActive)
			r.run("evicted")
			if got := r.writes(); got != evicted {
				t.Errorf("wrote %q", got)
			}
			if got := r.told(); !slices.Equal(got, []string{"Normal TaintManagerEviction Marking for deletion Pod evicted"}) {
				t.Errorf("events %q", got)
			}
		})
	}
}

// A part that is switched off in the middle says nothing more: what waited is
// forgotten.
func TestSwitchedOffWhileAPodWaits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n", tol("a", 100))
	r.run("p")
	r.p.Switch(partTaints, controller.ModeOff)
	if after := r.run("p"); after != 0 || r.waiting("p").Waiting != "" {
		t.Errorf("after %s: %+v", after, r.waiting("p"))
	}
	if got := r.told(); got != nil {
		t.Errorf("events %q", got)
	}
	r.p.Switch(partTaints, controller.ModeActive)
	if after := r.run("p"); after <= 0 || r.waiting("p").Waiting != waitsTime {
		t.Errorf("after %s: %+v", after, r.waiting("p"))
	}
}

// Where garbage collection is off, a pod whose node is gone is nobody's: taint
// eviction leaves it alone (A15, "node deleted at 100": only collected).
func TestAPodWithoutNodeIsNotEvicted(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node("n", bad("a", r.at(0)))
	r.pod("p", "n", tol("a", 300), boundNow(r))
	r.p.Switch(partGarbage, controller.ModeOff)
	r.run("p")
	r.unmake("n")
	r.Drop(t, n)
	r.pass(301 * second)
	if after := r.run("p"); after != 0 || r.writes() != "" || r.fate("p") != "stays" {
		t.Errorf("after %s, the pod %s", after, r.fate("p"))
	}
}

// A15, "node deleted at 100": its taints count no longer, and it is an orphan after
// the quarantine, whatever time it tolerated.
func TestANodeThatGoesAwayLeavesAnOrphan(t *testing.T) {
	t.Parallel()
	r := newRig(t, quickly)
	n := r.node("n", bad("a", r.at(0)))
	r.pod("p", "n", tol("a", 300), boundNow(r))
	r.run("p")
	r.unmake("n")
	r.Drop(t, n)
	r.pass(100 * second)
	r.quarantined("p")
	if got := r.waiting("p"); got.Waiting != waitsQuarantine || got.Why != reasonsFor[ruleOrphaned] {
		t.Errorf("%+v", got)
	}
	r.run("p")
	if got := r.p.Rules(); got != "orphaned orphaned" {
		t.Errorf("recorded %q", got)
	}
	if c := r.found("p"); c != nil {
		t.Errorf("the pod is still there: %s", corev1.PodFailed)
	}
}
