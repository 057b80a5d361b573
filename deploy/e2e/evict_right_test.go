package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// inTime is by how much a pod may be deleted late where that is not what a test
// is about, on a machine that does much else.
const inTime = 3 * time.Second

// Contract: "right pod", "never wrongly" and "in one burst" of issue 5, and A15
// with our answers. Long form: ROUNDS=200.
func TestEvictRight(t *testing.T) {
	rounds := number(t, "ROUNDS", 40)
	ctx, w := evictIn(t, 10*time.Minute, evictSetup{replicas: 2})
	cases := map[string]func(*testing.T){
		"made anew under its name": func(t *testing.T) { w.madeAnew(ctx, t, rounds) },
		"bound late":               func(t *testing.T) { w.boundLate(ctx, t) },
		"flapping":                 func(t *testing.T) { w.flapping(ctx, t) },
		"taint removed":            func(t *testing.T) { w.taintRemoved(ctx, t, rounds/2) },
		"changes":                  func(t *testing.T) { w.changes(ctx, t) },
		"in one burst":             func(t *testing.T) { w.burst(ctx, t, 1, 100) },
		"at random":                func(t *testing.T) { w.atRandom(ctx, t, time.Duration(rounds)*200*time.Millisecond) },
	}
	if long("ROUNDS") { // one after the other, so that each has the machine
		cases["in one burst"] = func(t *testing.T) { w.burst(ctx, t, rounds/10, 500) }
		for name, run := range cases {
			t.Run(name, run)
		}
	} else {
		together(t, cases)
	}
	w.log.judge(t)
	if len(w.members) > 0 {
		t.Run("by the Eviction API", func(t *testing.T) { w.byEviction(ctx, t) })
		w.log.judge(t)
	}
}

// byEviction: with eviction-mode evict a pod goes when its budget allows it, and
// not before.
func (w *evictWorld) byEviction(ctx context.Context, t *testing.T) {
	w.replace(ctx, "MILLRACE_PODEVICTOR_EVICTION_MODE=evict")
	s := w.on(ctx, t)
	node := s.node(ctx, "n")
	well := corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	for _, name := range []string{"guarded", "free"} {
		s.pod(ctx, name, node, func(p *corev1.Pod) { p.Labels = map[string]string{"is": name} })
		s.status(ctx, name, well)
	}
	budgets := s.api.PolicyV1().PodDisruptionBudgets(s.ns) // nobody counts here: none may be disrupted
	_, err := budgets.Create(ctx, &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Name: "b"},
		Spec: policyv1.PodDisruptionBudgetSpec{
			MinAvailable: new(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"is": "guarded"}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.taint(ctx, node, noExecute(testTaint, time.Now()))
	eventually(ctx, t, 10*time.Second, "the one without a budget goes", func() (bool, string) {
		living := s.log.living(s.ns)
		return len(living) == 1 && living[0] == "guarded", fmt.Sprint(living)
	})
	pause(ctx, inTime)
	if n := s.log.deletions(s.ns); n != 1 {
		t.Errorf("%d pods are deleted, want 1: the other has a budget", n)
	}
	s.must(budgets.Delete(ctx, "b", metav1.DeleteOptions{}))
	s.awaitDeleted(ctx, refusedThenWithin, 2)
}

// nextSecond waits for a whole second, which is all that the times of taints have.
func nextSecond(ctx context.Context) time.Time {
	at := time.Now().Truncate(time.Second).Add(time.Second)
	pause(ctx, time.Until(at))
	return at
}

// madeAnew: a pod is deleted and made again under its name within 100 ms of its
// deadline, before or after; the new one must live.
func (w *evictWorld) madeAnew(ctx context.Context, t *testing.T, rounds int) {
	s, rng := w.on(ctx, t), rand.New(rand.NewPCG(1, 5)) //nolint:gosec // a seed is the point
	node := s.node(ctx, "n")
	type round struct {
		pod    *corev1.Pod
		after  int64 // seconds
		offset time.Duration
	}
	made := make([]*round, rounds)
	for i := range made {
		made[i] = &round{after: int64(2 + i/20), offset: time.Duration(rng.IntN(201)-100) * time.Millisecond}
		made[i].pod = s.pod(ctx, fmt.Sprintf("p-%03d", i), node, tolerating(tolerate(testTaint, made[i].after)))
	}
	began := nextSecond(ctx)
	s.taint(ctx, node, noExecute(testTaint, began))
	var mu sync.Mutex
	var anew []*corev1.Pod
	each(len(made), made, func(r *round) {
		pause(ctx, time.Until(began.Add(time.Duration(r.after)*time.Second+r.offset)))
		p := s.again(ctx, r.pod, tolerating(tolerate(testTaint, 3600)))
		mu.Lock()
		defer mu.Unlock()
		anew = append(anew, p)
	})
	pause(ctx, 2*time.Second) // in which a late deletion would come
	evicted := 0
	for _, r := range made {
		if l, ok := s.log.life(r.pod.UID); ok {
			if before, at := l.deletion(); at != nil && disruption(before.pod) == deletionByTaint {
				evicted++
			}
		}
	}
	t.Logf("%d rounds: %d were marked before the test deleted them", rounds, evicted)
	for _, p := range anew {
		l, _ := s.log.life(p.UID)
		if len(l.revisions) != 1 {
			t.Errorf("the new pod %s was touched: %d revisions", p.Name, len(l.revisions))
		}
	}
	if evicted == 0 || evicted == rounds {
		t.Logf("the test shows less than it could: no race was met")
	}
}

// again deletes a pod and makes it anew under its name.
func (s *stage) again(ctx context.Context, p *corev1.Pod, changes ...change) *corev1.Pod {
	s.t.Helper()
	s.delete(ctx, p, *metav1.NewDeleteOptions(0))
	anew := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: p.Namespace},
		Spec: corev1.PodSpec{
			NodeName: p.Spec.NodeName, TerminationGracePeriodSeconds: p.Spec.TerminationGracePeriodSeconds, Containers: p.Spec.Containers,
		},
	}
	for _, c := range changes {
		c(anew)
	}
	for {
		made, err := s.api.CoreV1().Pods(s.ns).Create(ctx, anew, metav1.CreateOptions{})
		if !apierrors.IsAlreadyExists(err) {
			s.must(err)
			return made
		}
	}
}

