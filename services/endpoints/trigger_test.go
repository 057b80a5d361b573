package endpoints

import (
	"net/http"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// after makes a pod ready d after the service was created.
func after(d time.Duration) func(*corev1.Pod) { return readyAt(metav1.NewTime(at(d))) }

// stamps returns the trigger times of a service's slices, "-" for none.
func (r *rig) stamps(service string) (out []string) {
	for _, s := range r.slicesOf(service) {
		stamp, ok := s.Annotations[corev1.EndpointsLastChangeTriggerTime]
		if !ok {
			stamp = "-"
		}
		out = append(out, stamp)
	}
	return out
}

func (r *rig) expectStamp(when, want string) {
	r.Helper()
	if got := r.stamps("web"); len(got) != 1 || got[0] != want {
		r.Errorf("%s: trigger times %v, want %s", when, got, want)
	}
}

func TestTriggerTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.put(r.service("web"), r.pod("web", 0, after(time.Second)))
	r.sync("web")
	r.expectStamp("D7: first sight: the service's creation", "2026-01-01T00:00:00Z")

	r.put(r.pod("web", 0, after(3*time.Second), unready), r.pod("web", 1, after(2*time.Second)))
	r.sync("web")
	r.expectStamp("D7: later: the earliest that is new", "2026-01-01T00:00:02Z")

	r.put(r.pod("web", 2, after(time.Second)))
	r.sync("web")
	r.expectStamp("D7: a pod never seen counts, however old", "2026-01-01T00:00:01Z")

	r.drop(r.pod("web", 2))
	r.sync("web")
	r.expectStamp("D7: a pod that goes is no trigger: the annotation goes", "-")

	r.put(r.pod("web", 0, after(9*time.Second)))
	r.put(r.service("web", func(s *corev1.Service) { labelled("a", "b")(s) }))
	r.wire.Answer(http.MethodPut, http.StatusInternalServerError)
	if err := r.reconcile("web"); err == nil {
		t.Fatal("Reconcile() = nil, want an error")
	}
	r.wire.Answer("", 0)
	r.sync("web")
	r.expectStamp("beyond D7: a sync that failed does not swallow it", "2026-01-01T00:00:09Z")

	r.put(r.service("web", func(s *corev1.Service) { labelled("a", "c")(s) }))
	r.sync("web")
	r.expectStamp("and it is told once", "-")

	r.drop(r.service("web"))
	r.sync("web")
	r.put(r.service("web", func(s *corev1.Service) { s.UID, s.CreationTimestamp = "again", metav1.NewTime(at(time.Hour)) }))
	r.sync("web")
	r.expectStamp("D2.1: a service made anew is seen for the first time", "2026-01-01T01:00:00Z")
}

// Contract 3, part H: after a fail-over upstream writes the service's creation.
func TestTriggerTimeAfterAClaim(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(r *rig)
		cached bool // the successor's cache holds the slice
		want   string
	}{
		"a pod that changed meanwhile":                        {func(r *rig) { r.put(r.pod("web", 0, after(time.Minute), unready)) }, true, "2026-01-01T00:01:00Z"},
		"the same, and the slice is found by the live read":   {func(r *rig) { r.put(r.pod("web", 0, after(time.Minute), unready)) }, false, "2026-01-01T00:01:00Z"},
		"only a label changed: nothing is newer, and it goes": {func(r *rig) { r.put(r.service("web", func(s *corev1.Service) { labelled("a", "b")(s) })) }, true, "-"},
		"only a label changed, and the slice is found live":   {func(r *rig) { r.put(r.service("web", func(s *corev1.Service) { labelled("a", "b")(s) })) }, false, "-"},
		"another service of the name: its creation, as if unseen": {func(r *rig) {
			r.put(r.service("web", func(s *corev1.Service) { s.UID, s.CreationTimestamp = "again", metav1.NewTime(at(time.Hour)) }))
		}, true, "2026-01-01T01:00:00Z"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			world := []object{r.service("web"), r.pod("web", 0), r.pod("web", 1, after(time.Second))}
			r.put(world[:2]...)
			r.sync("web")
			r.put(world[2])
			r.sync("web")
			r.expectStamp("before", "2026-01-01T00:00:01Z")

			r.start(100) // another process
			r.put(world...)
			if tt.cached {
				r.echo()
			}
			r.p.live[r.key("web")] = true
			tt.change(r)
			r.sync("web")
			r.expectStamp("after", tt.want)
		})
	}
}

