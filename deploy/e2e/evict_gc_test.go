package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
)

// Contract: part B, "GC" of issue 5. Long form: LONG=1, with 5 000 orphans.
func TestEvictGC(t *testing.T) {
	orphans := 200
	if long("LONG") {
		orphans = 5000
	}
	ctx, w := evictIn(t, 10*time.Minute, evictSetup{replicas: 2, env: []string{"MILLRACE_PODEVICTOR_TERMINATED_POD_GC_THRESHOLD=0"}})
	together(t, map[string]func(*testing.T){
		"orphans":                 func(t *testing.T) { w.orphans(ctx, t, orphans) },
		"node never existed":      func(t *testing.T) { w.neverExisted(ctx, t) },
		"node made again in time": func(t *testing.T) { w.madeInTime(ctx, t) },
		"duplicate ports":         func(t *testing.T) { w.duplicatePorts(ctx, t) },
		"finalizer":               func(t *testing.T) { w.askedOnce(ctx, t) },
		"pods made anew at once":  func(t *testing.T) { w.oncePerPeriod(ctx, t) },
		"out of service":          func(t *testing.T) { w.outOfService(ctx, t) },
		"threshold 0":             func(t *testing.T) { w.noThreshold(ctx, t) },
	})
	w.log.judge(t)
	if os.Getenv("UPSTREAM") != "" {
		return
	}
	t.Run("node goes while nobody is there", func(t *testing.T) { w.goesUnseen(ctx, t) })
	t.Run("terminated", func(t *testing.T) { w.terminated(ctx, t) })
	w.log.judge(t)
}

// collectedWithin is how long after its node went an orphan is collected at most.
func (w *evictWorld) collectedWithin() time.Duration { return w.quarantine + 3*w.period + inTime }

// running, succeeded, failed, evicted are statuses that a kubelet has written.
var (
	running   = corev1.PodStatus{Phase: corev1.PodRunning}
	succeeded = corev1.PodStatus{Phase: corev1.PodSucceeded, Conditions: []corev1.PodCondition{
		{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "PodCompleted", LastTransitionTime: metav1.Now()},
	}}
	failed  = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Error", Message: "it broke"}
	evicted = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "Evicted"}
)

// orphans of every phase, whose nodes go at once.
func (w *evictWorld) orphans(ctx context.Context, t *testing.T, n int) {
	s := w.on(ctx, t)
	nodes := s.nodes(ctx, 10)
	phases := []corev1.PodStatus{{}, running, succeeded, failed}
	left := make([]*corev1.Pod, n) // as their kubelet left them
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = i
	}
	each(32, numbers, func(i int) {
		left[i] = s.pod(ctx, fmt.Sprintf("p-%04d", i), nodes[i%len(nodes)])
		if st := phases[i/len(nodes)%len(phases)]; st.Phase != "" {
			left[i] = s.status(ctx, left[i].Name, st)
		}
	})
	went := time.Now()
	for _, n := range nodes {
		s.deleteNode(ctx, n)
	}
	s.awaitDeleted(ctx, w.collectedWithin()+time.Duration(n)*20*time.Millisecond, n)
	t.Logf("%d orphans collected %s after their nodes went; quarantine %s, period %s", n, time.Since(went).Round(10*time.Millisecond), w.quarantine, w.period)
	for _, was := range left {
		l, _ := s.log.life(was.UID)
		if last := l.last().pod; terminal(was) != (disruption(last) == "") || terminal(was) && last.Status.Phase != was.Status.Phase {
			t.Fatalf("pod %s was deleted as %s; its kubelet had left it as %s", l.name, describePod(last), describePod(was))
		}
	}
}

func (w *evictWorld) neverExisted(ctx context.Context, t *testing.T) {
	s := w.on(ctx, t)
	for i := range 5 {
		s.pod(ctx, fmt.Sprintf("p-%d", i), s.ns+"-nowhere")
	}
	s.awaitDeleted(ctx, w.collectedWithin(), 5)
}

// madeInTime: a node that is back within the quarantine saves its pods, those
// that were made while it was away as well.
func (w *evictWorld) madeInTime(ctx context.Context, t *testing.T) {
	s := w.on(ctx, t)
	node := s.node(ctx, "n")
	for i := range 5 {
		s.pod(ctx, fmt.Sprintf("p-%d", i), node)
	}
	for round := range 2 { // the second quarantine is a new one
		s.deleteNode(ctx, node)
		s.pod(ctx, fmt.Sprintf("late-%d", round), node)
		pause(ctx, w.quarantine*3/4)
		s.node(ctx, "n")
		pause(ctx, w.quarantine/2)
	}
	pause(ctx, 2*w.period)
	if n := s.log.deletions(s.ns); n > 0 {
		t.Errorf("%d pods were deleted of a node that had been away for %s", n, w.quarantine*3/4)
	}
}

