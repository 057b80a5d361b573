package podevictor

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/kube"
)

// quickly makes the times of garbage collection short, which go by a real clock.
func quickly(p *policy) { p.OrphanQuarantine, p.GCPeriod = 30*time.Millisecond, 200*time.Millisecond }

// quarantined looks at a pod whose node is missing for the first time, and lets its
// quarantine pass.
func (r *rig) quarantined(pod string) {
	r.Helper()
	after := r.run(pod)
	if after <= 0 || after > r.policy.OrphanQuarantine {
		r.Fatalf("%s is to be looked at after %s, want within %s", pod, after, r.policy.OrphanQuarantine)
	}
	time.Sleep(after) // what is waited for is time
}

// The table of B6, "orphaned", and B3.
func TestB6Orphans(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		known, exists bool // the node: to us, to the API server
		phase         corev1.PodPhase
		meanwhile     func(r *rig) // during the quarantine
		want          string
		writes        string
	}{
		"node in the cache -> none":              {known: true, exists: true, phase: "Running", want: "stays"},
		"node only in the live API -> none":      {exists: true, phase: "Running", want: "stays"},
		"no node, Succeeded -> deleted":          {phase: "Succeeded", want: "gone", writes: "DELETE pods"},
		"no node, Failed -> deleted":             {phase: "Failed", want: "gone", writes: "DELETE pods"},
		"no node, Running -> failed, deleted":    {phase: "Running", want: "gone", writes: evicted},
		"no node, Pending -> failed, deleted":    {phase: "Pending", want: "gone", writes: evicted},
		"no node, Unknown -> failed, deleted":    {phase: "Unknown", want: "gone", writes: evicted},
		"node appears in the API -> none":        {phase: "Running", meanwhile: func(r *rig) { r.made("n") }, want: "stays"},
		"node appears in the cache too -> none":  {phase: "Running", meanwhile: func(r *rig) { r.Put(r.TB, r.made("n")) }, want: "stays"},
		"node in the API at first, then gone":    {exists: true, phase: "Running", meanwhile: func(r *rig) { r.unmake("n") }, want: "gone", writes: evicted},
		"the pod is recreated meanwhile -> none": {phase: "Running", meanwhile: func(r *rig) { r.force("p"); r.store("p", "n") }, want: "stays"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, quickly)
			if tt.exists {
				n := r.made("n")
				if tt.known {
					r.Put(t, n)
				}
			}
			r.pod("p", "n", phase(tt.phase))
			if tt.known {
				r.run("p")
			} else {
				r.quarantined("p")
			}
			if got := r.writes(); got != "" {
				t.Fatalf("in quarantine it wrote %q", got)
			}
			if tt.meanwhile != nil {
				tt.meanwhile(r)
			}
			r.wire.Take()
			if _, err := r.reconcile("p"); err != nil && classify(err) != controller.Gone {
				t.Errorf("Reconcile() = %v", err)
			}
			if got := r.writes(); got != tt.writes {
				t.Errorf("wrote %q, want %q", got, tt.writes)
			}
			if got := r.fate("p"); got != tt.want {
				t.Errorf("the pod %s, want %s", got, tt.want)
			}
			if got := r.told(); got != nil {
				t.Errorf("events %q: this controller writes none (B4)", got)
			}
		})
	}
}

// made stores a node of which the role is not told.
func (r *rig) made(name string) *corev1.Node {
	r.Helper()
	n, err := r.admin.CoreV1().Nodes().Create(r.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.name(name)}}, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// B6, "quarantine running -> none"; "one of two nodes missing -> only its pods";
