package nodelifecycle

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// briefly makes the wait before a token a short one.
func briefly(p *policy) { p.NodeMonitorPeriod = 10 * time.Millisecond }

// doomed makes a rig with a node that is to be tainted NoExecute: beside one that
// is well, silent for an hour if it is Unknown, and with all that comes before.
func doomed(t *testing.T, options ...nodeOption) *rig {
	t.Helper()
	r := newRig(t, briefly)
	r.make("well", healthy)
	if n := r.make("n", options...); sickness(n) == unreachable {
		r.silent(time.Hour, n.Name)
	}
	r.run(r.key("n"))
	r.wire.Writes()
	r.p.Rules()
	return r
}

// grant lets one node pass, and runs it when it is woken.
func (r *rig) grant(name string) controller.Result {
	r.Helper()
	r.tokens(1)
	r.eventually("the node is woken by its token", func() bool { return strings.Contains(r.p.Wakes(), r.name(name)) })
	return r.run(r.key(name))
}

// Section 10, "NoExecute: Unknown -> unreachable; False -> not-ready", under a token
// of the node's zone at its rate, and nothing without one.
func TestNoExecuteUnderAToken(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node []nodeOption
		want string
	}{
		"Unknown: unreachable":      {[]nodeOption{gone}, "unreachable:NoSchedule unreachable:NoExecute"},
		"False: not-ready":          {[]nodeOption{sick, bears(notReady, noSched)}, "not-ready:NoSchedule not-ready:NoExecute"},
		"foreign taints stay first": {[]nodeOption{withTaints(corev1.Taint{Key: "example.com/x", Value: "v", Effect: noExec}), gone}, "example.com/x:NoExecute unreachable:NoSchedule unreachable:NoExecute"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := doomed(t, tt.node...)
			before := r.taints("n")
			r.eventually("a token is asked for", func() bool { return r.line.asks("", 0.1) > 0 })
			r.run(r.key("n")) // looked at again and again it is tainted once, and not stuck
			r.run(r.key("n"))
			if got := r.writes(); got != "" || r.taints("n") != before {
				t.Fatalf("without a token it wrote %q: %s", got, r.taints("n"))
			}
			if n := len(r.live("n").Spec.Taints); n != strings.Count(before, ":") {
				t.Fatalf("%d taints", n)
			}
			r.grant("n")
			if got := r.writes(); got != "PATCH nodes" {
				t.Errorf("wrote %q", got)
			}
			if got := r.taints("n"); got != tt.want {
				t.Errorf("taints %q, want %q", got, tt.want)
			}
			added, _ := find(r.live("n"), sickness(r.live("n")), noExec)
			if !added.TimeAdded.Time.Equal(later) {
				t.Errorf("timeAdded %s, want now, %s", added.TimeAdded, later)
			}
			if got := r.p.Rules(); got != "no-execute" {
				t.Errorf("recorded %q", got)
			}
			if got := r.counted("node_collector_evictions_total", ""); got != 1 {
				t.Errorf("evictions_total is %g, want 1", got)
			}
			r.settle(r.key("n"))
			select { // tainted once: nobody asks any more
			case r.line.free <- roletest.Endless():
				t.Error("another token was taken")
			case <-time.After(100 * time.Millisecond):
			}
		})
	}
}

// Section 10, "Ready condition absent when the queue runs -> no taint", and all
// else that may have changed by the time that a token comes.
func TestWhatHasChangedByTheTimeOfTheToken(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *rig){
		"the Ready condition is absent": func(r *rig) {
			r.edit("n", func(n *corev1.Node) { n.Status.Conditions = nil })
		},
		"it is Ready": func(r *rig) { r.kubelet("n", "True", later) },
		"its Lease was renewed, and it has not said more yet": func(r *rig) { r.renew("n", later) },
		"somebody has tainted it": func(r *rig) {
			r.edit("n", func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taintAt(unreachable, noExec, then)) })
		},
		"it is another node": func(r *rig) { r.recreate("n", gone) },
	}
	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := doomed(t, gone)
			change(r)
			want := said(r.live("n").Spec.Taints)
			r.tokens(1)
			r.eventually("the node is woken by its token", func() bool { return strings.Contains(r.p.Wakes(), r.name("n")) })
			_, err := r.reconcile(r.key("n"))
			if err != nil && classify(err) != controller.Gone {
				t.Errorf("Reconcile() = %v", err)
			}
			if got := r.writes(); got != "" || r.taints("n") != want {
				t.Errorf("wrote %q: %s, want %s", got, r.taints("n"), want)
			}
		})
	}
}

