package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// TestLatency: pods flip their readiness, 40 times a second over 20 services,
// and a client of the API sees the slices follow. Upstream and millrace take
// turns on the same API server and the same pods, both without a limit of QPS.
func TestLatency(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), pick(8*time.Minute, 30*time.Minute))
	defer cancel()
	phase := pick(4*time.Second, 20*time.Second)
	rounds := pick(1, 4)

	f := launch(ctx, t, fleet.Options{})
	s := newFlips(ctx, t, f.Cluster.Client())
	systems := map[string]func() (stop func()){
		"upstream": func() func() {
			m, err := kubetest.LaunchControllerManager(ctx, f.Cluster, "endpointslice-controller", "--kube-api-qps=5000", "--kube-api-burst=5000")
			if err != nil {
				t.Fatal(err)
			}
			return func() { _ = m.Stop() }
		},
		"millrace": func() func() {
			members := []*fleet.Member{join(ctx, t, f, "watcher", "watcher-1")}
			for i := range 3 {
				members = append(members, join(ctx, t, f, "endpoints", fmt.Sprintf("endpoints-%d", i+1), "MILLRACE_KUBE_QPS=-1"))
			}
			return func() {
				for _, m := range members {
					if err := m.Stop(ctx); err != nil {
						t.Error(err)
					}
				}
			}
		},
	}
	got := make(map[string][]time.Duration)
	for range rounds {
		for _, name := range []string{"upstream", "millrace"} {
			stop := systems[name]()
			s.settle(ctx, t)
			got[name] = append(got[name], s.run(ctx, t, phase)...)
			stop()
		}
	}
	up, ours := spreadOf(got["upstream"]), spreadOf(got["millrace"])
	ratio, middle := float64(ours.P99)/float64(up.P99), float64(ours.P50)/float64(up.P50)
	t.Logf("pod Ready → slice, 40 flips/s over 20 services\nupstream  %s\nmillrace  %s\np50 ratio %.2f, p99 ratio %.2f", up, ours, middle, ratio)
	// A few hundred flips on a busy machine say nothing about the tail.
	if judged, limit := pick(middle, ratio), pick(3.0, 1.5); judged > limit {
		t.Errorf("that is %.2f times upstream's, want at most %.1f", judged, limit)
	}
}

const (
	flipServices = 20
	podsEach     = 5
	flipEvery    = 25 * time.Millisecond
	flipSpace    = "flips"
)

// flips is the load and those who look at it.
type flips struct {
	api kubernetes.Interface

	mu      sync.Mutex
	ready   map[string]bool // by pod, as the slices say
	waiting map[string]flip // by pod
	done    []time.Duration
	changed chan struct{}
}

type flip struct {
	ready bool
	began time.Time
}

func newFlips(ctx context.Context, t *testing.T, api kubernetes.Interface) *flips {
	t.Helper()
	s := &flips{api: api, ready: make(map[string]bool), waiting: make(map[string]flip), changed: make(chan struct{}, 1)}
	if _, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: flipSpace}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for i := range flipServices {
		if err := s.create(ctx, i); err != nil {
			t.Fatal(err)
		}
	}
	informer := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(flipSpace)).Discovery().V1().EndpointSlices().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: s.saw, UpdateFunc: func(_, obj any) { s.saw(obj) },
	}); err != nil {
		t.Fatal(err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("slices cannot be watched")
	}
	return s
}

func podName(service, pod int) string { return fmt.Sprintf("web-%d-%d", service, pod) }

func (s *flips) create(ctx context.Context, i int) error {
	labels := map[string]string{"app": fmt.Sprintf("web-%d", i)}
	_, err := s.api.CoreV1().Services(flipSpace).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-%d", i)},
		Spec:       corev1.ServiceSpec{Selector: labels, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating service: %w", err)
	}
	for j := range podsEach {
		_, err := s.api.CoreV1().Pods(flipSpace).Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: podName(i, j), Labels: labels},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "example"}}},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("creating pod: %w", err)
		}
		if err := s.patch(ctx, podName(i, j), false, fmt.Sprintf("10.0.%d.%d", i, j+1)); err != nil {
			return err
		}
	}
	return nil
}

// patch writes the pod's readiness, and its address once.
func (s *flips) patch(ctx context.Context, pod string, ready bool, ip string) error {
	word := corev1.ConditionFalse
	if ready {
		word = corev1.ConditionTrue
	}
	status := map[string]any{"conditions": []any{map[string]any{
		"type": "Ready", "status": word, "lastTransitionTime": metav1.Now(),
	}}}
	if ip != "" {
		status["phase"], status["podIP"], status["podIPs"] = "Running", ip, []any{map[string]any{"ip": ip}}
	}
	body, err := json.Marshal(map[string]any{"status": status})
	if err != nil {
		return fmt.Errorf("forming patch: %w", err)
	}
	_, err = s.api.CoreV1().Pods(flipSpace).Patch(ctx, pod, types.StrategicMergePatchType, body, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("flipping pod %s: %w", pod, err)
	}
	return nil
}

func (s *flips) saw(obj any) {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range obj.(*discoveryv1.EndpointSlice).Endpoints {
		if e.TargetRef == nil {
			continue
		}
		pod, ready := e.TargetRef.Name, e.Conditions.Ready != nil && *e.Conditions.Ready
		s.ready[pod] = ready
		if w, ok := s.waiting[pod]; ok && w.ready == ready {
			delete(s.waiting, pod)
			s.done = append(s.done, now.Sub(w.began))
		}
	}
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// settle flips every pod once and waits until the slices say so: whoever writes
// them is at work.
func (s *flips) settle(ctx context.Context, t *testing.T) {
	t.Helper()
	s.flip(ctx, t, flipServices*podsEach)
	s.await(ctx, t)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done = nil
}

// run flips pods for as long as a phase lasts.
func (s *flips) run(ctx context.Context, t *testing.T, phase time.Duration) []time.Duration {
	t.Helper()
	s.flip(ctx, t, int(phase/flipEvery))
	s.await(ctx, t)
	s.mu.Lock()
	defer s.mu.Unlock()
	done := s.done
	s.done = nil
	return done
}

// flip flips n pods in turn, one every flipEvery whatever the API server takes.
func (s *flips) flip(ctx context.Context, t *testing.T, n int) {
	t.Helper()
	tick := time.NewTicker(flipEvery)
	defer tick.Stop()
	var wg sync.WaitGroup
	for i := range n {
		<-tick.C
		pod := podName(i%flipServices, i/flipServices%podsEach)
		s.mu.Lock()
		ready := !s.ready[pod]
		s.waiting[pod] = flip{ready: ready, began: time.Now()}
		s.mu.Unlock()
		wg.Go(func() {
			if err := s.patch(ctx, pod, ready, ""); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func (s *flips) await(ctx context.Context, t *testing.T) {
	t.Helper()
	for {
		s.mu.Lock()
		n := len(s.waiting)
		s.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			t.Fatalf("%d pods have not flipped in any slice: %v", n, ctx.Err())
		}
	}
}
