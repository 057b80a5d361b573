package podevictor

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-io/millrace/shared/controller"
)

// explained is what `millrace explain pod` says here; the frame hands in its own
// partition, which no test can make.
func (r *rig) explained(pod string) []string { return r.role.explainOf(r.rec, r.key(pod)) }

// What is still to be done, as `millrace evictions` lists it: which pod, by what, when,
// and what it waits for; the soonest first.
func TestPending(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", bad("a", r.at(0)))
	r.pod("late", "n", tol("a", 300), boundNow(r))
	r.pod("soon", "n", tol("a", 60), boundNow(r))
	r.pod("never", "n", tol("a"))
	orphan := r.pod("orphan", "never-was")
	for _, pod := range []string{"late", "soon", "never", "orphan"} {
		r.run(pod)
	}
	var got []string
	for _, p := range r.role.pending() {
		got = append(got, strings.Join([]string{p.Object.Key.Name, strings.TrimPrefix(p.Node, r.ns+"-"), p.Why, p.Due.Sub(r.at(0)).Round(second).String(), p.Waiting}, ", "))
	}
	want := []string{
		"orphan, never-was, its node is gone, 40s, quarantine",
		"soon, n, taint a:NoExecute, tolerated for 1m0s, 1m0s, time",
		"late, n, taint a:NoExecute, tolerated for 5m0s, 5m0s, time",
	}
	if !slices.Equal(got, want) {
		t.Errorf("pending\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if p := r.waiting("orphan"); p.Object.Kind != pods || p.Object.UID != string(orphan.UID) {
		t.Errorf("%+v", p.Object)
	}
	if got := r.counted("millrace_podevictor_pending"); got != 3 {
		t.Errorf("%g pending", got)
	}
}

// What a pod is told about itself.
func TestExplain(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", bad("a", r.at(0)))
	r.pod("p", "n", tol("a", 300), boundNow(r))
	r.pod("stays", "n", tol("a"))
	r.run("p")
	r.run("stays")
	r.pass(100 * second)
	if got := join(r.explained("p")); got != "to be deleted (taint-eviction): taint a:NoExecute, tolerated for 5m0s; due at "+r.at(300*second).UTC().Format(time.RFC3339)+", in 3m20s; waits for time" {
		t.Errorf("explained %q", got)
	}
	if got := join(r.explained("stays")); got != "not to be deleted" {
		t.Errorf("explained %q", got)
	}
	r.pass(210 * second)
	r.p.Refuses(paused)
	_, _ = r.reconcile("p")
	if got := join(r.explained("p")); !contains(got, "due since 10s; waits for pause") {
		t.Errorf("explained %q", got)
	}
}

// A pod that a live look spares waits for the cache to show why, whatever it waited
// for before.
func TestASparedPodWaitsForTheCache(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(r *rig){
		"at once": func(*rig) {},
		"after a failure": func(r *rig) {
			r.wire.Answer(http.MethodGet, http.StatusInternalServerError)
			_, _ = r.reconcile("p")
			r.wire.Answer("", 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n", untimed("a"))
			r.pod("p", "n")
			before(r)
			r.secretly("n")
			if after := r.run("p"); after <= 0 || r.waiting("p").Waiting != waitsFreshness {
				t.Errorf("after %s: %+v", after, r.waiting("p"))
			}
		})
	}
}

// What is remembered of one pod says nothing of the next of its name.
func TestAnotherPodOfTheName(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", bad("a", r.at(0)))
	r.pod("p", "n", tol("a", 300), boundNow(r))
	r.run("p")
	r.force("p")
	r.pod("p", "n", tol("a"))
	if after := r.run("p"); after != 0 || r.waiting("p").Waiting != "" {
		t.Errorf("after %s: %+v", after, r.waiting("p"))
	}
	r.pass(time.Hour)
	r.run("p")
	if got := r.fate("p"); got != "stays" {
		t.Errorf("the pod %s", got)
	}
}

// Who gives a partition up has nothing to do any more.
func TestGivingUpAPartition(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n", tol("a", 300))
	r.run("p")
	if err := r.rec.Close(); err != nil {
		t.Fatal(err)
	}
	if got := r.role.pending(); len(got) > 0 {
		t.Errorf("%+v", got)
	}
	if got := r.told(); got != nil {
		t.Errorf("events %q: the next holder goes on", got)
	}
}

// Each kind of wait is a series of the metric, also where nothing waits.
func TestKindsOfWait(t *testing.T) {
	t.Parallel()
	for waiting, want := range map[string]string{"time": "time", "retry: patching: no": "retry", "": ""} {
		if got := kindOfWait(waiting); got != want {
			t.Errorf("kindOfWait(%q) = %q", waiting, got)
		}
	}
	r := newRig(t)
	families, err := r.reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "millrace_podevictor_pending" && len(f.GetMetric()) != 7 {
			t.Errorf("%d kinds", len(f.GetMetric()))
		}
	}
	_ = controller.Pending{} // the words are its
}
