package e2e

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
)

// Three replicas, one of them frozen and thawed and one killed, write together
// what one limit allows, and nearly all of it.
func TestReplicasShareAWriteLimit(t *testing.T) {
	const (
		rate, burst = 5.0, 3
		services    = 90
		// late is by how much the watch may bring two writes closer together than
		// they were.
		late = 300 * time.Millisecond
	)
	ctx, f := beginStrict(t, 3*time.Minute)
	limit := []string{fmt.Sprintf("MILLRACE_CONTROLLER_WRITE_QPS=%g", rate), fmt.Sprintf("MILLRACE_CONTROLLER_WRITE_BURST=%d", burst)}
	_, members := startReady(ctx, t, f, 3, limit...)
	w := prepare(ctx, t, f, prefixOf(t), 1, 0)
	whole(ctx, t, f)
	client := adminClient(f)

	var mu sync.Mutex
	var written []time.Time
	for _, s := range w.spaces {
		events, err := client.DiscoveryV1().EndpointSlices(s.name).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var watching sync.WaitGroup
		watching.Go(func() {
			for e := range events.ResultChan() {
				slice, ok := e.Object.(*discoveryv1.EndpointSlice)
				if ok && e.Type == watch.Added && strings.HasPrefix(slice.Labels[discoveryv1.LabelServiceName], "limited-") {
					mu.Lock()
					written = append(written, time.Now())
					mu.Unlock()
				}
			}
		})
		t.Cleanup(func() { events.Stop(); watching.Wait() })
	}
	count := func() int {
		mu.Lock()
		defer mu.Unlock()
		return len(written)
	}
	reach := func(n int) {
		t.Helper()
		eventually(ctx, t, 60*time.Second, fmt.Sprintf("%d slices", n), func() (bool, string) { return count() >= n, fmt.Sprint(count()) })
	}

	create := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			if _, err := client.CoreV1().Services(w.spaces[i%len(w.spaces)].name).Create(ctx, &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("limited-%d", i)},
				Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "none"}, Ports: []corev1.ServicePort{{Port: 80}}},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
	}

	begun := time.Now()
	create(0, services)
	reach(40)
	share := 0.5 // on a busy machine, beside other tests
	if long("LONG") {
		share = 0.95
	}
	if calm, least := time.Since(begun), share*rate; 40/calm.Seconds() < least-burst/calm.Seconds() {
		t.Errorf("40 writes took %s, want %g a second", calm, least)
	}
	out, err := f.Run(ctx, "status")
	if err != nil || !strings.Contains(out, "LAST TAKER") || !strings.Contains(out, "write") {
		t.Errorf("status does not show the limit: %v\n%s", err, out)
	}
	if err := members[0].Freeze(); err != nil {
		t.Fatal(err)
	}
	reach(50)
	members[1].Kill()
	if err := members[0].Thaw(); err != nil {
		t.Fatal(err)
	}
	reach(services)
	t.Logf("%d writes in %s", services, time.Since(begun).Round(time.Millisecond))

	// A replica whose workers all wait for a token hands over all the same.
	create(services, 2*services)
	reach(services + 5)
	begun = time.Now()
	if err := members[2].Stop(ctx); err != nil {
		t.Error(err)
	}
	took := time.Since(begun)
	t.Logf("a replica that waits for tokens stopped in %s", took.Round(time.Millisecond))
	if took > 4*time.Second { // a lease lasts for 5 s
		t.Errorf("it took %s to hand over", took)
	}

	mu.Lock()
	defer mu.Unlock()
	slices.SortFunc(written, time.Time.Compare)
	for i := range written {
		for j := i; j < len(written); j++ {
			window := written[j].Sub(written[i]) + time.Second + late
			if n := float64(j - i + 1); n > rate*window.Seconds()+burst {
				t.Fatalf("%g writes within %s", n, written[j].Sub(written[i]))
			}
		}
	}
}
