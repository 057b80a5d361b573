package e2e

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// Contract: "tombstones" of issue 2. While the watcher's connection to the API
// server is cut, and while there is no watcher, 100 of many objects are deleted;
// afterwards consumers have forgotten exactly those. Long form: OBJECTS=10000.
func TestTombstones(t *testing.T) {
	const deleted = 100
	objects := number(t, "OBJECTS", 1000)
	ctx, f := begin(t, 4*time.Minute+time.Duration(objects)*20*time.Millisecond)
	proxy := kubetest.StartProxy(t, f.Cluster)
	kubeconfig, err := proxy.Kubeconfig(kubetest.RoleWatcher)
	if err != nil {
		t.Fatal(err)
	}
	watcher := start(ctx, t, f, "watcher", "KUBECONFIG="+kubeconfig)
	ready(ctx, t, watcher, start(ctx, t, f, "endpoints"), start(ctx, t, f, "endpoints"))

	w := prepare(ctx, t, f, prefixOf(t), 1, 100)
	o := observe(ctx, t, f, w.prefix)
	crowd(ctx, t, w, objects)
	o.awaitRest(ctx, t, f, 60*time.Second)
	whole(ctx, t, f)
	count := func() uint64 {
		s, err := f.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		n, _ := s.Objects("endpoints", "pods")
		return n
	}
	forgotten := func(what string, before uint64) {
		t.Helper()
		took := o.awaitRest(ctx, t, f, 30*time.Second)
		whole(ctx, t, f)
		eventually(ctx, t, 20*time.Second, what, func() (bool, string) {
			now := count()
			return now == before-deleted, fmt.Sprintf("%d pods before, %d now", before, now)
		})
		t.Logf("%s: %d of %d pods forgotten, slices right after %s", what, deleted, before, took.Round(time.Millisecond))
	}

	before := count()
	if live := uint64(len(o.snapshot().pods)); before < live {
		t.Fatalf("%d pods are known, %d exist", before, live)
	}
	proxy.Down()
	thin(ctx, t, w, 0, deleted)
	if now := count(); now != before {
		t.Errorf("%d pods are known while the watcher cannot see, %d were", now, before)
	}
	proxy.Up()
	forgotten("connection cut", before)

	before = count()
	watcher.Kill()
	thin(ctx, t, w, deleted, deleted)
	ready(ctx, t, start(ctx, t, f, "watcher"))
	forgotten("watcher killed", before)
}

// crowd makes pods: in each row of ten, one is ready and selected.
func crowd(ctx context.Context, t *testing.T, w *workload, n int) {
	t.Helper()
	parallel(ctx, t, n, func(i int) error {
		s := w.spaces[i%len(w.spaces)]
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: crowdName(i), Namespace: s.name},
			Spec:       corev1.PodSpec{NodeName: nodeName(i % nodesHere), Containers: []corev1.Container{{Name: "c", Image: "none"}}},
		}
		if i/10%10 == 0 {
			p.Labels = map[string]string{"steady": "yes"}
		}
		made, err := w.api.CoreV1().Pods(s.name).Create(ctx, p, metav1.CreateOptions{})
		if err == nil && p.Labels != nil {
			err = s.report(ctx, made, corev1.PodRunning, true)
		}
		return err
	})
}

func crowdName(i int) string { return fmt.Sprintf("crowd-%d", i) }

// thin deletes n of them from the first on.
func thin(ctx context.Context, t *testing.T, w *workload, first, n int) {
	t.Helper()
	parallel(ctx, t, n, func(i int) error {
		i += first
		return w.api.CoreV1().Pods(w.spaces[i%len(w.spaces)].name).Delete(ctx, crowdName(i), *metav1.NewDeleteOptions(0))
	})
}

// parallel does something n times, sixteen at a time.
func parallel(ctx context.Context, t *testing.T, n int, do func(i int) error) {
	t.Helper()
	work := make(chan int)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for i := range work {
				if err := do(i); err != nil && ctx.Err() == nil {
					t.Error(err)
				}
			}
		})
	}
	for i := range n {
		work <- i
	}
	close(work)
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
}