// boundLate: a pod comes to a node that was tainted an hour ago and lives its
// time from then on, whether it was made for that node or bound to it later.
func (w *evictWorld) boundLate(ctx context.Context, t *testing.T) {
	const pods, seconds = 10, 3
	s := w.on(ctx, t)
	node := s.node(ctx, "n", noExecute(testTaint, time.Now().Add(-time.Hour)))
	var unbound []*corev1.Pod
	for i := range pods {
		s.pod(ctx, fmt.Sprintf("direct-%d", i), node, tolerating(tolerate(testTaint, seconds)))
		unbound = append(unbound, s.pod(ctx, fmt.Sprintf("bound-%d", i), "", tolerating(tolerate(testTaint, seconds))))
	}
	pause(ctx, 1500*time.Millisecond)
	for _, p := range unbound {
		s.bind(ctx, p, node)
	}
	s.awaitDeleted(ctx, seconds*time.Second+inTime, 2*pods) // judge: not early
}

// flapping: a node goes to and fro between not-ready and unreachable, as our role
// swaps them and as upstream's does. It is emptied as if it had stayed.
func (w *evictWorld) flapping(ctx context.Context, t *testing.T) {
	const seconds = 4
	s := w.on(ctx, t)
	began := nextSecond(ctx)
	ours, upstreams := s.node(ctx, "ours", noExecute(corev1.TaintNodeNotReady, began)), s.node(ctx, "upstreams", noExecute(corev1.TaintNodeNotReady, began))
	for _, n := range []string{ours, upstreams} {
		for i := range 5 {
			s.pod(ctx, fmt.Sprintf("%s-%d", n, i), n, tolerating(
				tolerate(corev1.TaintNodeNotReady, seconds), tolerate(corev1.TaintNodeUnreachable, seconds)))
		}
	}
	flipping, stop := context.WithCancel(ctx)
	var flips sync.WaitGroup
	flips.Go(func() {
		was, is := corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable
		for added := began; flipping.Err() == nil; was, is = is, was {
			now := time.Now()
			s.taint(ctx, ours, noExecute(is, began))
			s.taint(ctx, upstreams, noExecute(was, added), noExecute(is, now))
			s.taint(ctx, upstreams, noExecute(is, now))
			added = now
			pause(flipping, 700*time.Millisecond)
		}
	})
	defer flips.Wait()
	defer stop()
	s.awaitDeleted(ctx, time.Until(began.Add(seconds*time.Second+inTime)), 10)
}

