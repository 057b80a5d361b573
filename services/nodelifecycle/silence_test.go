package nodelifecycle

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// healthy is all that a kubelet says.
func healthy(n *corev1.Node) {
	for _, c := range []corev1.NodeConditionType{"MemoryPressure", "DiskPressure", "PIDPressure"} {
		says(c, "False")(n)
	}
	ready(n)
}

func texts(n *corev1.Node) map[corev1.NodeConditionType]corev1.NodeCondition {
	out := map[corev1.NodeConditionType]corev1.NodeCondition{}
	for _, c := range n.Status.Conditions {
		if c.Message != "so" {
			c.Message = "" // ours to choose
		}
		c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(c.LastHeartbeatTime.UTC()), metav1.NewTime(c.LastTransitionTime.UTC())
		out[c.Type] = c
	}
	return out
}

// Section 10, "Status one hour old, then silent -> Ready etc. Unknown, pods
// marked": the conditions exactly, in one write, and the taint that follows.
func TestASilentNodeIsWrittenUnknown(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	before := r.make("n", healthy, says(corev1.NodeNetworkUnavailable, "False"), says("example.com/Frosty", "True"))
	r.pod("p", "n", "Ready", "True", "ContainersReady", "True")
	r.silent(50*time.Second, before.Name)
	r.writes()
	if _, err := r.reconcile(r.key("n")); err != nil {
		t.Fatal(err)
	}
	if got := r.writes(); got != "PATCH nodes/status PATCH nodes" {
		t.Errorf("wrote %q", got)
	}
	want := texts(before)
	for _, c := range []corev1.NodeConditionType{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"} {
		want[c] = corev1.NodeCondition{
			Type: c, Status: "Unknown", Reason: "NodeStatusUnknown",
			LastHeartbeatTime: metav1.NewTime(then), LastTransitionTime: metav1.NewTime(later),
		}
	}
	if diff := cmp.Diff(want, texts(r.live("n"))); diff != "" {
		t.Errorf("conditions, -want +got:\n%s", diff)
	}
	if got := r.taints("n"); got != "unreachable:NoSchedule" {
		t.Errorf("taints %q", got)
	}
	if got := r.p.Rules(); got != "silence taint-by-condition" {
		t.Errorf("recorded %q", got)
	}

	r.echo(r.key("n"))
	r.run(r.podKey("p"))
	if c := byType(r.livePod("p"))["Ready"]; c.Status != "False" {
		t.Errorf("the pod's Ready is %s", c.Status)
	}
	r.settle(r.key("n"), r.podKey("p"))
}

// Section 10, "Fresh status -> no write", and the edge of the grace.
func TestWithinItsGraceANodeIsLeftAlone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", healthy)
	for _, age := range []time.Duration{0, 10 * time.Second, 49 * time.Second} {
		r.silent(age, n.Name)
		r.writes()
		r.run(r.key("n"))
		if writes, reads := r.wire.Writes(); len(writes) > 0 || reads > 1 { // register may look
			t.Errorf("after %s it wrote %v, and read %d times", age, writes, reads)
		}
	}
}

// Section 10, "Node older than startup grace, no status -> four Unknown conditions
// written", and "Node younger than startup grace, no status -> no write". The age
// counts from when a watcher first saw the node, not from its creation: docs/parity.md.
func TestANodeThatHasNeverReported(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n")
	pod := r.pod("p", "n", "ContainersReady", "True")
	r.silent(59*time.Second, n.Name) // beyond the grace of others
	r.writes()
	r.run(r.key("n"))
	if got := r.writes(); got != "" {
		t.Errorf("younger than the startup grace: wrote %q", got)
	}
	r.silent(time.Minute, n.Name)
	r.run(r.key("n"))
	want := map[corev1.NodeConditionType]corev1.NodeCondition{}
	for _, c := range []corev1.NodeConditionType{"Ready", "MemoryPressure", "DiskPressure", "PIDPressure"} {
		want[c] = corev1.NodeCondition{
			Type: c, Status: "Unknown", Reason: "NodeStatusNeverUpdated",
			LastHeartbeatTime: metav1.NewTime(n.CreationTimestamp.UTC()), LastTransitionTime: metav1.NewTime(later),
		}
	}
	if diff := cmp.Diff(want, texts(r.live("n"))); diff != "" {
		t.Errorf("conditions, -want +got:\n%s", diff)
	}
	r.settle(r.key("n"), r.podKey("p"))
	if got := r.livePod("p").ResourceVersion; got != pod.ResourceVersion {
		t.Error("the pod, which has said nothing of Ready, was written to")
	}
	if got := strings.Join(r.told(), "\n"); strings.Contains(got, "NodeNotReady") {
		t.Errorf("events %s: it has never been ready", got)
	}
}

