package podevictor

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// once does something right before the first request of a verb to a resource, or a
// part of one, leaves.
func (r *rig) once(verb, resource string, do func()) {
	r.wire.Meets(func(q *http.Request) int {
		if (roletest.Sent{Verb: q.Method, Path: q.URL.Path}).String() == verb+" "+resource {
			r.wire.Meets(nil)
			do()
		}
		return 0
	})
}

func (r *rig) meetsOnPatch(do func()) { r.once(http.MethodPatch, "pods/status", do) }

// older lets the look at a node grow too old to be shared.
func older() { time.Sleep(hostShared + 10*time.Millisecond) }

// The condition was written, and by then things are otherwise: the pod stays.
func TestWhatChangesBetweenTheStatusAndTheDeletion(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *rig){
		"the taint is removed":      func(r *rig) { r.secretly("n") },
		"it evicts nobody any more": func(r *rig) { r.secretly("n", corev1.Taint{Key: "a", Effect: "NoSchedule"}) },
		"it was put back just now":  func(r *rig) { r.secretly("n", bad("a", r.at(10*second))) },
		"the node is gone":          func(r *rig) { r.unmake("n") },
		"the node is another one":   func(r *rig) { r.unmake("n"); r.made("n"); r.secretly("n", bad("a", r.at(0))) },
		"evictions are paused":      func(r *rig) { r.p.Refuses(paused) },
		"the inputs are too old":    func(r *rig) { r.p.Refuses(stale) },
		"the partition is not ours": func(r *rig) { r.p.Refuses(func(controller.Danger) error { return controller.ErrNotHolder }) },
		"the part is switched off":  func(r *rig) { r.p.Switch(partTaints, controller.ModeOff) },
		"the part is in shadow":     func(r *rig) { r.p.Switch(partTaints, controller.ModeShadow) },
		"the pod is another one":    func(r *rig) { r.force("p"); r.store("p", "n") },
		"the pod was changed":       func(r *rig) { r.label("p") },
		"the pod tolerates it now":  func(r *rig) { r.tolerates("p", 100) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n", bad("a", r.at(0)))
			r.pod("p", "n", tol("a", 10), boundNow(r))
			r.run("p")
			r.pass(10 * second)
			r.meetsOnPatch(func() {
				change(r)
				older()
			})
			result, err := r.reconcile("p")
			if got := r.fate("p"); got != "stays" {
				t.Errorf("the pod %s", got)
			}
			if err == nil && result.After == 0 {
				t.Error("it is not looked at again")
			}
			if p := r.waiting("p"); p.Waiting == "" {
				t.Error("it is forgotten")
			}
		})
	}
}

// label changes a pod behind the role's back.
func (r *rig) label(pod string) {
	r.Helper()
	p := r.livePod(pod)
	p.Labels = map[string]string{"x": "y"}
	if _, err := r.admin.CoreV1().Pods(r.ns).Update(r.Context(), p, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// tolerates sets the seconds of a pod's first toleration behind the role's back.
func (r *rig) tolerates(pod string, s int64) {
	r.Helper()
	p := r.livePod(pod)
	p.Spec.Tolerations[0].TolerationSeconds = &s
	if _, err := r.admin.CoreV1().Pods(r.ns).Update(r.Context(), p, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
}

func paused(d controller.Danger) error {
	if d == controller.Evicting {
		return &controller.PausedError{Danger: d, Why: errors.New("evictions")}
	}
	return nil
}

func stale(d controller.Danger) error {
	if d >= controller.Destructive {
		return &controller.StaleError{Kind: nodes, Danger: d}
	}
	return nil
}

// What the first live look finds otherwise than the cache: nothing is written.
func TestWhatTheLiveLookFinds(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *rig){
		"the taint is removed":     func(r *rig) { r.secretly("n") },
		"it was put back just now": func(r *rig) { r.secretly("n", bad("a", r.at(10*second))) },
		"the node is gone":         func(r *rig) { r.unmake("n") },
		"the node is another one":  func(r *rig) { r.unmake("n"); r.made("n"); r.secretly("n", bad("a", r.at(0))) },
		"the pod is another one":   func(r *rig) { r.force("p"); r.store("p", "n") },
		"the pod tolerates it now": func(r *rig) { r.tolerates("p", 100) },
		"the pod is being deleted": func(r *rig) { _ = r.admin.CoreV1().Pods(r.ns).Delete(r.Context(), "p", metav1.DeleteOptions{}) },
		"the pod is gone":          func(r *rig) { r.force("p") },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n", bad("a", r.at(0)))
			r.pod("p", "n", tol("a", 10), boundNow(r))
			r.run("p")
			r.pass(10 * second)
			change(r)
			if _, err := r.reconcile("p"); err != nil && classify(err) != controller.Gone {
				t.Errorf("Reconcile() = %v", err)
			}
			if got := r.writes(); got != "" {
				t.Errorf("wrote %q", got)
			}
			if got := r.told(); got != nil {
				t.Errorf("events %q", got)
			}
		})
	}
}

