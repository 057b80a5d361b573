package podevictor

import (
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/event"
)

const second = time.Second

func seconds(n int) time.Duration { return time.Duration(n) * second }

// The rows of contract 2, A12, that are about one look at one pod.
func TestA12OnePod(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		on      string
		taints  []corev1.Taint
		options []podOption
		writes  string
		after   bool // it is to be looked at again
	}{
		"create: unscheduled -> nothing":                                {on: "", taints: []corev1.Taint{untimed("a")}},
		"create: on an untainted node -> nothing":                       {on: "n"},
		"create: on a tainted node -> status patch + delete":            {on: "n", taints: []corev1.Taint{untimed("a")}, writes: evicted},
		"create: tolerated 100 s -> nothing yet":                        {on: "n", taints: []corev1.Taint{untimed("a")}, options: []podOption{tol("a", 100)}, after: true},
		"create: tolerated infinitely -> nothing":                       {on: "n", taints: []corev1.Taint{untimed("a")}, options: []podOption{tol("a")}},
		"create: toleration for another key -> patch + delete":          {on: "n", taints: []corev1.Taint{untimed("a")}, options: []podOption{tol("b")}, writes: evicted},
		"filter: only effect NoExecute survives":                        {on: "n", taints: []corev1.Taint{{Key: "a", Effect: "NoSchedule"}, {Key: "b", Effect: "PreferNoSchedule"}}},
		"update node: two taints, one tolerated -> delete":              {on: "n", taints: []corev1.Taint{untimed("a"), untimed("b")}, options: []podOption{tol("a")}, writes: evicted},
		"A7: a pod that has ended is deleted like any other":            {on: "n", taints: []corev1.Taint{untimed("a")}, options: []podOption{phase(corev1.PodSucceeded)}, writes: evicted},
		"A6: seconds of 0 -> delete at once":                            {on: "n", taints: []corev1.Taint{untimed("a")}, options: []podOption{tol("a", 0)}, writes: evicted},
		"A6: negative seconds -> delete at once":                        {on: "n", taints: []corev1.Taint{untimed("a")}, options: []podOption{tol("a", -5)}, writes: evicted},
		"A1: every NoExecute taint counts, not-ready too":               {on: "n", taints: []corev1.Taint{untimed(notReady)}, options: []podOption{tol(notReady, 0)}, writes: evicted},
		"A15: a toleration without key, effect and seconds: it stays":   {on: "n", taints: []corev1.Taint{untimed("a"), untimed("b")}, options: []podOption{everything}},
		"several pods: several taints not all tolerated -> at 0":        {on: "n", taints: []corev1.Taint{untimed("a"), untimed("b")}, options: []podOption{tol("a", 100)}, writes: evicted},
		"A7: admission's 300 s are what most pods have for unreachable": {on: "n", taints: []corev1.Taint{untimed(unreachable)}, after: true},
		"A7: a taint of one's own hits a pod that tolerates not-ready":  {on: "n", taints: []corev1.Taint{untimed("a")}, options: []podOption{tol(notReady), tol(unreachable)}, writes: evicted},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n", tt.taints...)
			r.pod("p", tt.on, tt.options...)
			after := r.run("p")
			if got := r.writes(); got != tt.writes {
				t.Errorf("wrote %q, want %q", got, tt.writes)
			}
			if (after > 0) != tt.after {
				t.Errorf("to be looked at after %s", after)
			}
			if (r.fate("p") == "stays") != (tt.writes == "") {
				t.Errorf("the pod %s", r.fate("p"))
			}
			r.echo("p")
			if r.run("p"); r.writes() != "" {
				t.Error("looked at again it was written to again")
			}
		})
	}
}

func everything(p *corev1.Pod) {
	p.Spec.Tolerations = append(p.Spec.Tolerations, corev1.Toleration{Operator: corev1.TolerationOpExists})
}