// Architecture 8: "a token not used within 1 s is void": another one is asked for.
func TestATokenThatIsTooLate(t *testing.T) {
	t.Parallel()
	r := doomed(t, gone)
	r.p.Wakes()
	r.line.free <- roletest.Void()
	r.eventually("the node is woken by its token", func() bool { return strings.Contains(r.p.Wakes(), r.name("n")) })
	r.run(r.key("n"))
	if got := r.writes(); got != "" {
		t.Fatalf("with a token that is void it wrote %q", got)
	}
	r.grant("n")
	if got := r.taints("n"); got != "unreachable:NoSchedule unreachable:NoExecute" {
		t.Errorf("taints %q", got)
	}
}

// The same where it dies on the way, between the look at the node and the write.
func TestATokenThatDiesOnTheWay(t *testing.T) {
	t.Parallel()
	r := doomed(t, gone)
	token := roletest.Endless()
	r.p.Wakes()
	r.line.free <- token
	r.eventually("the node is woken by its token", func() bool { return strings.Contains(r.p.Wakes(), r.name("n")) })
	c := candidate{r.p, r.key("n")}
	r.wire.Meets(func(q *http.Request) int {
		if q.Method == http.MethodGet { // the look: the token's clock is over when it ends
			r.wire.Meets(nil)
			roletest.Expire(token)
		}
		return 0
	})
	if !r.role.evictions.lines.Granted(c) {
		t.Fatal("no token")
	}
	result := r.run(r.key("n"))
	if got := r.writes(); got != "" {
		t.Errorf("it wrote %q", got)
	}
	if result.After <= 0 {
		t.Error("nobody looks at the node again")
	}
}

// Section 10, "healthy again -> removed", all at once and in one write.
func TestReadyAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", healthy, bears(unreachable, noSched), bears("example.com/x", noExec), bears(unreachable, noExec), bears(notReady, noExec))
	r.silent(0, n.Name)
	r.writes()
	r.run(r.key("n"))
	if got := r.writes(); got != "PATCH nodes" {
		t.Errorf("wrote %q", got)
	}
	if got := r.taints("n"); got != "example.com/x:NoExecute" {
		t.Errorf("taints %q", got)
	}
	if got := r.p.Rules(); got != "no-execute-removal" {
		t.Errorf("recorded %q", got)
	}
	r.settle(r.key("n"))
}