// The pod is made anew right before the deletion, which must not hit it; nor must
// the status.
func TestAPodMadeAnewIsNeverHit(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{"PATCH pods/status", "DELETE pods"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n", untimed("a"))
			r.pod("p", "n")
			method, what, _ := strings.Cut(verb, " ")
			r.once(method, what, func() {
				r.force("p")
				r.store("p", "n", tol("a"))
			})
			if _, err := r.reconcile("p"); err == nil {
				t.Error("Reconcile() = nil")
			}
			live := r.livePod("p")
			if live.DeletionTimestamp != nil || disrupted(live) != nil {
				t.Errorf("%+v", live.Status)
			}
			r.echo("p")
			r.run("p")
			if got := r.fate("p"); got != "stays" || r.waiting("p").Waiting != "" {
				t.Errorf("the pod %s: %+v", got, r.waiting("p"))
			}
		})
	}
}

// A conflict is answered by a live look; the condition is not written twice.
func TestConflicts(t *testing.T) {
	t.Parallel()
	for verb, again := range map[string]string{"PATCH pods/status": evicted, "DELETE pods": "DELETE pods"} {
		t.Run(verb, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n", untimed("a"))
			r.pod("p", "n")
			method, what, _ := strings.Cut(verb, " ")
			r.once(method, what, func() { r.label("p") })
			if _, err := r.reconcile("p"); classify(err) != controller.Conflict {
				t.Fatalf("Reconcile() = %v", err)
			}
			r.writes()
			r.run("p")
			if got := r.writes(); got != again {
				t.Errorf("wrote %q, want %q", got, again)
			}
			if got := r.told(); !slices.Equal(got, []string{"Normal TaintManagerEviction Marking for deletion Pod p"}) {
				t.Errorf("events %q", got)
			}
		})
	}
}

// A8, and "never forgets": what the server refuses is done again until it is done;
// it is said once.
func TestRefusedWritesAreDoneAgain(t *testing.T) {
	t.Parallel()
	for _, verb := range []string{http.MethodPatch, http.MethodDelete} {
		for _, status := range []int{http.StatusForbidden, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusUnprocessableEntity, roletest.NoAnswer} {
			t.Run(fmt.Sprint(verb, " ", status), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				r.node("n", untimed("a"))
				r.pod("p", "n")
				r.wire.Answer(verb, status)
				for range 7 { // upstream gives up after 5
					if _, err := r.reconcile("p"); err == nil || classify(err) != controller.Retry {
						t.Fatalf("Reconcile() = %v", err)
					}
					if got := r.waiting("p").Waiting; !strings.HasPrefix(got, "retry: ") {
						t.Errorf("waits for %q", got)
					}
				}
				if verb == http.MethodPatch && contains(r.writes(), "DELETE") {
					t.Error("deleted although the status was refused")
				}
				r.wire.Answer("", 0)
				r.run("p")
				if got := r.fate("p"); got != "ending" {
					t.Errorf("the pod %s", got)
				}
				if got := r.told(); !slices.Equal(got, []string{"Normal TaintManagerEviction Marking for deletion Pod p"}) {
					t.Errorf("events %q", got)
				}
				if got := r.counted("taint_eviction_controller_pod_deletions_total"); got != 1 {
					t.Errorf("deletions %g", got)
				}
			})
		}
	}
}

