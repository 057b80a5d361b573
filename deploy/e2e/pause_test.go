package e2e

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// sliceWrites notes when the API server tells of writes of slices.
type sliceWrites struct {
	mu   sync.Mutex
	seen []time.Time
}

func watchSlices(ctx context.Context, t *testing.T, f *fleet.Fleet) *sliceWrites {
	t.Helper()
	w, err := adminClient(f).DiscoveryV1().EndpointSlices("").Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s := &sliceWrites{}
	var tasks sync.WaitGroup
	tasks.Go(func() {
		for e := range w.ResultChan() {
			if _, ok := e.Object.(*discoveryv1.EndpointSlice); ok && e.Type != watch.Bookmark {
				s.mu.Lock()
				s.seen = append(s.seen, time.Now())
				s.mu.Unlock()
			}
		}
	})
	t.Cleanup(func() { w.Stop(); tasks.Wait() })
	return s
}

func (s *sliceWrites) after(at time.Time) (late []time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, seen := range s.seen {
		if seen.After(at) {
			late = append(late, seen.Sub(at))
		}
	}
	return late
}

// A pause reaches every replica within a second, also the writes that wait for
// the rate limiter by then; what waited is done when it ends, without an event.
func TestAPauseReachesEveryReplica(t *testing.T) {
	ctx, f := beginStrict(t, 6*time.Minute)
	// Few requests a second: at any moment writes wait for the limiter.
	_, members := startReady(ctx, t, f, 3, "MILLRACE_KUBE_QPS=8", "MILLRACE_KUBE_BURST=1")
	t.Cleanup(func() { _, _ = f.Run(context.WithoutCancel(ctx), "resume", "endpoints") })
	api := adminClient(f)
	if _, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "millrace"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w := prepare(ctx, t, f, prefixOf(t), 5, 100)
	o := observe(ctx, t, f, w.prefix)
	writes := watchSlices(ctx, t, f)
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx, 900) }()
	eventually(ctx, t, 60*time.Second, "all replicas write", func() (bool, string) {
		for _, m := range members {
			if writesOf(ctx, t, []*fleet.Member{m}) < 3 {
				return false, m.Name + " does not"
			}
		}
		return true, ""
	})

	if out, err := f.Run(ctx, "pause", "endpoints"); err != nil || !strings.Contains(out, "endpoints: paused") {
		t.Fatalf("pausing: %v: %s", err, out)
	}
	at := time.Now()
	eventually(ctx, t, 20*time.Second, "the pause shows", func() (bool, string) {
		s, err := f.Status(ctx)
		return err == nil && slices.Contains(s.Paused, "endpoints"), strings.Join(s.Paused, ",")
	})
	<-done // changes go on for seconds
	if left := time.Until(at.Add(8 * time.Second)); left > 0 {
		time.Sleep(left)
	}
	late := writes.after(at.Add(time.Second))
	t.Logf("writes after the pause: %v; later than a second: %v", writes.after(at), late)
	if len(late) > 0 {
		t.Errorf("%d writes later than a second after the pause", len(late))
	}
	for _, m := range members {
		metrics, err := m.Metrics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if metrics.Sum("millrace_controller_guard_refusals_total", "reason", "paused") == 0 {
			t.Errorf("%s refused nothing: the test shows nothing of it", m.Name)
		}
		if metrics.Sum("millrace_pause_active", "what", "role") != 1 {
			t.Errorf("%s does not tell that it is paused", m.Name)
		}
	}
	ready(ctx, t, members...)

	resumed := time.Now()
	if out, err := f.Run(ctx, "resume", "endpoints"); err != nil {
		t.Fatalf("resuming: %v: %s", err, out)
	}
	o.awaitRest(ctx, t, f, 90*time.Second)
	t.Logf("at rest %s after the end of the pause", time.Since(resumed).Round(10*time.Millisecond))

	events, err := api.CoreV1().Events("millrace").List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var reasons []string
	for i := range events.Items {
		reasons = append(reasons, events.Items[i].Reason)
	}
	slices.Sort(reasons)
	if !slices.Equal(reasons, []string{"Paused", "Resumed"}) {
		t.Errorf("events %q, want Paused and Resumed", reasons)
	}
	if r := f.Exec(ctx, f.Env("admin"), "pause", "evicitons"); r.Code != 2 || !strings.Contains(r.Complaints, "endpoints") {
		t.Errorf("a word that nobody obeys: exit %d: %s", r.Code, r.Complaints)
	}
}