// Section 10, "Swap Unknown <-> False on an already tainted node -> immediate swap
// without the queue". Ours is one write that keeps the time, so at no revision are
// there both, nor neither; upstream makes two, and starts the timers anew.
func TestSwapAtEveryRevision(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.make("well", healthy)
	n := r.make("n", gone, bears("example.com/x", noExec), bears(unreachable, noExec))
	watched, err := r.admin.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{
		FieldSelector: "metadata.name=" + n.Name, ResourceVersion: n.ResourceVersion,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer watched.Stop()
	flips := []corev1.ConditionStatus{"False", "Unknown", "False"}
	for i, status := range flips {
		r.kubelet("n", status, later.Add(time.Duration(i+1)*time.Minute))
		r.silent(map[corev1.ConditionStatus]time.Duration{"Unknown": time.Hour}[status], n.Name)
		r.echo(r.key("n"))
		r.settle(r.key("n"))
	}
	if got := r.p.Rules(); strings.Count(got, "no-execute-swap") != 3 || strings.Contains(got, "removal") || r.line.all() != 0 {
		t.Errorf("recorded %q, %d tokens were asked for", got, r.line.all())
	}
	want := r.live("n").ResourceVersion
	for e := range watched.ResultChan() {
		at, is := e.Object.(*corev1.Node)
		if !is || e.Type != watch.Modified {
			t.Fatalf("%s %v", e.Type, e.Object)
		}
		a, hasA := find(at, unreachable, noExec)
		b, hasB := find(at, notReady, noExec)
		if hasA == hasB {
			t.Errorf("revision %s: %s", at.ResourceVersion, said(at.Spec.Taints))
		}
		for _, taint := range []corev1.Taint{a, b} {
			if taint.Key != "" && !taint.TimeAdded.Time.Equal(then) {
				t.Errorf("revision %s: since %s", at.ResourceVersion, taint.TimeAdded)
			}
		}
		if _, has := find(at, "example.com/x", noExec); !has {
			t.Errorf("revision %s: %s", at.ResourceVersion, said(at.Spec.Taints))
		}
		if at.ResourceVersion == want {
			return
		}
	}
	t.Error("the watch has ended")
}

// What stops NoExecute and its swap, and that taking a taint away is stopped by
// none of it: it is good for everybody.
func TestAPauseOfEvictionsStopsNoExecute(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node    []nodeOption
		grant   bool
		want    string
		refused bool
	}{
		"no-execute":         {[]nodeOption{gone}, true, "unreachable:NoSchedule", true},
		"no-execute-swap":    {[]nodeOption{gone, bears(notReady, noExec)}, false, "unreachable:NoSchedule not-ready:NoExecute", true},
		"no-execute-removal": {[]nodeOption{healthy, bears(notReady, noExec)}, false, "", false},
		"taint-by-condition": {[]nodeOption{unheard}, false, "unreachable:NoSchedule", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, briefly)
			r.make("well", healthy)
			n := r.make("n", tt.node...)
			r.silent(time.Hour, n.Name)
			if tt.node[0] != nil && tt.want == "" {
				r.silent(0, n.Name)
			}
			r.p.Refuses(evicting)
			_, err := r.reconcile(r.key("n"))
			if tt.grant {
				r.tokens(1)
				r.eventually("the node is woken by its token", func() bool { return strings.Contains(r.p.Wakes(), r.name("n")) })
				_, err = r.reconcile(r.key("n"))
			}
			if (err != nil) != tt.refused || err != nil && classify(err) != controller.Waiting {
				t.Errorf("Reconcile() = %v", err)
			}
			if got := r.taints("n"); got != tt.want {
				t.Errorf("taints %q, want %q", got, tt.want)
			}
			if !tt.refused {
				return
			}
			r.p.Refuses(nil)
			if tt.grant {
				r.run(r.key("n"))
				r.grant("n")
			} else {
				r.run(r.key("n"))
			}
			if got := r.taints("n"); got != "unreachable:NoSchedule unreachable:NoExecute" {
				t.Errorf("when it has ended: taints %q", got)
			}
		})
	}
}

// Shadow mode writes nothing, says what it would have written, and tells nobody.
func TestShadowModeWritesNothing(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node  []nodeOption
		grant bool
		want  string
	}{
		"silence":            {[]nodeOption{healthy}, false, "silence(intended)"},
		"taint-by-condition": {[]nodeOption{unheard}, false, "taint-by-condition(intended)"},
		"mirror-labels":      {[]nodeOption{healthy, labelled(corev1.LabelOSStable, "linux")}, false, "mirror-labels(intended)"},
		"no-execute":         {[]nodeOption{gone}, true, "no-execute(intended)"},
		"no-execute-swap":    {[]nodeOption{gone, bears(notReady, noExec)}, false, "no-execute-swap(intended)"},
		"no-execute-removal": {[]nodeOption{healthy, bears(notReady, noExec)}, false, "no-execute-removal(intended)"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, briefly)
			r.p.Switch("", controller.ModeShadow)
			r.make("well", healthy)
			n := r.make("n", tt.node...)
			if name != "mirror-labels" && name != "no-execute-removal" {
				r.silent(time.Hour, n.Name)
			}
			_, err := r.reconcile(r.key("n"))
			if tt.grant {
				r.tokens(1)
				r.eventually("the node is woken by its token", func() bool { return strings.Contains(r.p.Wakes(), r.name("n")) })
				_, err = r.reconcile(r.key("n"))
			}
			if classify(err) != controller.Shadow {
				t.Errorf("Reconcile() = %v, want that it was held back", err)
			}
			if got := r.p.Rules(); got != tt.want {
				t.Errorf("recorded %q, want %q", got, tt.want)
			}
			if got := r.writes(); got != "" {
				t.Errorf("wrote %q", got)
			}
			if got := r.told(); got != nil {
				t.Errorf("events %q", got)
			}
			if r.facts.Len() > 0 {
				t.Errorf("%d facts", r.facts.Len())
			}
		})
	}
}