// A8, cancel semantics: what has begun ends without a word.
func TestADeletionThatHasBegunIsNotCancelledAloud(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n")
	r.wire.Answer(http.MethodDelete, http.StatusForbidden)
	if _, err := r.reconcile("p"); err == nil {
		t.Fatal("Reconcile() = nil")
	}
	r.taint("n")
	r.run("p")
	if got := r.told(); !slices.Equal(got, []string{"Normal TaintManagerEviction Marking for deletion Pod p"}) {
		t.Errorf("events %q", got)
	}
	if got := r.waiting("p").Waiting; got != "" || r.fate("p") != "stays" {
		t.Errorf("waits for %q, the pod %s", got, r.fate("p"))
	}
}

// While the frame refuses, nobody is asked anything, by either rule; after that it
// goes on where it stood.
func TestWhatTheFrameRefuses(t *testing.T) {
	t.Parallel()
	for want, refuse := range map[string]func(controller.Danger) error{waitsPause: paused, waitsFreshness: stale} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			r := victims(t)
			r.p.Refuses(refuse)
			for _, pod := range []string{"evicted", "orphan"} {
				for range 3 {
					if _, err := r.reconcile(pod); !errors.Is(err, controller.ErrPaused) && !errors.Is(err, controller.ErrStale) {
						t.Errorf("Reconcile(%s) = %v", pod, err)
					}
				}
				if got := r.waiting(pod).Waiting; got != want {
					t.Errorf("%s waits for %q", pod, got)
				}
			}
			if sent := r.wire.Take(); len(sent) > 0 {
				t.Errorf("sent %v", sent)
			}
			if got := r.told(); got != nil {
				t.Errorf("events %q", got)
			}
			r.p.Refuses(nil)
			r.run("evicted")
			r.run("orphan")
			if a, b := r.fate("evicted"), r.fate("orphan"); a != "ending" || b != "gone" {
				t.Errorf("the pods: %s, %s", a, b)
			}
		})
	}
}

// The first write after a claim, and the one after a conflict, needs no second look:
// there is always one.
func TestTheLiveLookCounts(t *testing.T) {
	t.Parallel()
	r := victims(t)
	r.p.MustReadLive(r.key("evicted"))
	r.p.MustReadLive(r.key("orphan"))
	r.run("evicted")
	r.run("orphan")
	if a, b := r.fate("evicted"), r.fate("orphan"); a != "ending" || b != "gone" {
		t.Errorf("the pods: %s, %s", a, b)
	}
}

// The node is looked at again where the status took its time: the look may be 100 ms
// old as the pod is deleted.
func TestASlowStatusIsFollowedByAnotherLook(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n")
	r.wire.Take()
	r.meetsOnPatch(func() { time.Sleep(150 * time.Millisecond) })
	r.run("p")
	var sent []string
	for _, s := range r.wire.Take() {
		sent = append(sent, s.String())
	}
	if got := join(sent); got != "GET pods, GET nodes, PATCH pods/status, GET nodes, DELETE pods" {
		t.Errorf("sent %s", got)
	}
}

// A look that took too long is no look: nothing is deleted by it.
func TestALookThatTookTooLong(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n")
	slow := hostSlow + 200*time.Millisecond
	r.wire.Meets(func(q *http.Request) int {
		if (roletest.Sent{Verb: q.Method, Path: q.URL.Path}).String() == "GET nodes" {
			time.Sleep(slow)
		}
		return 0
	})
	if after := r.run("p"); after <= 0 || after > second || r.fate("p") != "stays" {
		t.Fatalf("after %s the pod %s", after, r.fate("p"))
	}
	r.wire.Meets(nil)
	r.run("p")
	if got := r.fate("p"); got != "ending" {
		t.Errorf("the pod %s", got)
	}
}

// A token that dies on the way deletes nothing; the pod stands in line again.
func TestATokenThatDiesOnTheWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(p *policy) { p.PodEvictionQPS, p.PodEvictionBurst = 100, 1 })
	r.node("n", untimed("a"))
	r.pod("p", "n")
	r.run("p")
	if got := r.waiting("p").Waiting; got != waitsRate {
		t.Fatalf("waits for %q", got)
	}
	r.awaitToken("p")
	r.meetsOnPatch(func() { time.Sleep(1100 * time.Millisecond) }) // a token lives for a second
	if after := r.run("p"); after <= 0 || r.fate("p") != "stays" {
		t.Fatalf("after %s the pod %s", after, r.fate("p"))
	}
	r.run("p") // without a token: in line
	r.awaitToken("p")
	r.run("p")
	if got := r.fate("p"); got != "ending" {
		t.Errorf("the pod %s", got)
	}
}

