package endpoints

import (
	"errors"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
)

// In shadow mode nothing leaves, everything is told, and what would have become
// of the slices is compared with what becomes of them, however they are packed.
func TestShadowHoldsBackAndCompares(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	pods := r.fleet("web", 0, 5)
	r.put(r.service("web"))
	r.wire.Take()
	r.p.refuse = controller.ErrShadow
	if err := r.reconcile("web"); !errors.Is(err, controller.ErrShadow) || classify(err) != controller.Shadow {
		t.Fatalf("Reconcile() = %v, want ErrShadow", err)
	}
	if left := r.wire.Take(); len(left) != 0 {
		t.Errorf("these left: %v", left)
	}
	if len(r.p.told) != 2 || !r.p.told[0].Shadow || r.p.told[0].Verb != "create" || len(r.p.wrote) != 0 {
		t.Errorf("told %+v, to be waited for %v; want two creations held back", r.p.told, r.p.wrote)
	}
	want := r.p.intended[r.key("web")]
	if len(want) != 5 {
		t.Fatalf("intended %v, want five endpoints", want)
	}
	if d := compareSlices(r.p, r.key("web"), want); len(d) != 5 {
		t.Errorf("compared with nothing: %v, want five differences", d)
	}

	t.Log("another controller makes the same, in one slice")
	r.start(100)
	r.put(r.service("web"))
	for _, pod := range pods {
		r.put(pod)
	}
	r.sync("web")
	if got := r.sizes("web"); got != "5" {
		t.Fatalf("slices of %s endpoints, want 5", got)
	}
	if d := compareSlices(r.p, r.key("web"), want); len(d) != 0 {
		t.Errorf("differences %v, want none", d)
	}

	t.Log("and something else of one endpoint, and one too many")
	r.edit(r.slicesOf("web")[0].Name, func(s *discoveryv1.EndpointSlice) {
		no := false
		s.Endpoints[0].Conditions.Ready = &no
		s.Endpoints = append(s.Endpoints, *s.Endpoints[1].DeepCopy())
		s.Endpoints[5].Addresses = []string{"10.255.255.1"}
	})
	r.echo()
	if d := compareSlices(r.p, r.key("web"), want); len(d) != 2 {
		t.Errorf("differences %v, want two", d)
	}
}

// Every write is on record with the change that asked for it, one that was
// refused with its class; the inputs begin with what changed.
func TestWritesAreRecorded(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	pods := r.fleet("web", 0, 3)
	r.put(r.service("web"))
	r.p.cause = &controller.Cause{Message: event.Message{Kind: "pods", Key: event.Key{Namespace: r.ns, Name: pods[2].Name}}}
	r.sync("web")
	slice := r.slicesOf("web")[0]
	if len(r.p.told) != 1 {
		t.Fatalf("told of %+v, want one creation", r.p.told)
	}
	d := r.p.told[0]
	if d.Verb != "create" || d.Rule != ruleSlices || d.Object.Key.Name != slice.Name || d.Object.UID != string(slice.UID) || d.Shadow || len(d.Body) == 0 {
		t.Errorf("told of %+v", d)
	}
	var order []string
	for _, in := range d.Inputs {
		order = append(order, string(in.Kind)+" "+in.Key.Name)
	}
	if len(order) != 4 || order[0] != "pods "+pods[2].Name || order[1] != "services web" {
		t.Errorf("inputs are %q, want what changed first, then the service", order)
	}

	t.Log("another has written meanwhile")
	r.edit(slice.Name, func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = "y" })
	r.p.told = nil
	r.drop(pods[0])
	if err := r.reconcile("web"); classify(err) != controller.Conflict {
		t.Fatalf("Reconcile() = %v, want a conflict", err)
	}
	if len(r.p.told) != 1 || r.p.told[0].Class != "conflict" || r.p.told[0].Err == nil || r.p.told[0].Object.Version != 0 {
		t.Errorf("told of %+v, want one update refused", r.p.told)
	}
}