// down records whether all zones are down, as the fleet has it.
func (r *rig) down(down bool, since time.Time) {
	r.Helper()
	_, err := r.role.zones.topic.Update(r.Context(), allZones, func(m *millracev1.NodeZones) bool {
		m.Down, m.Since = down, timestamppb.New(since)
		return true
	})
	if err != nil {
		r.Fatal(err)
	}
	r.eventually("the fact is known", func() bool {
		fact, _ := r.role.zones.view.Fact(allZones)
		return fact.GetDown() == down && fact.GetSince().AsTime().Equal(since)
	})
}

// Section 6: "all now full, not all before: remove both NoExecute taints from every
// node", and nobody is tainted while that is so.
func TestAllZonesDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, briefly)
	a := r.make("a", in("a"), gone, bears(unreachable, noExec), bears("example.com/x", noExec))
	b := r.make("b", in("b"), sick, bears(notReady, noSched))
	r.silent(time.Hour, a.Name)
	r.eventually("it is recorded that all zones are down", r.role.zones.down)
	fact, _ := r.role.zones.view.Fact(allZones)
	if since := fact.GetSince().AsTime(); !since.Equal(later) {
		t.Errorf("since %s, want %s", since, later)
	}
	r.eventually("both nodes are woken", func() bool {
		woken := r.p.Wakes()
		return strings.Contains(woken, a.Name) && strings.Contains(woken, b.Name)
	})
	r.settle(r.key("a"), r.key("b"))
	if got := r.taints("a"); got != "unreachable:NoSchedule example.com/x:NoExecute" {
		t.Errorf("taints of a: %q", got)
	}
	if got := r.taints("b"); got != "not-ready:NoSchedule" {
		t.Errorf("taints of b: %q", got)
	}
	if r.line.all() > 0 {
		t.Errorf("tokens were asked for: %v", r.line.asked)
	}
}

// Section 6: "not all full now, all full before: … (a full grace for all)".
// Architecture 8: no token unless the record says up for at least one grace period.
func TestAfterAllZonesWereDownEverybodyHasAGracePeriod(t *testing.T) {
	t.Parallel()
	r := newRig(t, briefly)
	r.make("back", in("a"), healthy)
	silent := r.make("silent", in("b"), healthy)
	unknown := r.make("unknown", in("b"), gone)
	not := r.make("not", in("b"), sick, bears(notReady, noSched))
	r.down(false, later)
	r.silent(time.Hour, silent.Name, unknown.Name)
	r.silent(0, not.Name)
	keys := map[string]time.Duration{"silent": 0, "unknown": 50 * time.Second, "not": 50 * time.Second}
	r.writes()
	for name, want := range keys {
		if after := r.run(r.key(name)).After; after != want {
			t.Errorf("%s is looked at again in %s, want %s", name, after, want)
		}
	}
	r.pass(49 * time.Second)
	for name := range keys {
		r.run(r.key(name))
	}
	if got := r.writes(); got != "" || r.line.all() > 0 {
		t.Errorf("within the grace it wrote %q, and asked for %d tokens", got, r.line.all())
	}
	r.pass(time.Second)
	for name := range keys {
		r.run(r.key(name))
	}
	if got := r.writes(); got != "PATCH nodes/status PATCH nodes" {
		t.Errorf("after the grace it wrote %q, want the silent one", got)
	}
	r.eventually("a token is asked for", func() bool { return r.line.asks(zoneB, 0.1) > 0 })
}