// A8: what is written, and A10: what is said. The condition comes before the
// deletion; both only hit the pod that was looked at.
func TestAnEviction(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	pod := r.pod("p", "n")
	r.run("p")
	writes, _ := r.wire.Writes()
	if len(writes) != 2 || writes[0].String() != "PATCH pods/status" || writes[1].String() != "DELETE pods" {
		t.Fatalf("wrote %v", writes)
	}
	if body := writes[0].Body; !contains(body, `"uid":"`+string(pod.UID)+`"`) || !contains(body, `"resourceVersion":"`+pod.ResourceVersion+`"`) {
		t.Errorf("a patch without preconditions: %s", body)
	}
	options, _ := writes[1].Object().(*metav1.DeleteOptions)
	if p := options.Preconditions; p == nil || *p.UID != pod.UID || p.ResourceVersion == nil || options.GracePeriodSeconds != nil {
		t.Errorf("deleted with %+v, want preconditions and the pod's own grace", options)
	}
	live := r.livePod("p")
	c := disrupted(live)
	if c == nil || c.Status != "True" || c.Reason != "DeletionByTaintManager" || c.Message == "" || c.ObservedGeneration == 0 {
		t.Errorf("DisruptionTarget %+v", c)
	}
	if live.Status.Phase != corev1.PodRunning {
		t.Errorf("phase %s: that is the kubelet's to say", live.Status.Phase)
	}
	if got := r.told(); !slices.Equal(got, []string{"Normal TaintManagerEviction Marking for deletion Pod p"}) {
		t.Errorf("events %q", got)
	}
	if got := r.counted("taint_eviction_controller_pod_deletions_total"); got != 1 {
		t.Errorf("deletions %g", got)
	}
	if got := r.counted("taint_eviction_controller_pod_deletion_duration_seconds"); got != 1 {
		t.Errorf("durations of %g deletions", got)
	}
	var rules []string
	for _, d := range r.p.Decisions() {
		rules = append(rules, d.Rule+" "+d.Verb)
		if !contains(d.Detail, "taint a:NoExecute, not tolerated") || len(d.Inputs) != 2 || string(d.Inputs[1].Kind) != "nodes" {
			t.Errorf("recorded %+v", d)
		}
	}
	if !slices.Equal(rules, []string{"taint-eviction patch_status", "taint-eviction delete"}) {
		t.Errorf("recorded %q", rules)
	}
	if p := r.waiting("p"); p.Object.UID != "" {
		t.Errorf("still to be done: %+v", p)
	}
}

// A8.3b: an equal condition is not written again.
func TestAConditionThatIsThereIsNotWrittenAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n", func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.DisruptionTarget, Status: "True", Reason: reasonTaint, Message: messageTaint}}
	})
	r.run("p")
	if got := r.writes(); got != "DELETE pods" {
		t.Errorf("wrote %q", got)
	}
}

// A10: the reference has no UID; both texts, of reason TaintManagerEviction.
func TestEventsAreAboutANameWithoutUID(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	said := &listener{}
	r.role.events = said
	r.node("n", untimed("a"))
	r.pod("p", "n")
	r.pod("q", "n", tol("a", 100))
	r.run("p")
	r.run("q")
	r.taint("n")
	r.run("q")
	want := []string{
		"Normal TaintManagerEviction Marking for deletion Pod " + r.ns + "/p about Pod v1 " + r.ns + "/p ()",
		"Normal TaintManagerEviction Cancelling deletion of Pod " + r.ns + "/q about Pod v1 " + r.ns + "/q ()",
	}
	if !slices.Equal(said.said, want) {
		t.Errorf("events %q, want %q", said.said, want)
	}
}