// "node in the cache at first, later gone -> nothing in that pass".
func TestQuarantine(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.node("n")
	r.pod("here", "n")
	r.pod("orphan", "other")
	r.run("here")
	if after := r.run("orphan"); after < 39*second || after > 40*second {
		t.Errorf("the quarantine lasts %s", after)
	}
	if got := r.waiting("orphan"); got.Waiting != waitsQuarantine || got.Node != r.name("other") {
		t.Errorf("%+v", got)
	}
	if got := r.waiting("here"); got.Waiting != "" {
		t.Errorf("%+v", got)
	}
	r.unmake("n")
	r.Drop(t, n)
	if after := r.run("here"); after < 39*second {
		t.Errorf("a node that has just gone is in quarantine for %s", after)
	}
	if got := r.writes(); got != "" {
		t.Errorf("wrote %q", got)
	}
}

// A node that is there again within the quarantine saves its pods, and should it go
// once more, its time begins anew.
func TestANodeRecreatedInsideTheQuarantine(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(p *policy) { p.OrphanQuarantine = time.Minute })
	n := r.node("n")
	r.pod("p", "n")
	r.unmake("n")
	r.Drop(t, n)
	first := r.run("p")
	r.Put(t, r.made("n"))
	if after := r.run("p"); after != 0 || r.waiting("p").Waiting != "" {
		t.Errorf("after %s: %+v", after, r.waiting("p"))
	}
	time.Sleep(20 * time.Millisecond) // so that two times differ
	again := r.liveNode("n")
	r.unmake("n")
	r.Drop(t, again)
	if after := r.run("p"); after < first-10*time.Millisecond {
		t.Errorf("the second quarantine lasts %s, the first %s", after, first)
	}
}

// B4: what is written of an orphan, and B6's inspection: the patch sets phase and
// condition before a deletion of grace 0. Here both also name the pod that was seen.
func TestWhatIsWrittenOfAnOrphan(t *testing.T) {
	t.Parallel()
	r := newRig(t, quickly)
	pod := r.pod("p", "never-was", finalized)
	r.quarantined("p")
	r.wire.Take()
	r.run("p")
	writes, _ := r.wire.Writes()
	if len(writes) != 2 || writes[0].String() != "PATCH pods/status" || writes[1].String() != "DELETE pods" {
		t.Fatalf("wrote %v", writes)
	}
	options, _ := writes[1].Object().(*metav1.DeleteOptions)
	if options.GracePeriodSeconds == nil || *options.GracePeriodSeconds != 0 || *options.Preconditions.UID != pod.UID || options.Preconditions.ResourceVersion == nil {
		t.Errorf("deleted with %+v", options)
	}
	live := r.livePod("p")
	c := disrupted(live)
	if live.Status.Phase != corev1.PodFailed || c == nil || c.Status != "True" || c.Reason != "DeletionByPodGC" || c.ObservedGeneration != pod.Generation {
		t.Errorf("phase %s, condition %+v", live.Status.Phase, c)
	}
	if live.Status.ObservedGeneration != pod.Generation {
		t.Errorf("observedGeneration %d of %d", live.Status.ObservedGeneration, pod.Generation)
	}
	if live.DeletionTimestamp == nil || *live.DeletionGracePeriodSeconds != 0 {
		t.Error("it is not deleted")
	}
	if total, failed := r.counted("pod_gc_collector_force_delete_pods_total"), r.counted("pod_gc_collector_force_delete_pod_errors_total"); total != 1 || failed != 0 {
		t.Errorf("counted %g, failed %g", total, failed)
	}
	r.echo("p") // it stays for its finalizer, and is asked once
	for range 3 {
		if after := r.run("p"); after != 0 {
			t.Errorf("to be looked at after %s", after)
		}
	}
	if got := r.writes(); got != "" {
		t.Errorf("asked again: %q", got)
	}
	if got := r.waiting("p"); got.Waiting != "" {
		t.Errorf("%+v", got)
	}
}

