package podevictor

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bind puts a pod on a node, as the scheduler does, and tells the role.
func (r *rig) bind(pod, node string) {
	r.Helper()
	to := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod}, Target: corev1.ObjectReference{Kind: "Node", Name: r.name(node)}}
	if err := r.admin.CoreV1().Pods(r.ns).Bind(r.Context(), to, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.echo(pod)
}

// A12, "update: gets bound to a tainted node", where its time counts from then on.
func TestA12GetsBound(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		options []podOption
		want    string
		after   bool
	}{
		"gets bound to tainted node -> delete":      {nil, "PATCH pods/status DELETE pods", false},
		"bound with infinite toleration -> nothing": {[]podOption{tol("a")}, "", false},
		"bound with 100 s -> nothing yet":           {[]podOption{tol("a", 100)}, "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			r.node("n", bad("a", r.at(-time.Hour)))
			r.pod("p", "", append(tt.options, phase(corev1.PodPending))...)
			r.run("p")
			if got := r.writes(); got != "" {
				t.Fatalf("unbound it wrote %q", got)
			}
			r.bind("p", "n")
			after := r.run("p")
			if got := r.writes(); got != tt.want {
				t.Errorf("wrote %q, want %q", got, tt.want)
			}
			if (after > 0) != tt.after || after > 102*second || tt.after && after < 50*second {
				t.Errorf("to be looked at after %s", after)
			}
		})
	}
}

// A12, upstream's timed_workers_test: deadlines of five pods that are looked at twice,
// of which some are cancelled, and some of those come again.
func TestA12TimedWorkers(t *testing.T) {
	t.Parallel()
	const many = 5
	for name, tt := range map[string]struct{ cancelled, again, want int }{
		"five keys without delay, and each twice -> 5":   {0, 0, 5},
		"two of five cancelled -> 3":                     {2, 0, 3},
		"two cancelled and one of them added again -> 4": {2, 1, 4},
	} {
		for _, delay := range []int64{0, 10} {
			if delay == 0 && tt.cancelled > 0 {
				continue // what is done at once cannot be cancelled
			}
			t.Run(fmt.Sprint(name, ", ", delay, " s"), func(t *testing.T) {
				t.Parallel()
				r := newRig(t)
				for i := range many {
					r.node(fmt.Sprint("n", i), bad("a", r.at(0)))
					r.pod(fmt.Sprint("p", i), fmt.Sprint("n", i), tol("a", delay), boundNow(r))
				}
				look := func() (deleted int) {
					for i := range many {
						pod := fmt.Sprint("p", i)
						r.echo(pod)
						r.run(pod)
						r.run(pod)
						if r.fate(pod) != "stays" {
							deleted++
						}
					}
					return deleted
				}
				if got := look(); delay > 0 && got != 0 {
					t.Fatalf("%d deleted before their time", got)
				}
				for i := range tt.cancelled {
					r.taint(fmt.Sprint("n", i))
					r.run(fmt.Sprint("p", i))
				}
				for i := range tt.again {
					r.taint(fmt.Sprint("n", i), bad("a", r.at(0)))
				}
				r.pass(11 * second)
				if got := look(); got != tt.want {
					t.Errorf("%d deleted, want %d", got, tt.want)
				}
			})
		}
	}
}
