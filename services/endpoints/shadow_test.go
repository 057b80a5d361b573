package endpoints

import (
	"errors"
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-io/millrace/shared/controller"
)

// In shadow mode nothing leaves, everything is told, and what would have become
// of the slices is compared with what becomes of them, however they are packed.
func TestShadowHoldsBackAndCompares(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	pods := r.fleet("web", 0, 5)
	r.put(r.service("web"))
	r.wire.take()
	r.p.refuse = controller.ErrShadow
	if err := r.reconcile("web"); !errors.Is(err, controller.ErrShadow) || classify(err) != controller.Shadow {
		t.Fatalf("Reconcile() = %v, want ErrShadow", err)
	}
	if left := r.wire.take(); len(left) != 0 {
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