// A12, update: and A15 with our answers. What a step changes is told to the role, as
// is what it did; times are seconds after the taint's own.
func TestA15Timelines(t *testing.T) {
	t.Parallel()
	type step struct {
		at int
		do func(r *rig)
	}
	taints := func(at int, taints func(r *rig) []corev1.Taint) step {
		return step{at, func(r *rig) { r.taint("n", taints(r)...) }}
	}
	none := func(*rig) []corev1.Taint { return nil }
	bears := func(pairs ...any) func(r *rig) []corev1.Taint {
		return func(r *rig) (out []corev1.Taint) {
			for i := 0; i < len(pairs); i += 2 {
				out = append(out, bad(pairs[i].(string), r.at(seconds(pairs[i+1].(int)))))
			}
			return out
		}
	}
	tolerations := func(at int, options ...podOption) step {
		return step{at, func(r *rig) {
			p := r.livePod("p")
			copy(p.Spec.Tolerations, podOf(options...).Spec.Tolerations) // before those of admission
			p, err := r.admin.CoreV1().Pods(r.ns).Update(r.Context(), p, metav1.UpdateOptions{})
			if err != nil {
				r.Fatal(err)
			}
			r.Put(r.TB, p)
		}}
	}
	restarts := func(at int) step { return step{at, func(r *rig) { r.restart([]string{"n"}, "p") }} }
	const cancelled = "Normal TaintManagerEviction Cancelling deletion of Pod p"
	tests := map[string]struct {
		pod   []podOption
		steps []step
		dies  int // 0: never
		said  string
	}{
		"none: taint A at 0 -> deleted at 0 (1)":                             {nil, []step{taints(1, bears("a", 1))}, 1, ""},
		"A:300, A at 0, removed at 299 -> cancelled, stays":                  {[]podOption{tol("a", 300)}, []step{taints(0, bears("a", 0)), taints(299, none)}, 0, cancelled},
		"A:300, removed 100, added again 110 -> 410":                         {[]podOption{tol("a", 300)}, []step{taints(0, bears("a", 0)), taints(100, none), taints(110, bears("a", 110))}, 410, cancelled},
		"A:300 B:10, A at 0, B at 100 -> ours 110":                           {[]podOption{tol("a", 300), tol("b", 10)}, []step{taints(0, bears("a", 0)), taints(100, bears("a", 0, "b", 100))}, 110, ""},
		"A:10 B:300, A removed at 5 -> ours 300: the other counts":           {[]podOption{tol("a", 10), tol("b", 300)}, []step{taints(0, bears("a", 0, "b", 0)), taints(5, bears("b", 0))}, 300, ""},
		"A:10 B:10 -> the earlier":                                           {[]podOption{tol("a", 10), tol("b", 10)}, []step{taints(0, bears("a", 0)), taints(4, bears("b", 4, "a", 0))}, 10, ""},
		"A:300 made infinite at 50 -> cancelled, stays":                      {[]podOption{tol("a", 300)}, []step{taints(0, bears("a", 0)), tolerations(50, tol("a"))}, 0, cancelled},
		"A:300, seconds set to 5 at 50 -> ours at once":                      {[]podOption{tol("a", 300)}, []step{taints(0, bears("a", 0)), tolerations(50, tol("a", 5))}, 50, ""},
		"A:1 lengthened to 100 -> ours 100":                                  {[]podOption{tol("a", 1)}, []step{taints(0, bears("a", 0)), tolerations(0, tol("a", 100))}, 100, ""},
		"A:infinite B:60, B at 20, removed at 70 -> cancelled":               {[]podOption{tol("a"), tol("b", 60)}, []step{taints(0, bears("a", 0)), taints(20, bears("a", 0, "b", 20)), taints(70, bears("a", 0))}, 0, cancelled},
		"key empty Exists: anything -> stays":                                {[]podOption{everything}, []step{taints(0, bears("a", 0)), taints(20, bears("b", 20, "c", 20))}, 0, ""},
		"A:0, A at 0 -> 0 (1)":                                               {[]podOption{tol("a", 0)}, []step{taints(1, bears("a", 1))}, 1, ""},
		"A:-5, A at 0 -> 0 (1)":                                              {[]podOption{tol("a", -5)}, []step{taints(1, bears("a", 1))}, 1, ""},
		"[A:10 A:nil] -> 10: first match counts":                             {[]podOption{tol("a", 10), tol("a")}, []step{taints(0, bears("a", 0))}, 10, ""},
		"[A:nil A:10] -> stays":                                              {[]podOption{tol("a"), tol("a", 10)}, []step{taints(0, bears("a", 0))}, 0, ""},
		"not-ready swapped for unreachable at 100 -> 300, no cancel":         {[]podOption{tol(notReady, 300), tol(unreachable, 300)}, []step{taints(0, bears(notReady, 0)), taints(100, bears(unreachable, 0))}, 300, ""},
		"the same by a foreign add-then-remove with a new time -> 300":       {[]podOption{tol(notReady, 300), tol(unreachable, 300)}, []step{taints(0, bears(notReady, 0)), taints(100, bears(notReady, 0, unreachable, 100)), taints(100, bears(unreachable, 100))}, 300, ""},
		"the same in one write with a new time -> 300":                       {[]podOption{tol(notReady, 300), tol(unreachable, 300)}, []step{taints(0, bears(notReady, 0)), taints(100, bears(unreachable, 100))}, 300, ""},
		"the same, there and back, and a restart in between -> 300":          {[]podOption{tol(notReady, 300), tol(unreachable, 300)}, []step{taints(0, bears(notReady, 0)), taints(100, bears(unreachable, 100)), restarts(150), taints(200, bears(notReady, 200))}, 300, ""},
		"the same, but away in between -> from the second time on":           {[]podOption{tol(notReady, 300), tol(unreachable, 300)}, []step{taints(0, bears(notReady, 0)), taints(100, none), taints(110, bears(unreachable, 110))}, 410, cancelled},
		"A:300, restart at 200 -> ours 300":                                  {[]podOption{tol("a", 300)}, []step{taints(0, bears("a", 0)), restarts(200)}, 300, ""},
		"A:300 without a time, restart at 200 -> ours 300":                   {[]podOption{tol("a", 300)}, []step{taints(0, func(*rig) []corev1.Taint { return []corev1.Taint{untimed("a")} }), restarts(200)}, 300, ""},
		"taint sequence none, infinite, + 60 s, infinite -> never":           {[]podOption{tol("a"), tol("b", 60)}, []step{taints(0, none), taints(5, bears("a", 5)), taints(10, bears("a", 5, "b", 10)), taints(15, bears("a", 5))}, 0, cancelled},
		"update node: taint removed before 1 s elapsed -> no delete":         {[]podOption{tol("a", 2)}, []step{taints(0, bears("a", 0)), taints(1, none)}, 0, cancelled},
		"update node: two taints tolerated 1 s and 100 s -> at 1 s":          {[]podOption{tol("a", 1), tol("b", 100)}, []step{taints(0, bears("a", 0, "b", 0))}, 1, ""},
		"a taint an hour old and a pod of now, tolerated 300 s -> its 300 s": {[]podOption{tol("a", 300)}, []step{taints(0, bears("a", -3600))}, 300, ""},
		"an effect that is no NoExecute any more -> cancelled":               {[]podOption{tol("a", 300)}, []step{taints(0, bears("a", 0)), taints(10, func(*rig) []corev1.Taint { return []corev1.Taint{{Key: "a", Effect: "NoSchedule"}} })}, 0, cancelled},
		"deleted by somebody else meanwhile -> cancelled":                    {[]podOption{tol("a", 300)}, []step{taints(0, bears("a", 0)), {10, func(r *rig) { r.deleted("p") }}}, 0, cancelled},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n")
			r.pod("p", "n", append(tt.pod, boundNow(r))...)
			r.wire.Take()
			died := -1
			look := func() (after time.Duration) {
				after = r.run("p")
				if contains(r.writes(), "DELETE pods") {
					died = int(r.now() / second)
				}
				return after
			}
			next := look()
			for _, s := range append(tt.steps, step{10000, func(*rig) {}}) {
				for next > 0 && died < 0 && r.now()+next <= seconds(s.at) { // as the frame's timers
					r.pass(next)
					next = look()
				}
				if died >= 0 {
					break
				}
				r.pass(seconds(s.at) - r.now())
				s.do(r)
				next = look()
			}
			if want := max(tt.dies, 0); died != want && (died != -1 || want != 0) {
				t.Errorf("deleted at %d s, want %d (-1 and 0: never)", died, tt.dies)
			}
			var said []string
			for _, e := range r.told() {
				if !contains(e, "Marking") {
					said = append(said, e)
				}
			}
			if got := join(said); got != tt.said {
				t.Errorf("said %q, want %q", got, tt.said)
			}
		})
	}
}

