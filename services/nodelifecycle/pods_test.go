package nodelifecycle

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// gone is a node that has been written Unknown and bears what follows from it.
func gone(n *corev1.Node) {
	unheard(n)
	bears(unreachable, noSched)(n)
}

// Section 4.6 on the server: Ready False, reason and message kept, transition now;
// ContainersReady and phase untouched; one write, one event.
func TestAPodOfASilentNodeIsMarked(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		conditions []string
		phase      corev1.PodPhase
		want       string // what is written
	}{
		"Ready: marked":                          {[]string{"Ready", "True", "ContainersReady", "True"}, corev1.PodRunning, "PATCH pods/status"},
		"Ready = Unknown exists and is no False": {[]string{"Ready", "Unknown", "ContainersReady", "True"}, corev1.PodRunning, "PATCH pods/status"},
		"a terminal pod too: Failed":             {[]string{"Ready", "True", "ContainersReady", "True"}, corev1.PodFailed, "PATCH pods/status"},
		"a terminal pod too: Succeeded":          {[]string{"Ready", "True", "ContainersReady", "True"}, corev1.PodSucceeded, "PATCH pods/status"},
		"a pending one too":                      {[]string{"Ready", "True"}, corev1.PodPending, "PATCH pods/status"},
		"already False: no update":               {[]string{"Ready", "False", "ContainersReady", "True"}, corev1.PodRunning, ""},
		"without a Ready condition: skipped":     {[]string{"ContainersReady", "True", "PodScheduled", "True"}, corev1.PodRunning, ""},
		"without any condition: skipped":         {nil, corev1.PodPending, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.make("n", gone)
			p := r.pod("p", "n", tt.conditions...)
			p.Status.Phase = tt.phase
			p, err := r.admin.CoreV1().Pods(r.ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			r.Put(t, p)
			r.writes()
			r.run(r.podKey("p"))
			if got := r.writes(); got != tt.want {
				t.Fatalf("wrote %q, want %q", got, tt.want)
			}
			want := byType(p)
			if c, has := want["Ready"]; has && tt.want != "" {
				c.Status, c.LastTransitionTime = "False", metav1.NewTime(later)
				want["Ready"] = c
			}
			after := r.livePod("p")
			if diff := cmp.Diff(want, byType(after), ignoreGenerations); diff != "" || after.Status.Phase != tt.phase {
				t.Errorf("phase %s, conditions -want +got:\n%s", after.Status.Phase, diff)
			}
			events := strings.Join(r.told(), "\n")
			if has := strings.Contains(events, "Warning NodeNotReady"); has != (tt.want != "") || strings.Count(events, "\n") > 0 {
				t.Errorf("events %q", events)
			}
			r.run(r.podKey("p"))
			if got := r.writes(); got != "" {
				t.Errorf("again it wrote %q", got)
			}
		})
	}
}

var ignoreGenerations = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".ObservedGeneration" }, cmp.Ignore())

// Section 10, MarkPodsNotReady and processPod, and section 4.5: on which nodes.
func TestOnWhichNodesPodsAreMarked(t *testing.T) {
	t.Parallel()
	also := func(p *policy) { p.MarkPodsOfNotReadyNodes = true }
	tests := map[string]struct {
		node []nodeOption
		set  []func(p *policy)
		want string
	}{
		"node ready: none":                                             {node: []nodeOption{ready}},
		"node not ready by its own word: none (4.5)":                   {node: []nodeOption{sick}},
		"node not ready by its own word, and an operator wants it":     {node: []nodeOption{sick}, set: []func(*policy){also}, want: "PATCH pods/status"},
		"node silent: marked":                                          {node: []nodeOption{gone}, want: "PATCH pods/status"},
		"node ready, and an operator wants pods of others: none":       {node: []nodeOption{ready}, set: []func(*policy){also}},
		"node without a Ready condition: none":                         {},
		"node without a Ready condition, and an operator wants others": {set: []func(*policy){also}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, tt.set...)
			r.make("n", tt.node...)
			r.pod("p", "n", "Ready", "True")
			r.writes()
			r.run(r.podKey("p"))
			if got := r.writes(); got != tt.want {
				t.Errorf("wrote %q, want %q", got, tt.want)
			}
		})
	}
}