// taintRemoved: taints go at about the deadline. The log's judge says whether
// that was too late for a pod.
func (w *evictWorld) taintRemoved(ctx context.Context, t *testing.T, nodes int) {
	const seconds, podsOfNode = 3, 5
	s, rng := w.on(ctx, t), rand.New(rand.NewPCG(2, 5)) //nolint:gosec // a seed is the point
	names := s.nodes(ctx, nodes)
	for _, n := range names {
		for i := range podsOfNode {
			s.pod(ctx, fmt.Sprintf("%s-%d", n, i), n, tolerating(tolerate(testTaint, seconds)))
		}
	}
	began := nextSecond(ctx)
	each(16, names, func(n string) { s.taint(ctx, n, noExecute(testTaint, began)) })
	type removal struct {
		node string
		at   time.Time
	}
	var removals []removal
	for _, n := range names {
		removals = append(removals, removal{n, began.Add(seconds*time.Second - time.Duration(rng.IntN(400)-200)*time.Millisecond)})
	}
	each(len(names), removals, func(r removal) {
		pause(ctx, time.Until(r.at))
		s.taint(ctx, r.node)
	})
	pause(ctx, 2*time.Second)
	evicted := s.log.deletions(s.ns)
	t.Logf("%d pods on %d nodes: %d were evicted before the taint went", nodes*podsOfNode, nodes, evicted)
	if evicted == nodes*podsOfNode {
		t.Error("every one was evicted: the test shows nothing")
	}
}

// burst: a tainted node and its pods appear all at once, in any order.
func (w *evictWorld) burst(ctx context.Context, t *testing.T, shuffles, pods int) {
	s := w.on(ctx, t)
	for round := range shuffles {
		var makers []func()
		makers = append(makers, func() { s.node(ctx, fmt.Sprintf("n%03d", round), noExecute(testTaint, time.Now())) })
		for i := range pods {
			makers = append(makers, func() { s.pod(ctx, fmt.Sprintf("r%03d-%03d", round, i), fmt.Sprintf("%s-n%03d", s.ns, round)) })
		}
		rng := rand.New(rand.NewPCG(uint64(round), 5)) //nolint:gosec // a seed is the point
		rng.Shuffle(len(makers), func(i, j int) { makers[i], makers[j] = makers[j], makers[i] })
		each(32, makers, func(do func()) { do() })
		took := s.awaitDeleted(ctx, time.Duration(pods/20)*time.Second+inTime, (round+1)*pods)
		t.Logf("shuffle %d: all %d pods deleted %s after the last was made", round, pods, took.Round(time.Millisecond))
	}
}

// changed is one row of changes: what a node bears and a pod tolerates, and when.
type changed struct {
	tolerations []corev1.Toleration
	steps       []step
	want        float64 // seconds after the start; negative: it stays
}

// step is one change, so many seconds after the start.
type step struct {
	at          float64
	taints      []string // of the node from then on; "" for none: unchanged
	tolerations []corev1.Toleration
}

func bears(at float64, taints ...string) step {
	return step{at: at, taints: append([]string{}, taints...)}
}

