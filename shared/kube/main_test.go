package kube

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

func TestMain(m *testing.M) {
	os.Exit(kubetest.Main(m))
}

// wire records what really leaves.
type wire struct {
	mu       sync.Mutex
	requests []string
	next     http.RoundTripper
}

func (w *wire) wrap(next http.RoundTripper) http.RoundTripper {
	w.next = next
	return w
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	w.requests = append(w.requests, r.Method+" "+r.URL.RequestURI())
	w.mu.Unlock()
	return w.next.RoundTrip(r)
}

// take returns what left since the last call.
func (w *wire) take() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	got := w.requests
	w.requests = nil
	return got
}

func (w *wire) count(what ...string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := 0
requests:
	for _, r := range w.requests {
		for _, part := range what {
			if !strings.Contains(r, part) {
				continue requests
			}
		}
		n++
	}
	return n
}

// dialTo connects with a recorder in front of the wire.
func dialTo(t testing.TB, conf *rest.Config, cfg Config) (*API, *wire) {
	t.Helper()
	w := &wire{}
	conf = rest.CopyConfig(conf)
	conf.Wrap(w.wrap)
	api, err := ConnectTo(conf, cfg, "millrace-test", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return api, w
}

// dial connects to the package's cluster.
func dial(t testing.TB) (*API, *wire) {
	t.Helper()
	return dialTo(t, kubetest.Shared(t).Admin(), Config{QPS: -1})
}

// eventually waits for a condition of a live system.
func eventually(t testing.TB, within time.Duration, what string, f func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !f() {
		if time.Since(began) > within {
			t.Fatalf("after %s still not: %s", within, what)
		}
		<-tick.C
	}
	return time.Since(began)
}

func must[T any](t testing.TB) func(T, error) T {
	t.Helper()
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func makePod(ctx context.Context, t testing.TB, api *API, namespace, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	return must[*corev1.Pod](t)(api.Client().CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}))
}

func podRef(p *corev1.Pod) Ref {
	o, err := toObject(p, time.Now())
	if err != nil {
		panic(fmt.Sprint("test: ", err))
	}
	return o.Ref(Pods)
}