// awaitToken waits until a pod is woken by its token.
func (r *rig) awaitToken(pod string) {
	r.Helper()
	roletest.Eventually(r.TB, "the pod is woken by its token", func() bool { return contains(r.p.Wakes(), pod) })
}

// The Eviction API: a PodDisruptionBudget holds a pod back for as long as it likes.
func TestEvictionAPI(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(p *policy) { p.EvictionMode = modeEvict })
	r.node("n", untimed("a"))
	r.pod("p", "n", func(p *corev1.Pod) {
		p.Labels = map[string]string{"app": "x"}
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: "True"}}
	})
	none := intstr.FromInt32(0)
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec:       policyv1.PodDisruptionBudgetSpec{MaxUnavailable: &none, Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}},
	}
	budgets := r.admin.PolicyV1().PodDisruptionBudgets(r.ns)
	if _, err := budgets.Create(r.Context(), budget, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := r.reconcile("p"); classify(err) != controller.Retry || err == nil {
			t.Errorf("Reconcile() = %v", err)
		}
	}
	if got := r.writes(); got != strings.TrimSpace(strings.Repeat("POST pods/eviction ", 3)) {
		t.Errorf("wrote %q", got)
	}
	if r.fate("p") != "stays" || disrupted(r.livePod("p")) != nil {
		t.Errorf("the pod %s: %+v", r.fate("p"), disrupted(r.livePod("p")))
	}
	if err := budgets.Delete(r.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	roletest.Eventually(t, "the pod is evicted", func() bool {
		_, err := r.reconcile("p")
		return err == nil
	})
	if got := r.fate("p"); got != "ending" {
		t.Errorf("the pod %s", got)
	}
	if got := r.told(); !slices.Equal(got, []string{"Normal TaintManagerEviction Marking for deletion Pod p"}) {
		t.Errorf("events %q", got)
	}
}

// A pod that a finalizer holds is asked once.
func TestAPodThatIsHeldIsAskedOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n", finalized, phase(corev1.PodFailed))
	r.run("p")
	if got := r.writes(); got != evicted {
		t.Fatalf("wrote %q", got)
	}
	r.echo("p")
	for range 3 {
		if after := r.run("p"); after != 0 {
			t.Errorf("to be looked at after %s", after)
		}
	}
	if got := r.writes(); got != "" {
		t.Errorf("asked again: %q", got)
	}
	if got := r.told(); len(got) != 1 {
		t.Errorf("events %q", got)
	}
}

// Facts away: what is not known since when it is there waits, and is done when they
// are back.
func TestWithoutFacts(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n")
	r.facts.Down(errors.New("NATS is away"))
	if _, err := r.reconcile("p"); classify(err) != controller.Retry || err == nil {
		t.Errorf("Reconcile() = %v", err)
	}
	if got := r.writes(); got != "" {
		t.Errorf("wrote %q", got)
	}
	r.facts.Down(nil)
	r.run("p")
	if got := r.fate("p"); got != "ending" {
		t.Errorf("the pod %s", got)
	}
}

// What cannot be read is not taken for absent.
func TestWhatCannotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, quickly)
	n := r.node("n")
	r.pod("p", "n")
	r.Hide(t, n)
	for range 2 {
		if _, err := r.reconcile("p"); !errors.Is(err, controller.ErrOpaque) {
			t.Errorf("Reconcile() = %v", err)
		}
		time.Sleep(r.policy.OrphanQuarantine)
	}
	r.Put(t, n)
	r.Hide(t, r.livePod("p"))
	if _, err := r.reconcile("p"); !errors.Is(err, controller.ErrOpaque) {
		t.Errorf("Reconcile() = %v", err)
	}
	if got := r.writes(); got != "" {
		t.Errorf("wrote %q", got)
	}
}