// A15 with our answers, in fewer seconds.
var changeCases = map[string]changed{
	"not tolerated":                         {nil, []step{bears(0, "a")}, 0},
	"removed before the deadline":           {[]corev1.Toleration{tolerate("a", 3)}, []step{bears(0, "a"), bears(2)}, -1},
	"removed and added again":               {[]corev1.Toleration{tolerate("a", 3)}, []step{bears(0, "a"), bears(1), bears(2, "a")}, 5},
	"a second taint is tolerated for less":  {[]corev1.Toleration{tolerate("a", 6), tolerate("b", 2)}, []step{bears(0, "a"), bears(1, "a", "b")}, 3},
	"the taint tolerated for less goes":     {[]corev1.Toleration{tolerate("a", 3), tolerate("b", 5)}, []step{bears(0, "a", "b"), bears(1, "b")}, 5},
	"the toleration becomes one for ever":   {[]corev1.Toleration{tolerate("a", 4)}, []step{bears(0, "a"), {at: 1, tolerations: []corev1.Toleration{tolerate("a", -1)}}}, -1},
	"the toleration becomes shorter":        {[]corev1.Toleration{tolerate("a", 60)}, []step{bears(0, "a"), {at: 3, tolerations: []corev1.Toleration{tolerate("a", 1)}}}, 3},
	"the toleration becomes longer":         {[]corev1.Toleration{tolerate("a", 3)}, []step{bears(0, "a"), {at: 1, tolerations: []corev1.Toleration{tolerate("a", 100)}}}, -1},
	"one for ever, one removed in time":     {[]corev1.Toleration{tolerate("a", -1), tolerate("b", 3)}, []step{bears(0, "a"), bears(1, "a", "b"), bears(3, "a")}, -1},
	"everything tolerated":                  {[]corev1.Toleration{{Operator: corev1.TolerationOpExists}}, []step{bears(0, "a")}, -1},
	"for no time":                           {[]corev1.Toleration{tolerate("a", 0)}, []step{bears(0, "a")}, 0},
	"the first that matches is the shorter": {[]corev1.Toleration{tolerate("a", 2), tolerate("a", -1)}, []step{bears(0, "a")}, 2},
	"the first that matches is for ever":    {[]corev1.Toleration{tolerate("a", -1), tolerate("a", 2)}, []step{bears(0, "a")}, -1},
	"not-ready swapped for unreachable": {
		[]corev1.Toleration{tolerate(corev1.TaintNodeNotReady, 4), tolerate(corev1.TaintNodeUnreachable, 4)},
		[]step{bears(0, corev1.TaintNodeNotReady), bears(2, corev1.TaintNodeUnreachable)}, 4,
	},
}

// changes runs all of changeCases at the same time.
func (w *evictWorld) changes(ctx context.Context, t *testing.T) {
	s := w.on(ctx, t)
	pods, nodes := map[string]*corev1.Pod{}, map[string]string{}
	i := 0
	for name, c := range changeCases {
		nodes[name] = s.node(ctx, fmt.Sprintf("n%02d", i))
		pods[name] = s.pod(ctx, fmt.Sprintf("p%02d", i), nodes[name], tolerating(c.tolerations...))
		i++
	}
	began := nextSecond(ctx)
	var running sync.WaitGroup
	for name, c := range changeCases {
		running.Go(func() { s.change(ctx, began, pods[name], nodes[name], c.steps) })
	}
	running.Wait()
	pause(ctx, time.Until(began.Add(7*time.Second)))
	for name, c := range changeCases {
		l, _ := s.log.life(pods[name].UID)
		_, at := l.deletion()
		want := began.Add(time.Duration(c.want * float64(time.Second)))
		switch {
		case c.want < 0 && at != nil:
			t.Errorf("%s: deleted after %s, want it to stay", name, at.at.Sub(began))
		case c.want >= 0 && at == nil:
			t.Errorf("%s: not deleted, want that after %gs\n%s", name, c.want, s.explained(ctx, l.name))
		case at != nil && (at.at.Before(want) || at.at.After(want.Add(inTime))):
			t.Errorf("%s: deleted after %s, want %gs", name, at.at.Sub(began), c.want)
		}
	}
}

// change takes the steps of one row.
func (s *stage) change(ctx context.Context, began time.Time, p *corev1.Pod, node string, steps []step) {
	for _, st := range steps {
		at := began.Add(time.Duration(st.at * float64(time.Second)))
		pause(ctx, time.Until(at))
		if st.taints != nil {
			var taints []corev1.Taint
			for _, key := range st.taints {
				added := at
				if first := slices.IndexFunc(steps, func(o step) bool { return slices.Contains(o.taints, key) }); !slices.ContainsFunc(steps[first:], func(o step) bool {
					return o.at < st.at && o.taints != nil && !slices.Contains(o.taints, key)
				}) {
					added = began.Add(time.Duration(steps[first].at * float64(time.Second)))
				}
				taints = append(taints, noExecute(key, added))
			}
			s.taint(ctx, node, taints...)
		}
		if st.tolerations != nil {
			now, err := s.api.CoreV1().Pods(s.ns).Get(ctx, p.Name, metav1.GetOptions{})
			if s.must(err); err != nil {
				return
			}
			now.Spec.Tolerations = st.tolerations
			_, err = s.api.CoreV1().Pods(s.ns).Update(ctx, now, metav1.UpdateOptions{})
			s.must(err)
		}
	}
}
