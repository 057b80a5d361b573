package bench

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// TestMemory: what a replica holds falls with the number of replicas. The
// resident set above that of an idle replica is compared: one alone, and each of
// four.
func TestMemory(t *testing.T) {
	beside(t)
	ctx, cancel := context.WithTimeout(t.Context(), pick(8*time.Minute, 20*time.Minute))
	defer cancel()
	pods := pick(4000, 20000)
	perNamespace := 50
	limit := pick(0.60, 0.35) // little work drowns in what a process holds anyway

	f := launch(ctx, t, fleet.Options{})
	watcher := join(ctx, t, f, "watcher", "watcher-1")
	idle := resident(ctx, t, f, "idle", 1)[0]

	api := f.Cluster.Client()
	if _, err := api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	var namespaces []string
	for i := range pods / perNamespace {
		namespaces = append(namespaces, "team-"+strconv.Itoa(i))
	}
	parallel(t, namespaces, func(ns string) error {
		if _, err := api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		for i := range perNamespace {
			if err := createPod(ctx, api, ns, "p-"+strconv.Itoa(i)); err != nil {
				return err
			}
		}
		return nil
	})
	alone := resident(ctx, t, f, "alone", 1)[0]
	four := resident(ctx, t, f, "four", 4)
	most := slices.Max(four)
	u, err := watcher.Usage()
	if err != nil {
		t.Fatal(err)
	}
	ratio := float64(most-idle) / float64(alone-idle)
	t.Logf("%d pods: idle %d MiB, one alone %d MiB, each of four %v MiB, watcher %d MiB", pods, idle>>20, alone>>20, mib(four), u.ResidentBytes>>20)
	t.Logf("the largest of four holds %.0f %% of what one alone holds above an idle one", 100*ratio)
	if ratio > limit {
		t.Errorf("that is more than %.0f %%", 100*limit)
	}
}

func mib(bytes []uint64) []uint64 {
	out := make([]uint64, len(bytes))
	for i, b := range bytes {
		out[i] = b >> 20
	}
	return out
}

// resident starts n fresh replicas together, waits until they hold everything
// and have come to rest, and returns their resident sets.
func resident(ctx context.Context, t *testing.T, f *fleet.Fleet, name string, n int) []uint64 {
	t.Helper()
	members := make([]*fleet.Member, n)
	for i := range members {
		m, err := f.Member(ctx, "endpoints", fmt.Sprintf("%s-%d", name, i+1), "MILLRACE_KUBE_QPS=-1")
		if err != nil {
			t.Fatal(err)
		}
		members[i] = m
	}
	for _, m := range members {
		if err := m.AwaitReady(ctx); err != nil {
			t.Fatal(err)
		}
	}
	out := atRest(ctx, t, members...)
	for _, m := range members {
		if err := m.Stop(ctx); err != nil {
			t.Error(err)
		}
	}
	return out
}

// atRest returns the resident sets once none has changed for a few seconds, or
// after half a minute.
func atRest(ctx context.Context, t *testing.T, members ...*fleet.Member) []uint64 {
	t.Helper()
	last, same := make([]uint64, len(members)), 0
	for range 30 {
		same++
		for i, m := range members {
			u, err := m.Usage()
			if err != nil {
				t.Fatal(err)
			}
			if diff := int64(u.ResidentBytes) - int64(last[i]); diff >= 1<<20 || diff <= -(1<<20) {
				same = 0
			}
			last[i] = u.ResidentBytes
		}
		if same == 3 {
			break
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			t.Fatal(ctx.Err())
		}
	}
	return last
}
