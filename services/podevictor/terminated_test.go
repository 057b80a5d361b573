package podevictor

import (
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// B2 and B6, collection 1: which of the pods that have ended go, and in which order.
func TestExcess(t *testing.T) {
	t.Parallel()
	pod := func(name string, age int, phase corev1.PodPhase, reason string) *corev1.Pod {
		made := metav1.NewTime(time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC).Add(-time.Duration(age) * time.Minute))
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "n", Name: name, CreationTimestamp: made},
			Status:     corev1.PodStatus{Phase: phase, Reason: reason},
		}
	}
	const failed, succeeded, running = corev1.PodFailed, corev1.PodSucceeded, corev1.PodRunning
	tests := map[string]struct {
		pods []*corev1.Pod
		keep int
		want []string
	}{
		"the two oldest of three":              {[]*corev1.Pod{pod("a", 3, failed, ""), pod("b", 2, succeeded, ""), pod("c", 1, failed, "")}, 1, []string{"a", "b"}},
		"one that runs does not count":         {[]*corev1.Pod{pod("a", 3, running, ""), pod("b", 2, succeeded, ""), pod("c", 1, failed, "")}, 1, []string{"b"}},
		"the older of two":                     {[]*corev1.Pod{pod("a", 2, failed, ""), pod("b", 1, succeeded, "")}, 1, []string{"a"}},
		"fewer than are kept":                  {[]*corev1.Pod{pod("a", 2, failed, ""), pod("b", 1, succeeded, "")}, 5, nil},
		"what a kubelet put out goes first":    {[]*corev1.Pod{pod("a", 3, failed, ""), pod("b", 2, succeeded, ""), pod("c", 1, failed, "Evicted")}, 1, []string{"c", "a"}},
		"and alone if that is enough":          {[]*corev1.Pod{pod("a", 3, running, ""), pod("b", 2, succeeded, ""), pod("c", 1, failed, "Evicted")}, 1, []string{"c"}},
		"a reason counts only where it failed": {[]*corev1.Pod{pod("a", 2, succeeded, ""), pod("b", 1, succeeded, "Evicted")}, 1, []string{"a"}},
		"the empty phase has ended":            {[]*corev1.Pod{pod("a", 2, "", ""), pod("b", 1, succeeded, "")}, 1, []string{"a"}},
		"neither pending nor unknown has":      {[]*corev1.Pod{pod("a", 2, corev1.PodPending, ""), pod("b", 1, corev1.PodUnknown, "")}, 1, nil},
		"of the same age by name":              {[]*corev1.Pod{pod("b", 1, succeeded, ""), pod("a", 1, succeeded, "")}, 1, []string{"a"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var got []string
			for _, p := range excess(slices.DeleteFunc(tt.pods, func(p *corev1.Pod) bool { return !finished(p) }), tt.keep) {
				got = append(got, p.Name)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("%q go, want %q", got, tt.want)
			}
		})
	}
}

func BenchmarkExcess(b *testing.B) {
	all := make([]*corev1.Pod, 20000)
	for i := range all {
		at := metav1.NewTime(time.Unix(int64(i*7919%20000), 0))
		all[i] = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(i), CreationTimestamp: at}, Status: corev1.PodStatus{Phase: corev1.PodSucceeded}}
	}
	for b.Loop() {
		if len(excess(slices.Clone(all), 12500)) != 7500 {
			b.Fatal("another number")
		}
	}
}