// A first sync that fails must not forget that it was the first.
func TestTriggerTimeOfAFirstSyncThatFails(t *testing.T) {
	t.Parallel()
	t.Run("of a new service", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 100)
		r.put(r.service("web"), r.pod("web", 0, after(time.Minute)))
		r.wire.Answer(http.MethodPost, http.StatusInternalServerError)
		if err := r.reconcile("web"); err == nil {
			t.Fatal("Reconcile() = nil, want an error")
		}
		r.wire.Answer("", 0)
		r.sync("web")
		r.expectStamp("D7", "2026-01-01T00:00:00Z")
	})
	t.Run("after a claim", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 100)
		r.put(r.service("web"), r.pod("web", 0))
		r.sync("web")
		r.start(100)
		r.put(r.service("web"), r.pod("web", 0, after(time.Minute), unready))
		r.p.live[r.key("web")] = true
		r.wire.Answer(http.MethodGet, http.StatusInternalServerError) // the live read fails
		if err := r.reconcile("web"); err == nil {
			t.Fatal("Reconcile() = nil, want an error")
		}
		r.wire.Answer("", 0)
		r.sync("web")
		r.expectStamp("H", "2026-01-01T00:01:00Z")
	})
}

// A pod on an unknown node fails every sync for as long as it takes; what the
// other pods' writes told is told all the same.
func TestTriggerTimeBesideAnUnknownNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.put(r.service("web"), r.pod("web", 0), r.pod("web", 1))
	r.sync("web")
	r.put(r.pod("web", 2, on("gone"), after(time.Second)), r.pod("web", 0, unready, after(time.Minute)))
	if err := r.reconcile("web"); err == nil {
		t.Fatal("Reconcile() = nil, want an error")
	}
	r.expectStamp("D7: the earliest", "2026-01-01T00:00:01Z")
	r.echo()
	r.put(r.pod("web", 0, after(time.Hour)))
	if err := r.reconcile("web"); err == nil {
		t.Fatal("Reconcile() = nil, want an error")
	}
	r.expectStamp("D7: the one that is new", "2026-01-01T01:00:00Z")
}

// What comes while the inputs catch up with a live read is a trigger too.
func TestTriggerTimeOfWhatComesLate(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.put(r.service("web"), r.pod("web", 0))
	r.sync("web")
	r.p.live[r.key("web")] = true
	r.p.late = func() { r.put(r.pod("web", 2, after(time.Second))) }
	r.put(r.pod("web", 1, after(time.Minute)))
	r.sync("web")
	r.expectStamp("D7: the earliest", "2026-01-01T00:00:01Z")
}

// The annotation is no reason to write.
func TestATriggerTimeAloneIsNotWritten(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.put(r.service("web"), r.pod("web", 0))
	r.sync("web")
	r.put(r.pod("web", 0, after(time.Hour))) // was unready for a moment
	r.wire.Take()
	r.sync("web")
	if got := r.writes(); got != "" {
		t.Errorf("wrote %s", got)
	}
	r.edit(r.slicesOf("web")[0].Name, func(s *discoveryv1.EndpointSlice) {
		s.Annotations[corev1.EndpointsLastChangeTriggerTime] = "soon"
	})
	r.echo()
	r.sync("web")
	if got := r.writes(); got != "" {
		t.Errorf("wrote %s", got)
	}
}