// While the record says down nobody is tainted, whatever this member sees: the
// others may not have seen the node that has come back.
func TestTheRecordCountsAndNotOnlyTheOwnView(t *testing.T) {
	t.Parallel()
	r := newRig(t, briefly)
	r.p.Refuses(func(d controller.Danger) error { // so that the rig does not put the record right
		if d == controller.Destructive {
			return controller.ErrStale
		}
		return nil
	})
	r.down(true, then)
	r.make("back", in("a"), healthy)
	n := r.make("n", in("b"), gone)
	tainted := r.make("tainted", in("b"), gone, bears(unreachable, noExec))
	r.silent(time.Hour, n.Name, tainted.Name)
	r.writes()
	if after := r.run(r.key("n")).After; after <= 0 || after > soon {
		t.Errorf("it is looked at again in %s, want soon", after)
	}
	r.run(r.key("tainted"))
	if got := r.writes(); got != "" || r.line.all() > 0 {
		t.Errorf("it wrote %q and asked for %d tokens", got, r.line.all())
	}
}

// The record of the other edge, once a node is back.
func TestOneNodeIsBack(t *testing.T) {
	t.Parallel()
	r := newRig(t, briefly)
	n := r.make("n", gone)
	r.silent(time.Hour, n.Name)
	r.eventually("down is recorded", r.role.zones.down)
	r.pass(time.Hour)
	r.kubelet("n", "True", later)
	r.silent(0, n.Name)
	r.echo(r.key("n"))
	r.eventually("up is recorded", func() bool { return !r.role.zones.down() })
	fact, _ := r.role.zones.view.Fact(allZones)
	if since := fact.GetSince().AsTime(); !since.Equal(later.Add(time.Hour)) {
		t.Errorf("since %s, want %s", since, later.Add(time.Hour))
	}
}

// ⚠ A node that was looked at while the count said "all down" must be looked at
// again, also where that ended before anybody recorded it.
func TestNobodyIsForgottenThatWasPassedOverWhileAllWereDown(t *testing.T) {
	t.Parallel()
	r := newRig(t, briefly)
	r.p.Refuses(func(d controller.Danger) error {
		if d == controller.Destructive {
			return controller.ErrStale // nobody can record it
		}
		return nil
	})
	back := r.make("back", gone)
	n := r.make("n", gone)
	r.silent(time.Hour, back.Name, n.Name)
	result := r.run(r.key("n"))
	r.kubelet("back", "True", later)
	r.echo(r.key("back"))
	if result.After <= 0 || result.After > 5*time.Second {
		t.Errorf("nobody looks at the node again: %v", result)
	}
}

// Architecture 7: a node that beats again and has not said so yet is not tainted,
// nor one of whose beats nothing is known; one that says itself that it is not ready
// beats, of course.
func TestNoExecuteOnSilenceThatLasts(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node  []nodeOption
		told  func(r *rig, n string)
		asked bool
	}{
		"Unknown and silent":             {[]nodeOption{gone}, func(r *rig, n string) { r.silent(time.Hour, n) }, true},
		"Unknown and beating":            {[]nodeOption{gone}, func(r *rig, n string) { r.silent(time.Second, n) }, false},
		"Unknown and nothing is known":   {[]nodeOption{gone}, func(r *rig, _ string) { r.hush(4 * time.Second) }, false},
		"not ready and beating":          {[]nodeOption{sick, bears(notReady, noSched)}, func(r *rig, n string) { r.silent(0, n) }, true},
		"not ready and nothing is known": {[]nodeOption{sick, bears(notReady, noSched)}, func(r *rig, _ string) { r.hush(4 * time.Second) }, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, briefly)
			r.make("well", healthy)
			n := r.make("n", tt.node...)
			tt.told(r, n.Name)
			result := r.run(r.key("n"))
			if tt.asked {
				r.eventually("a token is asked for", func() bool { return r.line.all() > 0 })
				return
			}
			if result.After <= 0 {
				t.Error("nobody looks at it again")
			}
			time.Sleep(100 * time.Millisecond) // ten times what is waited before a token
			if r.line.all() > 0 {
				t.Error("a token was asked for")
			}
		})
	}
}