// ⚠ The heartbeat of a node that has never reported is ours: written with its
// conditions, it must not pass for a beat, or NoExecute comes a grace too late.
func TestOurOwnWriteIsNoBeat(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.make("other", healthy)
	n := r.make("n")
	r.silent(time.Minute, n.Name)
	before := r.beatOf(n.Name, 0)
	r.settle(r.key("n"))
	if after := r.beatOf(n.Name, 0); !after.Same(before) {
		t.Errorf("a watcher takes %v for a beat after %v", after, before)
	}
	r.role.checks = newChecks() // as after the 5 s that a look is not repeated in
	if wait := r.run(r.key("n")).After; wait != 0 {
		t.Errorf("the node is looked at again in %s, it should wait for a token", wait)
	}
}

// Section 4.3 (4): only Ready decides whether to write.
func TestPressureConditionsAloneAreNotWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", unheard, says("MemoryPressure", "False"), bears(unreachable, noSched))
	r.make("other", healthy)
	r.silent(time.Hour, n.Name)
	r.writes()
	r.run(r.key("n"))
	if got := r.writes(); got != "" {
		t.Errorf("wrote %q", got)
	}
}

// Section 10, the lease table. Cases are what the watcher has seen and what the API
// server holds; upstream's rest on two passes and the remembered lease.
func TestLeaseTable(t *testing.T) {
	t.Parallel()
	const silence, nothing = "PATCH nodes/status PATCH nodes", ""
	tests := map[string]struct {
		node []nodeOption
		age  time.Duration
		// before and after the watcher's last look
		before, after func(r *rig)
		want          string
	}{
		"lease missing, status old: Unknown":                    {node: []nodeOption{healthy}, age: time.Minute, want: silence},
		"lease missing, status fresh: no write":                 {node: []nodeOption{healthy}, age: time.Second, want: nothing},
		"lease expired, status old: Unknown":                    {node: []nodeOption{healthy}, age: time.Minute, before: renew(then), want: silence},
		"lease renewed, status old: no write":                   {node: []nodeOption{healthy}, age: time.Second, before: renew(then), want: nothing},
		"no status, lease expired: four conditions":             {age: time.Minute, before: renew(then), want: silence},
		"no status, no lease, old: four conditions":             {age: time.Minute, want: silence},
		"no status but lease renewed: no write":                 {age: time.Second, before: renew(then), want: nothing},
		"breaker: digest old, live lease newer: no write":       {node: []nodeOption{healthy}, age: time.Minute, before: renew(then), after: renew(later), want: nothing},
		"breaker: a live lease of an earlier time is one too":   {node: []nodeOption{healthy}, age: time.Minute, before: renew(later), after: renew(then), want: nothing},
		"breaker: a lease that the digest has not seen at all":  {node: []nodeOption{healthy}, age: time.Minute, after: renew(then), want: nothing},
		"breaker: digest old, live status newer: no write":      {node: []nodeOption{healthy}, age: time.Minute, after: func(r *rig) { r.kubelet("n", "True", later) }, want: nothing},
		"breaker: the lease is written, renewTime as it was":    {node: []nodeOption{healthy}, age: time.Minute, before: renew(then), after: renew(then), want: silence},
		"breaker: the node is another one by now: no write":     {node: []nodeOption{healthy}, age: time.Minute, after: func(r *rig) { r.recreate("n", healthy) }, want: nothing},
		"a kubelet that says not ready, and then nothing more":  {node: []nodeOption{sick, bears(notReady, noSched)}, age: time.Minute, want: silence},
		"a node whose lease names a time to come is silent too": {node: []nodeOption{healthy}, age: time.Minute, before: renew(later.Add(100 * time.Hour)), want: silence},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			n := r.make("n", tt.node...)
			if tt.before != nil {
				tt.before(r)
			}
			r.silent(tt.age, n.Name)
			if tt.after != nil {
				tt.after(r)
			}
			r.writes()
			_, err := r.reconcile(r.key("n"))
			if err != nil && classify(err) != controller.Gone {
				t.Fatal(err)
			}
			if got := r.writes(); got != tt.want {
				t.Errorf("wrote %q, want %q", got, tt.want)
			}
		})
	}
}

