package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/partition"
)

// nodeWorld is an installation with no nodes but those that its kubelets play,
// watched over by the node lifecycle role.
type nodeWorld struct {
	t       *testing.T
	f       *fleet.Fleet
	api     kubernetes.Interface
	kubelet *kubetest.Kubelet
	names   []string
	log     *nodeLog

	env, watcherEnv   []string
	watchers, members []*fleet.Member
}

// nodeSetup says what it is made of.
type nodeSetup struct {
	nodes          int
	zones          []string // in turn
	beat, grace    time.Duration
	startup        time.Duration // 0: twice the grace
	env            []string      // of the role
	watcherEnv     []string
	withoutMembers bool
	replicas       int
}

// nodeSettings are the role's for a grace. Nothing else of these tests is as
// short as its tests of hours would be with upstream's defaults.
func nodeSettings(grace, startup time.Duration) []string {
	return []string{
		"MILLRACE_NODELIFECYCLE_NODE_MONITOR_PERIOD=1s",
		"MILLRACE_NODELIFECYCLE_NODE_MONITOR_GRACE_PERIOD=" + grace.String(),
		"MILLRACE_NODELIFECYCLE_NODE_STARTUP_GRACE_PERIOD=" + startup.String(),
	}
}

// evictions are the settings of a NoExecute rate that does not depend on how a
// zone does.
func evictions(perSecond float64) []string {
	return []string{
		fmt.Sprintf("MILLRACE_NODELIFECYCLE_NODE_EVICTION_RATE=%g", perSecond),
		fmt.Sprintf("MILLRACE_NODELIFECYCLE_SECONDARY_NODE_EVICTION_RATE=%g", perSecond),
		"MILLRACE_NODELIFECYCLE_LARGE_CLUSTER_SIZE_THRESHOLD=1",
	}
}

// nodesIn makes such a world. Its zones are named after the test, so that no
// bucket of another test is theirs.
func nodesIn(ctx context.Context, t *testing.T, f *fleet.Fleet, s nodeSetup) *nodeWorld {
	t.Helper()
	if s.startup == 0 {
		s.startup = 2 * s.grace
	}
	w := &nodeWorld{t: t, f: f, api: adminClient(f), watcherEnv: s.watcherEnv}
	w.env = append(nodeSettings(s.grace, s.startup), s.env...)
	w.clear(ctx)
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		w.clear(ctx)
		w.must(makeNodes(ctx, w.api)) // a service whose pods have no node never comes to rest
	})
	w.names = kubetest.NodeNames(prefixOf(t)+"node", s.nodes)
	var zones []string
	for _, z := range s.zones {
		zones = append(zones, prefixOf(t)+z)
	}
	w.kubelet = kubetest.StartKubelet(t, f.Cluster, kubetest.KubeletConfig{Nodes: w.names, Zones: zones, Beat: s.beat})
	w.log = logNodes(ctx, t, w.api, s.grace, s.startup)
	w.addWatcher(ctx)
	if s.withoutMembers {
		return w
	}
	for range s.replicas {
		w.addMember(ctx)
	}
	w.settled(ctx)
	return w
}

// clear removes every node there is: of other tests, or at the end ours.
func (w *nodeWorld) clear(ctx context.Context) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err := w.api.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	if err == nil {
		err = w.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
	}
	w.must(err)
}

func (w *nodeWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *nodeWorld) addWatcher(ctx context.Context) *fleet.Member {
	m := start(ctx, w.t, w.f, kubetest.RoleWatcher, w.watcherEnv...)
	w.watchers = append(w.watchers, m)
	return m
}

func (w *nodeWorld) addMember(ctx context.Context) *fleet.Member {
	m := start(ctx, w.t, w.f, kubetest.RoleNodeLifecycle, w.env...)
	w.members = append(w.members, m)
	return m
}

// kill takes members away with SIGKILL.
func (w *nodeWorld) kill(gone ...*fleet.Member) {
	for _, m := range gone {
		m.Kill()
	}
	dead := func(m *fleet.Member) bool { return slices.Contains(gone, m) }
	w.watchers, w.members = slices.DeleteFunc(w.watchers, dead), slices.DeleteFunc(w.members, dead)
}

// settled waits until all are ready, every partition is held, and nothing waits.
func (w *nodeWorld) settled(ctx context.Context) {
	w.t.Helper()
	ready(ctx, w.t, append(slices.Clone(w.watchers), w.members...)...)
	eventually(ctx, w.t, 60*time.Second, "nodes are watched over", func() (bool, string) {
		s, err := w.f.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		for _, r := range s.Roles {
			if r.Role != kubetest.RoleNodeLifecycle {
				continue
			}
			for _, m := range r.Members {
				for _, u := range m.Units {
					if !u.Synced || u.Queued > 0 {
						return false, fmt.Sprintf("%s: %+v", m.Host, u)
					}
				}
			}
			return r.Held >= partitions && len(r.Members) >= len(w.members), fmt.Sprintf("%d held by %d", r.Held, len(r.Members))
		}
		return false, "no such role"
	})
}

// zone are the names of the nodes of the zone with that number, of so many.
func (w *nodeWorld) zone(number, of int) (names []string) {
	for i, name := range w.names {
		if i%of == number {
			names = append(names, name)
		}
	}
	return names
}

// silence makes nodes fall silent.
func (w *nodeWorld) silence(names ...string) {
	for _, name := range names {
		w.kubelet.Silence(name)
	}
}

// resume lets nodes beat again.
func (w *nodeWorld) resume(names ...string) {
	for _, name := range names {
		w.kubelet.Resume(name)
	}
}

// await waits until all these nodes are so now, and returns how long that took.
// Of one that is not it tells what can be explained.
func (w *nodeWorld) await(ctx context.Context, t *testing.T, within time.Duration, what string, names []string, is func(*corev1.Node) bool) time.Duration {
	t.Helper()
	began := time.Now()
	return eventually(ctx, t, within+10*time.Second, what, func() (bool, string) {
		for _, name := range names {
			if n := w.log.node(name); n == nil || !is(n) {
				if time.Since(began) > within {
					explained, err := w.f.Run(ctx, "explain", "node", name)
					t.Fatalf("%s: not after %s: %s: %s\n%s%v", what, within, name, describe(n), explained, err)
				}
				return false, name
			}
		}
		return true, ""
	})
}

func describe(n *corev1.Node) string {
	if n == nil {
		return "gone"
	}
	s := "Ready=" + string(readyOf(n))
	for _, taint := range n.Spec.Taints {
		s += fmt.Sprintf(" %s:%s", taint.Key, taint.Effect)
	}
	return s
}

// sum adds up a metric of the members that run.
func (w *nodeWorld) sum(ctx context.Context, name string, labels ...string) (sum float64) {
	w.t.Helper()
	for _, m := range w.members {
		metrics, err := m.Metrics(ctx)
		w.must(err)
		sum += metrics.Sum(name, labels...)
	}
	return sum
}

// unitOfNode is the partition of a node.
func unitOfNode(name string) string {
	return fmt.Sprint(partition.OfKey(event.Key{Name: name}, partitions))
}

// holderOf is the member that holds a node's partition.
func (w *nodeWorld) holderOf(own *owners, name string) *fleet.Member {
	w.t.Helper()
	host := own.host(unitOfNode(name))
	for _, m := range w.members {
		if m.Name == host {
			return m
		}
	}
	w.t.Fatalf("unit %s is held by %q, which is none of us", unitOfNode(name), host)
	return nil
}