// B6, integration: "Succeeded/Failed -> phase and conditions unchanged".
func TestAPodThatHasEndedKeepsItsConditions(t *testing.T) {
	t.Parallel()
	for _, is := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		t.Run(string(is), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, quickly)
			before := r.pod("p", "never-was", phase(is), finalized)
			r.quarantined("p")
			r.run("p")
			if got := r.writes(); got != "DELETE pods" {
				t.Errorf("wrote %q", got)
			}
			if live := r.livePod("p"); live.Status.Phase != is || len(live.Status.Conditions) != len(before.Status.Conditions) || live.DeletionTimestamp == nil {
				t.Errorf("status %+v", live.Status)
			}
		})
	}
}

// B6, integration: out-of-service -> phase Failed, no DisruptionTarget; all phases.
// A Ready node, or a pod that nobody has deleted, is left alone.
func TestB6OutOfService(t *testing.T) {
	t.Parallel()
	off := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: "NoSchedule"}
	for _, is := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown} {
		t.Run(string(is), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n")
			r.pod("p", "n", finalized, phase(is))
			r.pod("other", "n", phase(is))
			r.deleted("p")
			r.run("p")
			n := r.edit("n", func(n *corev1.Node) {
				n.Spec.Taints = []corev1.Taint{off}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "True"}}
			})
			r.Put(t, n)
			r.run("p")
			if got := r.writes(); got != "" {
				t.Fatalf("on a ready node it wrote %q", got)
			}
			n = r.edit("n", func(n *corev1.Node) { n.Status.Conditions[0].Status = "Unknown" })
			r.Put(t, n)
			r.run("p")
			r.run("other")
			live := r.livePod("p")
			ended := is == corev1.PodSucceeded || is == corev1.PodFailed
			want := corev1.PodFailed
			if ended {
				want = is
			}
			if *live.DeletionGracePeriodSeconds != 0 || live.Status.Phase != want || disrupted(live) != nil {
				t.Errorf("grace %d, phase %s, condition %+v", *live.DeletionGracePeriodSeconds, live.Status.Phase, disrupted(live))
			}
			if got := r.fate("other"); got != "stays" {
				t.Errorf("the other pod %s", got)
			}
			r.echo("p")
			r.writes()
			if r.run("p"); r.writes() != "" {
				t.Error("asked again")
			}
		})
	}
}

// B6, "unscheduled": any phase with deletionTimestamp and no node -> deleted.
func TestB6Unscheduled(t *testing.T) {
	t.Parallel()
	for _, is := range []corev1.PodPhase{corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed} {
		t.Run(string(is), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.pod("kept", "", phase(is))
			r.run("kept")
			if got := r.writes(); got != "" {
				t.Fatalf("wrote %q", got)
			}
			// The server deletes such a pod at once unless something holds it: it is told
			// here as it is while that is so.
			p := r.pod("p", "", phase(is), finalized)
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metaTime(r.at(0))), new(int64(30))
			r.Put(t, p)
			if _, err := r.reconcile("p"); err != nil {
				t.Fatal(err)
			}
			if got := r.writes(); got != "" {
				t.Errorf("what is not deleted by a live look was written to: %q", got)
			}
			live := r.deleted("p")
			r.run("p")
			if asked(live) && ended(live) {
				return
			}
			live = r.livePod("p")
			if !asked(live) || !ended(live) || disrupted(live) != nil {
				t.Errorf("status %+v", live.Status)
			}
		})
	}
}

// Pods whose container ports are there twice are valid to have, though not to apply
// whole: B6, integration.
func TestDuplicatePortsDoNotMatter(t *testing.T) {
	t.Parallel()
	twice := func(p *corev1.Pod) {
		port := corev1.ContainerPort{ContainerPort: 80, Protocol: "TCP"}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{port, port}
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "X", Value: "1"}, {Name: "X", Value: "2"}}
	}
	r := newRig(t, quickly)
	r.node("n", untimed("a"))
	r.pod("orphan", "never-was", twice, finalized)
	r.pod("evicted", "n", twice)
	r.quarantined("orphan")
	r.run("orphan")
	r.run("evicted")
	if got := r.writes(); got != evicted+" "+evicted {
		t.Errorf("wrote %q", got)
	}
	if p := r.livePod("orphan"); p.Status.Phase != corev1.PodFailed || p.DeletionTimestamp == nil {
		t.Errorf("status %+v", p.Status)
	}
}

