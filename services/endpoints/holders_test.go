package endpoints

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// ⚠ Two holders for a moment. The other one has seen a pod become ready and has
// written its slice; here the slice comes, or is read live, before the pod does.
// Whoever decides on that takes the pod out again: a hole.
func TestAPodThatAnotherHolderHasSeenStays(t *testing.T) {
	t.Parallel()
	tests := map[string]func(r *rig, others *discoveryv1.EndpointSlice){
		"its slice came through the stream": func(r *rig, others *discoveryv1.EndpointSlice) { r.put(others) },
		"its slice is met as a conflict":    func(*rig, *discoveryv1.EndpointSlice) {},
	}
	for name, arrive := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			s, pods := r.service("web"), r.fleet("web", 0, 2)
			r.put(s)
			r.sync("web")

			late := r.pod("web", 2)
			others := r.edit(r.list()[0].Name, func(slice *discoveryv1.EndpointSlice) {
				slice.Endpoints = r.slice("x", s, append(pods, late)).Endpoints
			})
			arrive(r, others)
			r.p.late = func() { r.put(late) }
			r.put(r.pod("web", 0, unready)) // something of ours to write
			for range 3 {                   // a conflict comes first, and is answered live
				if r.reconcile("web") == nil {
					break
				}
			}
			if r.p.late != nil {
				t.Fatal("the inputs were not made to catch up")
			}
			if got := r.sizes("web"); got != "3" {
				t.Errorf("slices of %s, want 3: the third pod was taken out again", got)
			}
		})
	}
}

// What this holder has written itself, and what it agrees with, is not strange:
// it costs no live read.
func TestOwnWritesAreNotStrange(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.fleet("web", 0, 2)
	r.put(r.service("web"))
	r.sync("web")
	for i := range 3 {
		r.put(r.pod("web", i%2, unready))
		r.sync("web")
		r.put(r.pod("web", i%2))
		r.sync("web")
	}
	if got := r.count("GET", "read"); got != "" {
		t.Errorf("sent %s, want nothing read live", got)
	}
}