func renew(at time.Time) func(r *rig) { return func(r *rig) { r.renew("n", at) } }

// recreate makes another node of the same name.
func (r *rig) recreate(name string, options ...nodeOption) *corev1.Node {
	r.Helper()
	if err := r.admin.CoreV1().Nodes().Delete(r.Context(), r.name(name), metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
	n := node(r.name(name), options...)
	n.UID = ""
	status := n.Status
	n, err := r.admin.CoreV1().Nodes().Create(r.Context(), n, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return r.withStatus(n, status)
}

// Section 10, "breaker: second pass skipped until cache catches up": every node of
// the partition waits until the digest shows the beat, and then is judged by it.
func TestAContradictedDigestSuspendsThePartition(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a, b := r.make("n", healthy), r.make("b", healthy)
	r.silent(time.Minute, a.Name, b.Name)
	r.renew("n", later)
	r.writes()
	r.run(r.key("n"), r.key("b"))
	if got := r.writes(); got != "" {
		t.Fatalf("with a digest that is behind it wrote %q", got)
	}
	if c := r.rec.beats.Suspended(); c == "" {
		t.Error("the partition is judged on")
	}
	r.silent(0, a.Name)
	r.silent(time.Minute, b.Name)
	r.run(r.key("n"), r.key("b"))
	if got := r.writes(); got != "PATCH nodes/status PATCH nodes" {
		t.Errorf("once the digest has caught up it wrote %q, want one node's", got)
	}
	if status, _ := statusOf(r.live("b"), corev1.NodeReady); status != "Unknown" {
		t.Errorf("b is %s", status)
	}
}

// Invariant I5 and architecture 7: what is not known is not judged.
func TestWhatIsNotKnownIsNotJudged(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *rig){
		"the last digest is more than 3s old": func(r *rig) { r.hush(4 * time.Second) },
		"a digest of an earlier watcher": func(r *rig) {
			body := digestOf(r, 0)
			r.digests.Digest(0, 1000, body)
		},
		"it is not known whether all zones were down": func(r *rig) {
			r.role.zones = &zoneFact{topic: r.role.zones.topic, view: r.role.zones.topic.View()} // has read nothing
		},
	}
	for name, break_ := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			n := r.make("n", healthy)
			r.silent(time.Hour, n.Name)
			break_(r)
			r.writes()
			r.run(r.key("n"))
			if writes, _ := r.wire.Writes(); len(writes) > 0 {
				t.Errorf("wrote %v", writes)
			}
		})
	}
}

// A digest that names another node of that name says nothing of this one.
func TestANodeMadeAnewIsNotJudgedByItsPredecessor(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", healthy)
	r.silent(time.Hour, n.Name)
	r.Put(t, r.recreate("n", healthy))
	r.wire.Writes()
	r.settle(r.key("n"))
	if status, _ := statusOf(r.live("n"), corev1.NodeReady); status != "True" {
		t.Errorf("the new node is %s", status)
	}
}

