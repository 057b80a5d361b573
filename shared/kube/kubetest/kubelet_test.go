package kubetest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// testBeat is short, to see several beats in a test, and long against a write.
const testBeat = 200 * time.Millisecond

func readNode(ctx context.Context, t *testing.T, c *Cluster, name string) *corev1.Node {
	t.Helper()
	n, err := c.Client().CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading node %s: %v", name, err)
	}
	return n
}

func readLease(ctx context.Context, t *testing.T, c *Cluster, node string) *coordinationv1.Lease {
	t.Helper()
	l, err := c.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, node, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("reading the lease of %s: %v", node, err)
	}
	return l
}

func nodeReady(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

// awaitBeats waits for n more renewals of a node's Lease.
func awaitBeats(ctx context.Context, t *testing.T, c *Cluster, node string, n int) {
	t.Helper()
	seen := readLease(ctx, t, c, node).ResourceVersion
	eventually(ctx, t, "node "+node+" has beaten", func(context.Context) (bool, error) {
		if now := readLease(ctx, t, c, node).ResourceVersion; now != seen {
			seen = now
			n--
		}
		return n <= 0, nil
	})
}

// awaitPod waits until a pod satisfies ok, and returns it.
func awaitPod(ctx context.Context, t *testing.T, c *Cluster, ns, name, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	t.Helper()
	var pod *corev1.Pod
	eventually(ctx, t, name+" "+what, func(ctx context.Context) (_ bool, err error) {
		pod, err = c.Client().CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		return err == nil && ok(pod), err
	})
	return pod
}

func awaitGone(ctx context.Context, t *testing.T, c *Cluster, ns, name string) {
	t.Helper()
	eventually(ctx, t, name+" is gone", func(ctx context.Context) (bool, error) {
		_, err := c.Client().CoreV1().Pods(ns).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
}

func createPod(ctx context.Context, t *testing.T, c *Cluster, ns string, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	made, err := c.Client().CoreV1().Pods(ns).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating pod %s: %v", pod.Name, err)
	}
	return made
}

func TestAKubeletRegistersItsNodesAndKeepsThemAlive(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	names := NodeNames("alive", 3)
	k := StartKubelet(t, c, KubeletConfig{
		Nodes:  names,
		Zones:  []string{"a", "b"},
		Labels: map[string]string{"pool": "test"},
		Beat:   testBeat,
	})
	for i, zone := range []string{"a", "b", "a"} {
		n := readNode(ctx, t, c, names[i])
		if got := n.Labels[corev1.LabelTopologyZone]; got != zone {
			t.Errorf("zone of %s = %q, want %q", n.Name, got, zone)
		}
		if n.Labels["pool"] != "test" || nodeReady(n) != corev1.ConditionTrue || n.Status.Allocatable.Cpu().IsZero() {
			t.Errorf("node %s = labels %v, ready %s, allocatable %v", n.Name, n.Labels, nodeReady(n), n.Status.Allocatable)
		}
	}
	awaitBeats(ctx, t, c, names[0], 2)
	if age := time.Since(k.LastBeat(names[0])); age > time.Minute {
		t.Errorf("last beat %s ago", age)
	}
}

// A renewal that fails must not be the last: client-go returns an empty Lease
// with the error, and one of no name cannot be renewed.
func TestANodeBeatsOnAfterARenewalFailed(t *testing.T) {
	c := Shared(t)
	ctx := bounded(t)
	name := "conflict-0000"
	StartKubelet(t, c, KubeletConfig{Nodes: []string{name}, Beat: testBeat})
	for range 3 {
		patch := []byte(fmt.Sprintf(`{"metadata":{"labels":{"touched":"at-%d"}}}`, time.Now().UnixNano()))
		_, err := c.Client().CoordinationV1().Leases(corev1.NamespaceNodeLease).
			Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err != nil {
			t.Fatalf("touching the lease: %v", err)
		}
		awaitBeats(ctx, t, c, name, 2)
	}
}

func TestAKubeletRunsPodsAndEndsThoseDeleted(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	ns := c.Namespace(t)
	k := StartKubelet(t, c, KubeletConfig{Nodes: NodeNames("runs", 1)})
	node := k.cfg.Nodes[0]

	createPod(ctx, t, c, ns, boundPod("p", node))
	pod := awaitPod(ctx, t, c, ns, "p", "is Ready", isReady)
	cidr := netip.MustParsePrefix(readNode(ctx, t, c, node).Spec.PodCIDR)
	if addr := netip.MustParseAddr(pod.Status.PodIP); pod.Status.Phase != corev1.PodRunning || !cidr.Contains(addr) {
		t.Errorf("status = %s at %s, want Running in %s", pod.Status.Phase, addr, cidr)
	}
	if err := k.SetReady(ctx, pod, false); err != nil {
		t.Fatalf("SetReady(false) = %v", err)
	}
	if pod = awaitPod(ctx, t, c, ns, "p", "reads", func(*corev1.Pod) bool { return true }); isReady(pod) {
		t.Error("the pod is Ready right after SetReady(false) returned")
	}
	if err := c.Client().CoreV1().Pods(ns).Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	awaitGone(ctx, t, c, ns, "p")
}

func TestAKubeletMayStartPodsUnreadyAndTakeTimeToEndThem(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	ns := c.Namespace(t)
	const ending = time.Second
	k := StartKubelet(t, c, KubeletConfig{Nodes: NodeNames("slow", 1), Unready: true, Termination: ending})
	createPod(ctx, t, c, ns, boundPod("p", k.cfg.Nodes[0]))
	pod := awaitPod(ctx, t, c, ns, "p", "runs", func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if isReady(pod) {
		t.Error("the pod is Ready at once")
	}
	start := time.Now()
	if err := c.Client().CoreV1().Pods(ns).Delete(ctx, "p", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	awaitGone(ctx, t, c, ns, "p")
	if took := time.Since(start); took < ending {
		t.Errorf("the pod was gone after %s, want at least %s", took, ending)
	}
}

func TestAKubeletBindsPodsWhenAsked(t *testing.T) {
	c, ctx := Start(t), bounded(t)
	k := StartKubelet(t, c, KubeletConfig{Nodes: NodeNames("binds", 2), Bind: true})
	k.Silence(k.cfg.Nodes[0])
	for i := range 2 {
		name := fmt.Sprint("p-", i)
		createPod(ctx, t, c, "default", boundPod(name, ""))
		pod := awaitPod(ctx, t, c, "default", name, "is Ready", isReady)
		if pod.Spec.NodeName != k.cfg.Nodes[1] {
			t.Errorf("%s is on %q, want the node that is not silent", name, pod.Spec.NodeName)
		}
	}
}

func TestASilentNodeWritesNothingUntilItResumes(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	ns := c.Namespace(t)
	k := StartKubelet(t, c, KubeletConfig{Nodes: NodeNames("silent", 2), Beat: testBeat})
	quiet, control := k.cfg.Nodes[0], k.cfg.Nodes[1]
	createPod(ctx, t, c, ns, boundPod("old", quiet))
	awaitPod(ctx, t, c, ns, "old", "is Ready", isReady)

	k.Silence(quiet)
	before := readLease(ctx, t, c, quiet).ResourceVersion
	if err := c.Client().CoreV1().Pods(ns).Delete(ctx, "old", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting: %v", err)
	}
	createPod(ctx, t, c, ns, boundPod("new", quiet))
	createPod(ctx, t, c, ns, boundPod("control", control))
	awaitPod(ctx, t, c, ns, "control", "is Ready", isReady)
	awaitBeats(ctx, t, c, control, 3)
	if after := readLease(ctx, t, c, quiet).ResourceVersion; after != before {
		t.Errorf("the lease of a silent node went from %s to %s", before, after)
	}
	awaitPod(ctx, t, c, ns, "old", "is still ending", func(p *corev1.Pod) bool { return p.DeletionTimestamp != nil })
	if pod := awaitPod(ctx, t, c, ns, "new", "reads", func(*corev1.Pod) bool { return true }); pod.Status.PodIP != "" {
		t.Errorf("a silent node reported %s", pod.Status.PodIP)
	}

	k.Resume(quiet)
	awaitBeats(ctx, t, c, quiet, 1)
	awaitPod(ctx, t, c, ns, "new", "is Ready", isReady)
	awaitGone(ctx, t, c, ns, "old")
}

func TestANodeCorrectsWhatOthersSayAboutItAndSaysWhatItIsTold(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	k := StartKubelet(t, c, KubeletConfig{Nodes: NodeNames("honest", 1), Beat: testBeat})
	node := k.cfg.Nodes[0]
	unknown := []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown","reason":"NodeStatusUnknown"}]}}`)
	_, err := c.Client().CoreV1().Nodes().Patch(ctx, node, types.StrategicMergePatchType, unknown, metav1.PatchOptions{}, "status")
	if err != nil {
		t.Fatalf("writing Unknown: %v", err)
	}
	eventually(ctx, t, "the node is Ready again", func(context.Context) (bool, error) {
		return nodeReady(readNode(ctx, t, c, node)) == corev1.ConditionTrue, nil
	})
	if err := k.SetNodeReady(ctx, node, false); err != nil {
		t.Fatalf("SetNodeReady(false) = %v", err)
	}
	if got := nodeReady(readNode(ctx, t, c, node)); got != corev1.ConditionFalse {
		t.Errorf("Ready = %s, want False", got)
	}
}

// The sizes of the comparisons: if this is slow, they measure the kubelet.
func TestAKubeletPlaysHundredsOfNodes(t *testing.T) {
	const nodes, pods = 300, 900
	c, ctx := Start(t), bounded(t)
	start := time.Now()
	k := StartKubelet(t, c, KubeletConfig{Nodes: NodeNames("many", nodes), Zones: []string{"a", "b", "c"}})
	t.Logf("%d nodes registered in %s", nodes, time.Since(start))

	start = time.Now()
	client := c.Client()
	err := k.each(k.order, func(n *node) error {
		for i := range pods / nodes {
			pod := boundPod(fmt.Sprintf("%s-%d", n.name, i), n.name)
			if _, err := client.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("creating pods: %v", err)
	}
	t.Logf("%d pods created in %s", pods, time.Since(start))
	seen := map[string]bool{}
	eventually(ctx, t, "all pods are Ready", func(ctx context.Context) (bool, error) {
		list, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{ResourceVersion: "0"})
		if err != nil {
			return false, err
		}
		clear(seen)
		for i := range list.Items {
			if isReady(&list.Items[i]) {
				seen[list.Items[i].Status.PodIP] = true
			}
		}
		return len(seen) == pods, nil
	})
	t.Logf("%d pods Ready, each at an address of its own, %s after the first was created", pods, time.Since(start))
}
