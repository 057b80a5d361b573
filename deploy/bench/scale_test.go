package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// TestScale: the same work, created while the watcher's view of services is held
// back, is written by 1, 2, 4 and 8 replicas that may each send 20 requests a
// second without burst. The time from the first write to the last is compared.
func TestScale(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), pick(6*time.Minute, 20*time.Minute))
	defer cancel()
	services := pick(240, 2000)
	counts := pick([]int{1, 4}, []int{1, 2, 4, 8})
	least := map[int]float64{4: 3.0, 8: 6.5} // replicas → times one

	f := launch(ctx, t, fleet.Options{})
	proxy := kubetest.StartProxy(t, f.Cluster)
	kubeconfig, err := proxy.Kubeconfig(kubetest.RoleWatcher)
	if err != nil {
		t.Fatal(err)
	}
	join(ctx, t, f, "watcher", "watcher-1", "KUBECONFIG="+kubeconfig)
	w := newWork(ctx, t, f.Cluster.Client(), services)

	rates := make(map[int]float64)
	members := 0
	for round, n := range counts {
		for ; members < n; members++ {
			join(ctx, t, f, "endpoints", fmt.Sprintf("endpoints-%d", members+1),
				"MILLRACE_KUBE_QPS=20", "MILLRACE_KUBE_BURST=1")
		}
		proxy.Hold("services")
		w.create(ctx, t, round)
		proxy.Release("services")
		took := w.await(ctx, t, round)
		rates[n] = float64(services-1) / took.Seconds()
		t.Logf("%d replicas: %d services in %s, %.1f writes/s, %.2f times one", n, services, took.Round(time.Millisecond), rates[n], rates[n]/rates[counts[0]])
	}
	for n, rate := range rates {
		if floor := least[n]; rate/rates[1] < floor {
			t.Errorf("%d replicas write %.2f times as fast as one, want at least %.2f", n, rate/rates[1], floor)
		}
	}
}

// work is many one-pod services in as many namespaces, and when their slices
// were first seen.
type work struct {
	api        kubernetes.Interface
	namespaces []string

	mu      sync.Mutex
	seen    map[string]time.Time // by namespace/service
	changed chan struct{}
}

func newWork(ctx context.Context, t *testing.T, api kubernetes.Interface, n int) *work {
	t.Helper()
	w := &work{api: api, seen: make(map[string]time.Time), changed: make(chan struct{}, 1)}
	for i := range n {
		w.namespaces = append(w.namespaces, fmt.Sprintf("team-%04d", i))
	}
	_, err := api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	parallel(t, w.namespaces, func(ns string) error {
		if _, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating namespace: %w", err)
		}
		return createPod(ctx, api, ns, "p")
	})
	informer := informers.NewSharedInformerFactory(api, 0).Discovery().V1().EndpointSlices().Informer()
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: w.saw}); err != nil {
		t.Fatal(err)
	}
	go informer.RunWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("slices cannot be watched")
	}
	return w
}

// createPod creates a ready pod on node n1.
func createPod(ctx context.Context, api kubernetes.Interface, ns, name string) error {
	pod, err := api.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "main", Image: "example"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("creating pod: %w", err)
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.0.0.1", PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	if _, err := api.CoreV1().Pods(ns).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("making pod ready: %w", err)
	}
	return nil
}

func (w *work) saw(obj any) {
	slice := obj.(*discoveryv1.EndpointSlice)
	key := slice.Namespace + "/" + slice.Labels[discoveryv1.LabelServiceName]
	w.mu.Lock()
	defer w.mu.Unlock()
	if _, ok := w.seen[key]; !ok {
		w.seen[key] = time.Now()
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

func serviceName(round int) string { return fmt.Sprintf("web-%d", round) }

func (w *work) create(ctx context.Context, t *testing.T, round int) {
	t.Helper()
	parallel(t, w.namespaces, func(ns string) error {
		_, err := w.api.CoreV1().Services(ns).Create(ctx, &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Name: serviceName(round)},
			Spec: corev1.ServiceSpec{
				ClusterIP: corev1.ClusterIPNone, // the range of cluster IPs is smaller than 2000 times 4
				Selector:  map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}},
			},
		}, metav1.CreateOptions{})
		return err
	})
}

// await waits until every service of the round has its slice and returns the
// time from the first to the last.
func (w *work) await(ctx context.Context, t *testing.T, round int) time.Duration {
	t.Helper()
	for {
		var first, last time.Time
		n := 0
		w.mu.Lock()
		for _, ns := range w.namespaces {
			at, ok := w.seen[ns+"/"+serviceName(round)]
			if !ok {
				continue
			}
			n++
			if first.IsZero() || at.Before(first) {
				first = at
			}
			if at.After(last) {
				last = at
			}
		}
		w.mu.Unlock()
		if n == len(w.namespaces) {
			return last.Sub(first)
		}
		select {
		case <-w.changed:
		case <-ctx.Done():
			t.Fatalf("%d of %d services have a slice: %v", n, len(w.namespaces), ctx.Err())
		}
	}
}

// parallel calls do for every item, 32 at a time.
func parallel(t *testing.T, items []string, do func(string) error) {
	t.Helper()
	queue := make(chan string)
	var wg sync.WaitGroup
	var once sync.Once
	var failed error
	for range 32 {
		wg.Go(func() {
			for item := range queue {
				if err := do(item); err != nil {
					once.Do(func() { failed = err })
				}
			}
		})
	}
	for _, item := range items {
		queue <- item
	}
	close(queue)
	wg.Wait()
	if failed != nil {
		t.Fatal(failed)
	}
}