// boundNow makes a pod one that came to its node as the rig was made, whatever
// second the server created it in.
func boundNow(r *rig) podOption {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodScheduled, Status: "True", LastTransitionTime: metaTime(r.at(0)),
		})
	}
}

// A12, "several pods": none, 1 s and for ever -> at 0, at 1 s, never; and "eventual
// consistency": in whatever order the node and its pods become known.
func TestA12SeveralPodsInAnyOrder(t *testing.T) {
	t.Parallel()
	for name, order := range map[string][]string{
		"the node first":    {"n", "at-once", "later", "never"},
		"the node last":     {"at-once", "later", "never", "n"},
		"in between":        {"at-once", "n", "never", "later"},
		"it is told twice":  {"n", "at-once", "later", "n", "never", "at-once"},
		"tainted only then": {"bare", "at-once", "later", "never", "n"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			bare := r.node("n")
			node := r.secretly("n", bad("a", r.at(0)))
			r.Drop(t, bare)
			pods := map[string]*corev1.Pod{
				"at-once": r.store("at-once", "n", boundNow(r)), "later": r.store("later", "n", tol("a", 1), boundNow(r)),
				"never": r.store("never", "n", tol("a"), boundNow(r)),
			}
			r.p.Changes()
			for _, what := range order {
				switch what {
				case "n":
					r.Put(t, node)
				case "bare":
					r.Put(t, bare)
				default:
					r.Put(t, pods[what])
				}
				var woken []event.Key
				for _, c := range r.p.Changes() {
					woken = append(woken, r.role.keys(r.p, c)...)
				}
				for _, key := range woken {
					if _, err := r.reconcile(key.Name); err != nil {
						t.Fatal(err)
					}
				}
			}
			if got := r.fate("at-once") + " " + r.fate("later") + " " + r.fate("never"); got != "ending stays stays" {
				t.Fatalf("at 0: %s", got)
			}
			r.pass(second)
			r.run("later")
			r.run("never")
			if got := r.fate("later") + " " + r.fate("never"); got != "ending stays" {
				t.Errorf("at 1 s: %s", got)
			}
		})
	}
}

// A12, "delete of an unknown pod", and "delete node: the entry leaves the taint map".
func TestWhatIsGoneIsForgotten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.run("nobody")
	n := r.node("n", untimed("a"))
	r.pod("p", "n", tol("a", 100))
	r.run("p")
	if len(r.role.sightings.nodes) != 1 || r.waiting("p").Waiting != waitsTime {
		t.Fatalf("%d nodes, %+v", len(r.role.sightings.nodes), r.waiting("p"))
	}
	r.Drop(t, n)
	if len(r.role.sightings.nodes) != 0 {
		t.Error("the node is not forgotten")
	}
	r.Put(t, n)
	r.Drop(t, r.livePod("p"))
	r.run("p")
	if p := r.waiting("p"); p.Waiting != "" {
		t.Errorf("still to be done: %+v", p)
	}
	if got := r.told(); !slices.Equal(got, []string{"Normal TaintManagerEviction Cancelling deletion of Pod p"}) {
		t.Errorf("events %q", got)
	}
	if got := r.writes(); got != "" {
		t.Errorf("wrote %q", got)
	}
}
