package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// evictRate is the rate at which nodes of the dying zone may be tainted. Unit:
// nodes per second.
const evictRate = 10

// TestNodes: what it costs to look after many nodes, and that a zone which dies
// beside another is tainted at its rate, however many replicas do it.
func TestNodes(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), pick(8*time.Minute, 25*time.Minute))
	defer cancel()
	healthy, dying := pick(100, 4000), pick(50, 1000)
	span := pick(2*time.Second, 30*time.Second)
	grace := pick(8*time.Second, 25*time.Second)

	f := launch(ctx, t, fleet.Options{})
	beat := pick(2*time.Second, 10*time.Second)
	kubelet := func(prefix, zone string, n int) *kubetest.Kubelet {
		return kubetest.StartKubelet(t, f.Cluster, kubetest.KubeletConfig{Nodes: kubetest.NodeNames(prefix, n), Zones: []string{zone}, Beat: beat})
	}
	kubelet("alive", "alive", healthy)
	zone := kubelet("dying", "dying", dying)
	watcher := join(ctx, t, f, "watcher", "watcher-1")
	var members []*fleet.Member
	for i := range 4 {
		members = append(members, join(ctx, t, f, "nodelifecycle", fmt.Sprintf("nodelifecycle-%d", i+1),
			"MILLRACE_KUBE_QPS=-1",
			"MILLRACE_NODELIFECYCLE_NODE_MONITOR_GRACE_PERIOD="+grace.String(),
			"MILLRACE_NODELIFECYCLE_NODE_MONITOR_PERIOD=2s",
			fmt.Sprintf("MILLRACE_NODELIFECYCLE_NODE_EVICTION_RATE=%d", evictRate),
			fmt.Sprintf("MILLRACE_NODELIFECYCLE_SECONDARY_NODE_EVICTION_RATE=%d", evictRate),
		))
	}
	all, processes := append([]*fleet.Member{watcher}, members...), []*fleet.Process{f.NATS.Process}
	for _, m := range all {
		processes = append(processes, m.Process)
	}
	busy, rest := shares(ctx, t, span, processes...), atRest(ctx, t, all...)
	t.Logf("%d nodes: NATS %.1f %% of a core", healthy+dying, 100*busy[0])
	for i, m := range all {
		t.Logf("%s: %.1f %% of a core, %d MiB", m.Name, 100*busy[i+1], rest[i]>>20)
	}

	began := time.Now()
	for _, name := range kubetest.NodeNames("dying", dying) {
		zone.Silence(name)
	}
	at := taintedAt(ctx, t, f.Cluster.Client(), dying)
	took := at[len(at)-1].Sub(at[0])
	rate := float64(len(at)-1) / took.Seconds()
	t.Logf("%d nodes tainted in %s, the first %s after they stopped: %.3f nodes/s of %d", len(at), took.Round(time.Millisecond), at[0].Sub(began).Round(time.Millisecond), rate, evictRate)
	// A busy machine may be slow, but nothing makes it fast.
	if share := rate / evictRate; share < pick(0.5, 0.98) || share > pick(1.1, 1.02) {
		t.Errorf("that is %.1f %% of it", 100*share)
	}
	wantBound(t, at)
}

// wantBound checks every window: at most rate·(t + 1 s) + burst.
func wantBound(t *testing.T, at []time.Time) {
	t.Helper()
	for i := range at {
		for j := i; j < len(at); j++ {
			if most := evictRate*(at[j].Sub(at[i]).Seconds()+1) + 1; float64(j-i+1) > most {
				t.Fatalf("%d nodes were tainted within %s, at most %.1f may be", j-i+1, at[j].Sub(at[i]), most)
			}
		}
	}
}

// taintedAt waits until n nodes bear the NoExecute taint of silent ones, and
// returns when each was seen with it first.
func taintedAt(ctx context.Context, t *testing.T, api kubernetes.Interface, n int) (at []time.Time) {
	t.Helper()
	list, err := api.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	seen, version := map[string]bool{}, list.ResourceVersion
	for len(at) < n {
		events, err := api.CoreV1().Nodes().Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			t.Fatalf("%d of %d nodes are tainted: %v", len(at), n, err)
		}
		for e := range events.ResultChan() {
			node, ok := e.Object.(*corev1.Node)
			if !ok || e.Type == watch.Deleted {
				continue
			}
			version = node.ResourceVersion
			for _, taint := range node.Spec.Taints {
				if taint.Key == corev1.TaintNodeUnreachable && taint.Effect == corev1.TaintEffectNoExecute && !seen[node.Name] {
					seen[node.Name] = true
					at = append(at, time.Now())
				}
			}
			if len(at) == n {
				break
			}
		}
		events.Stop()
	}
	return at
}