// Section 10, processPod: "health not gathered -> nothing".
func TestAPodOfANodeThatIsNotKnownIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", gone)
	r.pod("p", "n", "Ready", "True")
	r.Drop(r.TB, n)
	r.writes()
	r.run(r.podKey("p"))
	if got := r.writes(); got != "" {
		t.Errorf("wrote %q", got)
	}
}

// The cache may lag behind: a node that has come back in the API keeps its pods,
// and so does another one of its name (the node is read again before pods are
// written).
func TestPodsAreMarkedOnALiveLookAtTheNode(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *rig){
		"it has come back":      func(r *rig) { r.kubelet("n", "True", later) },
		"it is another one now": func(r *rig) { r.recreate("n", gone) },
	}
	for name, meanwhile := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.make("n", gone)
			p := r.pod("p", "n", "Ready", "True")
			meanwhile(r)
			result, err := r.reconcile(r.podKey("p"))
			if err != nil || result.After <= 0 {
				t.Errorf("Reconcile() = %v, %v; want another look", result, err)
			}
			if r.livePod("p").ResourceVersion != p.ResourceVersion {
				t.Error("the pod was written to")
			}
		})
	}
}

// Section 10, "Retry": first update fails -> tried again (2); and a conflict is
// decided on a live read.
func TestAFailedPodWriteIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.make("n", gone)
	r.pod("p", "n", "Ready", "True")
	failed := false
	r.wire.Meets(func(q *http.Request) int {
		if q.Method == http.MethodPatch && !failed {
			failed = true
			return http.StatusInternalServerError
		}
		return 0
	})
	if _, err := r.reconcile(r.podKey("p")); classify(err) != controller.Retry {
		t.Errorf("Reconcile() = %v, want a failure that is retried", err)
	}
	if got := r.told(); got != nil {
		t.Errorf("events %q of a write that failed", got)
	}
	r.run(r.podKey("p"))
	if got := r.writes(); got != "PATCH pods/status PATCH pods/status" {
		t.Errorf("wrote %q, want two tries", got)
	}
	if c := byType(r.livePod("p"))["Ready"]; c.Status != "False" {
		t.Errorf("the pod's Ready is %s", c.Status)
	}
}

func TestAPodThatIsWrittenToMeanwhile(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		meanwhile func(p *corev1.Pod)
		want      string // of the second try
	}{
		"by somebody else: marked all the same":     {func(p *corev1.Pod) { p.Status.Message = "hello" }, "PATCH pods/status"},
		"made not Ready by somebody else: no write": {func(p *corev1.Pod) { p.Status.Conditions[0].Status = "False" }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.make("n", gone)
			r.pod("p", "n", "Ready", "True")
			p := r.livePod("p")
			tt.meanwhile(p)
			if _, err := r.admin.CoreV1().Pods(r.ns).UpdateStatus(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
			if _, err := r.reconcile(r.podKey("p")); classify(err) != controller.Conflict {
				t.Errorf("Reconcile() = %v, want a conflict", err)
			}
			r.writes()
			if _, err := r.reconcile(r.podKey("p")); err != nil {
				t.Error(err)
			}
			if got := r.writes(); got != tt.want {
				t.Errorf("wrote %q, want %q", got, tt.want)
			}
		})
	}
}

// Section 4.6: NotFound is ignored, by the frame: what was to be written is gone.
func TestAPodThatIsGoneOrAnotherOne(t *testing.T) {
	t.Parallel()
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprint("made anew: ", again), func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.make("n", gone)
			r.pod("p", "n", "Ready", "True")
			none := int64(0)
			if err := r.admin.CoreV1().Pods(r.ns).Delete(t.Context(), "p", metav1.DeleteOptions{GracePeriodSeconds: &none}); err != nil {
				t.Fatal(err)
			}
			if again {
				other := newWorld(1)
				told := r.World
				r.World = other // the role is told nothing of it
				r.pod("p", "n", "Ready", "True")
				r.World = told
			}
			for range 2 {
				if _, err := r.reconcile(r.podKey("p")); classify(err) != controller.Gone && classify(err) != controller.Conflict {
					t.Errorf("Reconcile() = %v, want gone", err)
				}
			}
			if again {
				if c := byType(r.livePod("p"))["Ready"]; c.Status != "True" {
					t.Error("a pod was marked that nobody has judged")
				}
			}
		})
	}
}