// B4.1 and B4.2: a failure is counted, and it is done again; here without the 40 s
// that upstream lets pass.
func TestAFailedCollectionIsDoneAgain(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		verb                      string
		total, failed, totalAfter float64
	}{{http.MethodPatch, 0, 0, 1}, {http.MethodDelete, 1, 1, 2}} {
		t.Run(tt.verb, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, quickly)
			r.pod("p", "never-was")
			r.quarantined("p")
			r.wire.Answer(tt.verb, http.StatusForbidden)
			if _, err := r.reconcile("p"); !errors.Is(err, kube.ErrForbidden) || classify(err) != controller.Retry {
				t.Errorf("Reconcile() = %v", err)
			}
			if r.counted("pod_gc_collector_force_delete_pods_total") != tt.total || r.counted("pod_gc_collector_force_delete_pod_errors_total") != tt.failed {
				t.Errorf("counted %g, failed %g", r.counted("pod_gc_collector_force_delete_pods_total"), r.counted("pod_gc_collector_force_delete_pod_errors_total"))
			}
			if got := r.waiting("p").Waiting; !strings.HasPrefix(got, "retry: ") {
				t.Errorf("waits for %q", got)
			}
			if tt.verb == http.MethodPatch && contains(r.writes(), "DELETE") {
				t.Error("deleted although the status was refused")
			}
			r.wire.Answer("", 0)
			r.echo("p")
			r.run("p")
			if got := r.fate("p"); got != "gone" {
				t.Errorf("the pod %s", got)
			}
			if got := r.counted("pod_gc_collector_force_delete_pods_total"); got != tt.totalAfter {
				t.Errorf("counted %g", got)
			}
		})
	}
}

// A node that makes its pod anew at once would have it deleted as fast: a name is
// left alone for one period.
func TestAPodMadeAnewAtOnceIsDeletedOncePerPeriod(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(p *policy) { p.OrphanQuarantine, p.GCPeriod = 30*time.Millisecond, time.Minute })
	r.pod("p", "never-was")
	r.quarantined("p")
	r.run("p")
	if got := r.fate("p"); got != "gone" {
		t.Fatalf("the pod %s", got)
	}
	r.echo("p")
	r.run("p")
	r.pod("p", "never-was")
	if after := r.run("p"); after < 50*second || r.waiting("p").Waiting != waitsTime {
		t.Errorf("after %s: %+v", after, r.waiting("p"))
	}
	if got := r.fate("p"); got != "stays" {
		t.Errorf("the pod made anew %s", got)
	}
}

// Right before the deletion its node is looked at once more: it has come back while
// the status was written.
func TestANodeThatComesBackAtTheLastMoment(t *testing.T) {
	t.Parallel()
	r := newRig(t, quickly)
	r.pod("p", "never-was")
	r.quarantined("p")
	r.wire.Meets(func(q *http.Request) int {
		if q.Method == http.MethodPatch {
			r.wire.Meets(nil)
			r.made("never-was")
			time.Sleep(hostAge) // so that the look before does not count any more
		}
		return 0
	})
	if after := r.run("p"); after <= 0 {
		t.Error("it is not looked at again")
	}
	if got := r.fate("p"); got != "stays" {
		t.Errorf("the pod %s", got)
	}
	if got := strings.Split(r.writes(), " "); slices.Contains(got, "DELETE") {
		t.Errorf("wrote %q", got)
	}
	if got := r.counted("pod_gc_collector_force_delete_pods_total"); got != 0 {
		t.Errorf("counted %g", got)
	}
}