// duplicatePorts: what only a patch can change, because a whole update would be
// refused.
func (w *evictWorld) duplicatePorts(ctx context.Context, t *testing.T) {
	s := w.on(ctx, t)
	node := s.node(ctx, "n")
	s.pod(ctx, "p", node, func(p *corev1.Pod) {
		port := corev1.ContainerPort{Name: "", ContainerPort: 80, Protocol: corev1.ProtocolTCP}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{port, port}
		p.Spec.Containers[0].Env = []corev1.EnvVar{{Name: "A", Value: "1"}, {Name: "A", Value: "2"}}
	})
	s.deleteNode(ctx, node)
	s.awaitDeleted(ctx, w.collectedWithin(), 1)
}

// askedOnce: a pod that somebody else keeps from going is asked to go once.
func (w *evictWorld) askedOnce(ctx context.Context, t *testing.T) {
	s := w.on(ctx, t)
	node := s.node(ctx, "n")
	s.pod(ctx, "p", node, finalized, lingering)
	s.deleteNode(ctx, node)
	s.awaitDeleted(ctx, w.collectedWithin(), 1)
	revision := s.log.of(s.ns)[0].last().revision
	pause(ctx, w.quarantine+3*w.period)
	l := s.log.of(s.ns)[0]
	if last := l.last(); last.revision != revision || last.deleted || last.pod.Status.Phase != corev1.PodFailed || *last.pod.DeletionGracePeriodSeconds != 0 {
		t.Errorf("the pod: revision %d, then %d: %s, grace %d", revision, last.revision, describePod(last.pod), *last.pod.DeletionGracePeriodSeconds)
	}
	if n := w.sum(ctx, "pod_gc_collector_force_delete_pods_total", "namespace", s.ns); n != 1 && len(w.members) > 0 {
		t.Errorf("it was asked %g times", n)
	}
	w.unfinalize(ctx, s.ns, "p")
}

// oncePerPeriod: whoever makes a pod of a node that is gone again and again, as a
// kubelet does with those that it is told of on the spot, is fought once a period.
func (w *evictWorld) oncePerPeriod(ctx context.Context, t *testing.T) {
	const periods = 4
	s := w.on(ctx, t)
	node := s.ns + "-nowhere"
	s.pod(ctx, "p", node)
	ends := time.Now().Add(w.quarantine + periods*w.period)
	for time.Now().Before(ends) {
		lives := s.log.of(s.ns)
		over := false
		if n := len(lives); n > 0 { // being deleted comes a moment before gone
			_, over = lives[n-1].end()
		}
		if over {
			s.pod(ctx, "p", node)
			eventually(ctx, t, 10*time.Second, "the new pod is seen", func() (bool, string) { return len(s.log.of(s.ns)) > len(lives), "" })
		}
		pause(ctx, 10*time.Millisecond)
	}
	var times []time.Time
	for _, l := range s.log.of(s.ns) {
		if _, at := l.deletion(); at != nil {
			times = append(times, at.at)
		}
	}
	t.Logf("collected %d times in %s; period %s", len(times), w.quarantine+periods*w.period, w.period)
	for i := 1; i < len(times); i++ {
		if between := times[i].Sub(times[i-1]); between < w.period-lateBy {
			t.Errorf("collected again after %s, want at least %s", between, w.period)
		}
	}
	if len(times) == 0 {
		t.Error("it was never collected")
	}
}

// outOfService: terminating pods of a node that is not ready and so tainted are
// ended; others are not.
func (w *evictWorld) outOfService(ctx context.Context, t *testing.T) {
	s := w.on(ctx, t)
	taint := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: corev1.TaintEffectNoSchedule}
	dead, alive := s.node(ctx, "dead", taint), s.node(ctx, "alive", taint)
	plain, executed := s.node(ctx, "plain"), s.node(ctx, "executed", noExecute(corev1.TaintNodeOutOfService, time.Now()))
	s.ready(ctx, alive)
	ended, kept := s.pod(ctx, "ended", dead, lingering), s.pod(ctx, "kept", alive, lingering)
	other, calm := s.pod(ctx, "other", plain, lingering), s.pod(ctx, "calm", dead, lingering)
	both := s.pod(ctx, "both", executed, lingering) // evicted for the taint, then ended
	for _, p := range []*corev1.Pod{ended, kept, other} {
		s.delete(ctx, p, metav1.DeleteOptions{})
	}
	for _, p := range []*corev1.Pod{ended, both} {
		within := 2*w.period + inTime
		eventually(ctx, t, within, p.Name+" is ended", func() (bool, string) {
			l, ok := s.log.life(p.UID)
			if !ok {
				return false, "not seen"
			}
			_, over := l.end()
			return over, describePod(l.last().pod)
		})
		l, _ := s.log.life(p.UID)
		reason := map[*corev1.Pod]string{ended: "", both: deletionByTaint}[p]
		if last := l.last().pod; last.Status.Phase != corev1.PodFailed || disruption(last) != reason {
			t.Errorf("%s was ended as %s, want Failed and reason %q", p.Name, describePod(last), reason)
		}
	}
	pause(ctx, 2*w.period)
	for _, p := range []*corev1.Pod{kept, other, calm} {
		l, _ := s.log.life(p.UID)
		_, at := l.deletion()
		if _, over := l.end(); over || (p == calm) != (at == nil) {
			t.Errorf("%s was touched: gone %t, deleted %t", p.Name, over, at != nil)
		}
	}
}