// Section 4.3 (3): an update that meets another write is decided anew.
func TestASilentNodeThatIsWrittenToMeanwhile(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		meanwhile func(r *rig)
		want      corev1.ConditionStatus
	}{
		"by somebody else: Unknown all the same":  {func(r *rig) { r.edit("n", func(n *corev1.Node) { n.Annotations = map[string]string{"a": "b"} }) }, "Unknown"},
		"by its kubelet: the beat is not written": {func(r *rig) { r.kubelet("n", "True", later) }, "True"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			n := r.make("n", healthy)
			r.silent(time.Minute, n.Name)
			r.wire.Meets(func(q *http.Request) int {
				if q.Method == http.MethodPatch {
					r.wire.Meets(nil)
					tt.meanwhile(r)
				}
				return 0
			})
			if _, err := r.reconcile(r.key("n")); classify(err) != controller.Conflict {
				t.Errorf("Reconcile() = %v, want a conflict", err)
			}
			if status, _ := statusOf(r.live("n"), corev1.NodeReady); status != "True" {
				t.Errorf("it was written over: %s", status)
			}
			r.role.checks = newChecks() // as after the 5 s that a look is not repeated in
			if _, err := r.reconcile(r.key("n")); err != nil {
				t.Error(err)
			}
			if status, _ := statusOf(r.live("n"), corev1.NodeReady); status != tt.want {
				t.Errorf("it is %s, want %s", status, tt.want)
			}
		})
	}
}

// At most one look per node in 5 s; what harms nobody does not wait for it.
func TestALookIsNotRepeatedAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", healthy)
	r.silent(time.Minute, n.Name)
	r.wire.Meets(func(q *http.Request) int {
		if q.Method == http.MethodPatch && strings.HasSuffix(q.URL.Path, "/status") {
			return http.StatusInternalServerError
		}
		return 0
	})
	if _, err := r.reconcile(r.key("n")); classify(err) != controller.Retry {
		t.Errorf("Reconcile() = %v, want a failure that is retried", err)
	}
	r.Put(t, r.edit("n", func(n *corev1.Node) { n.Spec.Unschedulable = true }))
	r.wire.Writes()
	result, err := r.reconcile(r.key("n"))
	if err != nil || result.After <= 0 || result.After > checkEvery {
		t.Errorf("Reconcile() = %v, %v; want another look within %s", result, err, checkEvery)
	}
	if got := r.writes(); got != "PATCH nodes" {
		t.Errorf("wrote %q, want the taint of a cordoned node", got)
	}
}

// A pause of evictions, stale inputs and shadow mode: what each of them stops.
func TestWhatStopsSilence(t *testing.T) {
	t.Parallel()
	destructive := func(d controller.Danger) error {
		if d >= controller.Destructive {
			return controller.ErrStale
		}
		return nil
	}
	tests := map[string]struct {
		frame func(p *roletest.Partition)
		want  corev1.ConditionStatus
	}{
		"evictions are paused: it is written": {func(p *roletest.Partition) { p.Refuses(evicting) }, "Unknown"},
		"inputs are too old: it is not":       {func(p *roletest.Partition) { p.Refuses(destructive) }, "True"},
		"the partition is not ours": {func(p *roletest.Partition) {
			p.Refuses(func(controller.Danger) error { return controller.ErrNotHolder })
		}, "True"},
		"shadow mode": {func(p *roletest.Partition) { p.Switch("", controller.ModeShadow) }, "True"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			n := r.make("n", healthy)
			r.silent(time.Minute, n.Name)
			tt.frame(r.p)
			_, err := r.reconcile(r.key("n"))
			if (err == nil) != (tt.want == "Unknown") {
				t.Errorf("Reconcile() = %v", err)
			}
			if status, _ := statusOf(r.live("n"), corev1.NodeReady); status != tt.want {
				t.Errorf("it is %s, want %s", status, tt.want)
			}
		})
	}
}

// evicting is a pause of evictions.
func evicting(d controller.Danger) error {
	if d == controller.Evicting {
		return controller.ErrPaused
	}
	return nil
}

// Exact timers: whoever waits is woken when the grace is over, by a digest or
// without one, and a node that is Unknown already is not woken for it.
func TestASilentNodeIsWoken(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	a := r.make("a", healthy)
	b := r.make("b", unheard, bears(unreachable, noSched))
	c := r.make("c", healthy)
	r.silent(51*time.Second, a.Name, b.Name)
	r.silent(10*time.Second, c.Name)
	r.eventually("a is woken", func() bool { return strings.Contains(r.p.Wakes(), a.Name) })
	r.eventually("a is woken again", func() bool {
		woken := r.p.Wakes()
		if strings.Contains(woken, b.Name) || strings.Contains(woken, c.Name) {
			t.Fatalf("woke %s", woken)
		}
		return strings.Contains(woken, a.Name)
	})
}