// Issue: False -> Unknown: pods that were set Ready in between become not Ready,
// once. Upstream marks none then: docs/parity.md.
func TestPodsThatAreSetReadyOnASilentNodeAreMarkedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", sick, bears(notReady, noSched))
	r.pod("p", "n", "Ready", "True")
	r.run(r.podKey("p"))
	if got := r.writes(); got != "" {
		t.Fatalf("while its kubelet says not ready it wrote %q", got)
	}
	r.silent(time.Minute, n.Name)
	r.settle(r.key("n"))
	r.settle(r.podKey("p"))
	if c := byType(r.livePod("p"))["Ready"]; c.Status != "False" {
		t.Errorf("the pod's Ready is %s", c.Status)
	}
}

// What stops pods from being marked, and that a pause of evictions does not.
func TestWhatStopsPods(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		frame func(p *roletest.Partition)
		want  corev1.ConditionStatus
	}{
		"evictions are paused: it is written": {func(p *roletest.Partition) { p.Refuses(evicting) }, "False"},
		"inputs are too old": {func(p *roletest.Partition) {
			p.Refuses(func(d controller.Danger) error {
				if d >= controller.Destructive {
					return controller.ErrStale
				}
				return nil
			})
		}, "True"},
		"shadow mode": {func(p *roletest.Partition) { p.Switch("", controller.ModeShadow) }, "True"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.make("n", gone)
			r.pod("p", "n", "Ready", "True")
			tt.frame(r.p)
			if _, err := r.reconcile(r.podKey("p")); (err == nil) != (tt.want == "False") {
				t.Errorf("Reconcile() = %v", err)
			}
			if c := byType(r.livePod("p"))["Ready"]; c.Status != tt.want {
				t.Errorf("the pod's Ready is %s, want %s", c.Status, tt.want)
			}
			if tt.want == "True" && len(r.told()) > 0 {
				t.Error("an event of a write that was not made")
			}
		})
	}
}

// Section 10, "50 nodes x 100 pods with several workers -> 5000 pod updates, no
// race": every pod exactly one, on a real server. Long form: make loads; the short one
// has 20 pods on each node.
func TestFiftyNodesOfAHundredPods(t *testing.T) {
	t.Parallel()
	nodesOf, podsOf := 50, 20
	if os.Getenv("LONG") == "1" {
		podsOf = 100
	}
	r := newRig(t)
	var keys []event.Key
	var all sync.WaitGroup
	work := make(chan func(), nodesOf*podsOf)
	for range 8 {
		all.Go(func() {
			for f := range work {
				f()
			}
		})
	}
	for i := range nodesOf {
		on := fmt.Sprint("n", i)
		r.make(on, gone)
		for j := range podsOf {
			name := fmt.Sprint("p", i, "-", j)
			keys = append(keys, r.podKey(name))
			work <- func() { r.store(name, on) }
		}
	}
	close(work)
	all.Wait()
	list, err := r.admin.CoreV1().Pods(r.ns).List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		r.Put(t, &list.Items[i])
	}
	r.wire.Writes()

	queue := make(chan event.Key, len(keys))
	for _, key := range keys {
		queue <- key
	}
	close(queue)
	var workers sync.WaitGroup
	for range 8 {
		workers.Go(func() {
			for key := range queue {
				if _, err := r.rec.Reconcile(t.Context(), key); err != nil {
					t.Error(err)
				}
			}
		})
	}
	workers.Wait()
	writes, reads := r.wire.Writes()
	if len(writes) != nodesOf*podsOf {
		t.Errorf("%d updates, want %d", len(writes), nodesOf*podsOf)
	}
	if reads > nodesOf*podsOf/4 {
		t.Errorf("%d reads of %d nodes: a read is to be shared among the pods of a node", reads, nodesOf)
	}
	if list, err = r.admin.CoreV1().Pods(r.ns).List(t.Context(), metav1.ListOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if c := byType(&list.Items[i])["Ready"]; c.Status != "False" {
			t.Errorf("pod %s is Ready: %s", list.Items[i].Name, c.Status)
		}
	}
}

// store makes a ready pod and tells nobody.
func (r *rig) store(name, on string) {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: r.name(on), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	made, err := r.admin.CoreV1().Pods(r.ns).Create(r.Context(), p, metav1.CreateOptions{})
	if err == nil {
		made.Status = podSays("Ready", "True", "ContainersReady", "True").Status
		_, err = r.admin.CoreV1().Pods(r.ns).UpdateStatus(r.Context(), made, metav1.UpdateOptions{})
	}
	if err != nil {
		r.Error(err)
	}
}
