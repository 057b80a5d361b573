package nodelifecycle

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/controller"
)

// newEventRig is a rig whose events are written to the server.
func newEventRig(t *testing.T) *rig {
	t.Helper()
	r := newRig(t)
	if err := r.rec.Close(); err != nil {
		t.Fatal(err)
	}
	events, stop := r.api.Recorder(component)
	t.Cleanup(stop)
	r.events = events
	r.start(defaults())
	return r
}

// eventsOf returns what stands on the server about an object: "Normal Reason" and
// how often.
func (r *rig) eventsOf(namespace, uid string) (out []string) {
	r.Helper()
	list, err := r.admin.CoreV1().Events(namespace).List(r.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + uid})
	if err != nil {
		r.Fatal(err)
	}
	for i := range list.Items {
		e := &list.Items[i]
		if e.Source.Component != "node-controller" {
			r.Errorf("source %q", e.Source.Component)
		}
		out = append(out, fmt.Sprintf("%s %s x%d", e.Type, e.Reason, max(1, e.Count)))
	}
	slices.Sort(out)
	return out
}

func (r *rig) awaitEvents(namespace, uid string, want ...string) {
	r.Helper()
	slices.Sort(want)
	r.eventually("events "+strings.Join(want, ", "), func() bool { return slices.Equal(r.eventsOf(namespace, uid), want) })
}

// Section 8 and section 10, "New node -> exactly one RegisteredNode event with the
// node's UID": over restarts and members too, for it is a fact of the UID. Upstream
// says it again at each start: docs/parity.md.
func TestEventsCarryTheUID(t *testing.T) {
	t.Parallel()
	r := newEventRig(t)
	n := r.make("n", healthy)
	r.run(r.key("n"), r.key("n"))
	r.awaitEvents("default", string(n.UID), "Normal RegisteredNode x1")

	if err := r.rec.Close(); err != nil { // another member takes over
		t.Fatal(err)
	}
	r.start(defaults())
	r.Put(t, n)
	r.run(r.key("n"))
	p := r.pod("p", "n", "Ready", "True")
	r.silent(time.Minute, n.Name)
	r.settle(r.key("n"))
	r.settle(r.podKey("p"))
	r.awaitEvents("default", string(n.UID), "Normal NodeNotReady x1", "Normal RegisteredNode x1")
	r.awaitEvents(r.ns, string(p.UID), "Warning NodeNotReady x1")

	again := r.recreate("n", healthy)
	r.Put(t, again)
	r.run(r.key("n"))
	r.awaitEvents("default", string(again.UID), "Normal RegisteredNode x1")
	if err := r.admin.CoreV1().Nodes().Delete(t.Context(), again.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.Drop(r.TB, again)
	for range 2 {
		if _, err := r.reconcile(r.key("n")); err != nil {
			t.Fatal(err)
		}
	}
	r.awaitEvents("default", string(again.UID), "Normal RegisteredNode x1", "Normal RemovingNode x1")
}

// Section 4.5: no event when the kubelet itself says not ready, nor for one that was
// not ready when it fell silent.
func TestNodeNotReadyIsOfWhoWasReady(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node []nodeOption
		age  time.Duration
		want bool
	}{
		"its kubelet says so":             {[]nodeOption{sick}, 0, false},
		"silent after it said not ready":  {[]nodeOption{sick}, time.Hour, false},
		"silent and never said anything":  {nil, time.Hour, false},
		"silent after it said ready":      {[]nodeOption{healthy}, time.Hour, true},
		"Unknown already, whoever did it": {[]nodeOption{unheard}, time.Hour, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.make("well", healthy)
			n := r.make("n", tt.node...)
			r.silent(tt.age, n.Name)
			r.run(r.key("n"), r.key("n"))
			if has := strings.Contains(strings.Join(r.told(), "\n"), "Normal NodeNotReady"); has != tt.want {
				t.Errorf("event: %v, want %v", has, tt.want)
			}
		})
	}
}

// An event is told by who may write: not by a member that has lost the node, nor
// while the role is paused.
func TestNoEventFromWhoMayNotWrite(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	n := r.make("n", healthy)
	r.p.Refuses(func(controller.Danger) error { return controller.ErrNotHolder })
	if _, err := r.reconcile(r.key("n")); err != nil {
		t.Error(err)
	}
	r.Drop(r.TB, n)
	if _, err := r.reconcile(r.key("n")); err != nil {
		t.Error(err)
	}
	if got := r.told(); got != nil || r.facts.Len() > 0 {
		t.Errorf("events %q, %d facts", got, r.facts.Len())
	}
}