// ready makes a node say that it is.
func (s *stage) ready(ctx context.Context, node string) {
	s.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()},
	}}})
	s.must(err)
	_, err = s.api.CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	s.must(err)
}

// noThreshold: turned off, the rule of terminated pods deletes none of them,
// while all others are at work in this world.
func (w *evictWorld) noThreshold(ctx context.Context, t *testing.T) {
	s := w.on(ctx, t)
	node := s.node(ctx, "n")
	for i := range 20 {
		p := s.pod(ctx, fmt.Sprintf("p-%02d", i), node)
		s.status(ctx, p.Name, []corev1.PodStatus{succeeded, failed, evicted}[i%3])
	}
	pause(ctx, 3*w.period)
	if n := s.log.deletions(s.ns); n > 0 {
		t.Errorf("%d terminated pods were deleted", n)
	}
	for _, l := range s.log.of(s.ns) {
		s.delete(ctx, l.revisions[0].pod, *metav1.NewDeleteOptions(0))
	}
}

// goesUnseen: one node goes while nothing of ours runs, another is made anew.
func (w *evictWorld) goesUnseen(ctx context.Context, t *testing.T) {
	s := w.on(ctx, t)
	away, back := s.node(ctx, "away"), s.node(ctx, "back")
	for i := range 5 {
		s.pod(ctx, fmt.Sprintf("away-%d", i), away)
		s.pod(ctx, fmt.Sprintf("back-%d", i), back)
	}
	w.restart(ctx, func() {
		s.deleteNode(ctx, away)
		s.deleteNode(ctx, back)
		s.node(ctx, "back")
	})
	eventually(ctx, t, w.collectedWithin(), "pods of the node that went are collected", func() (bool, string) {
		living := s.log.living(s.ns)
		return len(living) == 5, fmt.Sprint(living)
	})
	pause(ctx, w.period)
	if living := s.log.living(s.ns); len(living) != 5 || slices.ContainsFunc(living, func(n string) bool { return n[0] == 'a' }) {
		t.Errorf("living: %v", living)
	}
}

// terminated: above the threshold exactly the excess goes, over the whole
// cluster: evicted ones first, then the oldest.
func (w *evictWorld) terminated(ctx context.Context, t *testing.T) {
	const threshold = 7
	s := w.on(ctx, t)
	node := s.node(ctx, "n")
	names := [][]string{{"z-oldest", "y-oldest"}, {"m-0", "m-1", "m-2"}, {"l-0", "l-1", "l-2", "l-3"}, {"a-evicted", "b-evicted", "c-evicted"}}
	for i, group := range names {
		nextSecond(ctx) // what creation times can tell apart
		for j, name := range group {
			s.pod(ctx, name, node)
			st := []corev1.PodStatus{succeeded, failed}[(i+j)%2]
			if i == 3 {
				st = evicted
			}
			s.status(ctx, name, st)
		}
	}
	for i := range 3 {
		s.status(ctx, s.pod(ctx, fmt.Sprintf("running-%d", i), node).Name, running)
	}
	w.replace(ctx, fmt.Sprintf("MILLRACE_PODEVICTOR_TERMINATED_POD_GC_THRESHOLD=%d", threshold))
	gone := sets.New("a-evicted", "b-evicted", "c-evicted", "z-oldest", "y-oldest")
	left := func(what string) {
		t.Helper()
		eventually(ctx, t, 3*w.period+inTime, what, func() (bool, string) {
			return s.log.deletions(s.ns) >= len(gone), fmt.Sprint(s.log.living(s.ns))
		})
		pause(ctx, 2*w.period) // in which no more may go
		for _, l := range s.log.of(s.ns) {
			if _, at := l.deletion(); (at != nil) != gone.Has(l.name) {
				t.Errorf("%s: %s: deleted %t, want %t", what, l.name, at != nil, gone.Has(l.name))
			}
		}
	}
	left("the excess is collected")
	for _, name := range []string{"running-0", "running-1"} {
		s.status(ctx, name, succeeded)
	}
	gone.Insert("m-0", "m-1")
	left("two more have ended")
}