// Section 10, "Labels", on the server, with the taint in the same write.
func TestLabelsAndTaintsInOneWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", healthy, unschedulable, labelled(corev1.LabelOSStable, "linux", "beta.kubernetes.io/os", "plan9", corev1.LabelArchStable, "arm64", "example.com/x", "y"))
	r.silent(0, n.Name)
	r.writes()
	r.run(r.key("n"))
	if got := r.writes(); got != "PATCH nodes" {
		t.Errorf("wrote %q", got)
	}
	after := r.live("n")
	want := map[string]string{
		corev1.LabelOSStable: "linux", "beta.kubernetes.io/os": "linux", corev1.LabelArchStable: "arm64", "beta.kubernetes.io/arch": "arm64", "example.com/x": "y",
	}
	if diff := cmp.Diff(want, after.Labels); diff != "" || said(after.Spec.Taints) != "unschedulable:NoSchedule" {
		t.Errorf("taints %q, labels -want +got:\n%s", said(after.Spec.Taints), diff)
	}
	added, _ := find(after, cordoned, noSched)
	if added.TimeAdded == nil || !added.TimeAdded.Time.Equal(later) {
		t.Errorf("timeAdded %v, want %s", added.TimeAdded, later)
	}
	r.settle(r.key("n"))
	r.Put(t, r.edit("n", func(n *corev1.Node) { n.Spec.Unschedulable = false }))
	r.run(r.key("n"))
	if got := r.taints("n"); got != "" {
		t.Errorf("uncordoned: %q", got)
	}
}

// Section 3.1: "on failure the node is not re-queued": we retry. A conflict is
// decided anew on a live look, and somebody else's taint survives it.
func TestAFailedTaintIsTriedAgain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", healthy, unschedulable)
	r.silent(0, n.Name)
	tries := 0
	r.wire.Meets(func(q *http.Request) int {
		if q.Method != http.MethodPatch {
			return 0
		}
		if tries++; tries == 1 {
			return http.StatusInternalServerError
		}
		if tries == 2 { // somebody else is quicker
			r.edit("n", func(n *corev1.Node) {
				n.Spec.Taints = append(n.Spec.Taints, corev1.Taint{Key: "example.com/x", Effect: noSched})
			})
		}
		return 0
	})
	if _, err := r.reconcile(r.key("n")); classify(err) != controller.Retry {
		t.Errorf("Reconcile() = %v, want a failure that is retried", err)
	}
	if _, err := r.reconcile(r.key("n")); classify(err) != controller.Conflict {
		t.Errorf("Reconcile() = %v, want a conflict", err)
	}
	if _, err := r.reconcile(r.key("n")); err != nil {
		t.Error(err)
	}
	if got := r.taints("n"); got != "example.com/x:NoSchedule unschedulable:NoSchedule" {
		t.Errorf("taints %q", got)
	}
}

// Issue: "Taint removed by hand from a dead node comes back (NoExecute through the
// bucket)".
func TestATaintThatWasRemovedByHandComesBack(t *testing.T) {
	t.Parallel()
	r := doomed(t, gone, bears(unreachable, noExec))
	r.Put(t, r.edit("n", func(n *corev1.Node) { n.Spec.Taints = nil }))
	r.settle(r.key("n"))
	if got := r.taints("n"); got != "unreachable:NoSchedule" {
		t.Errorf("taints %q, want that of its condition at once", got)
	}
	r.grant("n")
	if got := r.taints("n"); got != "unreachable:NoSchedule unreachable:NoExecute" {
		t.Errorf("taints %q", got)
	}
}

// No stripping at a restart or take-over (upstream does, section 4.4): the taints
// of a node that is sick stay as they are.
func TestATakeOverTakesNoTaintAway(t *testing.T) {
	t.Parallel()
	r := doomed(t, gone, bears(unreachable, noExec))
	told := r.live("n")
	if err := r.rec.Close(); err != nil {
		t.Fatal(err)
	}
	r.start(defaults())
	r.Put(t, r.live("well"), told)
	r.p.MustReadLive(r.key("n"))
	r.wire.Writes()
	r.run(r.key("n"))
	if got := r.writes(); got != "" {
		t.Errorf("wrote %q", got)
	}
}
