package main

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

const (
	lifecycle = "nodelifecycle"

	// A tenth of what they are by default: a node beats every 10 s, may be silent for
	// 50 s, and one node of a zone is tainted NoExecute in 10 s. Units: time, nodes per
	// second. Source: ours; nobody likes to wait.
	beat  = time.Second
	grace = 5 * time.Second
	rate  = 1.0

	// early is how long before the grace is over the replica that counts it dies.
	// Unit: time. Source: ours; a take-over takes less.
	early = 2 * time.Second

	// evicting is how long after a node is Unknown it is tainted NoExecute at the
	// latest. Unit: time. Source: a monitor period of 5 s, one token from an empty
	// bucket, and room for a machine that is busy.
	evicting = 12 * time.Second
)

// clocks are those of the roles, as an operator sets them.
func clocks() []string {
	return []string{
		"MILLRACE_NODELIFECYCLE_NODE_MONITOR_GRACE_PERIOD=" + grace.String(),
		"MILLRACE_NODELIFECYCLE_NODE_EVICTION_RATE=" + fmt.Sprint(rate),
		"MILLRACE_PODEVICTOR_ORPHAN_QUARANTINE=" + quarantine.String(),
	}
}

// everywhere is the service that has a pod on every node.
const everywhere = "agent"

// register: nodes come tainted, and are freed once they are ready.
func (s *story) register(ctx context.Context) error {
	at, err := s.seen.until(ctx, func() bool {
		for _, name := range s.nodes {
			if n := s.seen.nodes[name]; n == nil || !isReady(n) || len(n.Spec.Taints) > 0 {
				return false
			}
		}
		return true
	})
	if err != nil {
		return fmt.Errorf("waiting for nodes without taints: %w", err)
	}
	s.line.check("the three nodes are free of the taint that they registered with", s.keeper(ctx, s.nodes...), at.Sub(s.registered), 2*soon)
	return nil
}

// silence: a node stops beating, and what hangs on it follows, step by step.
func (s *story) silence(ctx context.Context) error {
	s.victim = s.choose()
	if err := s.spread(ctx); err != nil {
		return err
	}
	s.seen.expectHealthy(slices.DeleteFunc(slices.Clone(s.nodes), func(n string) bool { return n == s.victim })...)
	by, slicer := s.keeper(ctx, s.victim), s.holder(ctx) // before: to ask takes its time
	s.kubelet.Silence(s.victim)
	lease, err := s.api.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, s.victim, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("reading the last beat of %s: %w", s.victim, err)
	}
	due := lease.Spec.RenewTime.Add(grace)
	s.line.say("%s stops beating, and its pods with it; it may be silent for %s", s.victim, grace)
	limit := soon
	if !s.alone {
		if by, err = s.takeOver(ctx, lifecycle, by, due.Add(-early)); err != nil {
			return err
		}
		limit = takeover
	}
	unknown, err := s.untilNode(ctx, "Unknown", func(n *corev1.Node) bool { return readiness(n) == corev1.ConditionUnknown })
	if err != nil {
		return err
	}
	s.line.fact("it was not judged before its time", !unknown.Before(due))
	s.line.check("Ready is Unknown, beyond the grace", by, unknown.Sub(due), limit)
	stopped, err := s.untilNode(ctx, "tainted NoSchedule", taintedWith(corev1.TaintEffectNoSchedule))
	if err != nil {
		return err
	}
	s.line.check("it is tainted unreachable:NoSchedule, beyond the grace", by, stopped.Sub(due), limit)
	lost, err := s.seen.until(ctx, func() bool { return s.seen.readyOn(s.victim) == 0 })
	if err != nil {
		return fmt.Errorf("waiting for pods that are not ready: %w", err)
	}
	s.line.check("none of its pods is ready, since then", lifecycle, lost.Sub(unknown), soon)
	left, err := s.seen.await(ctx, everywhere, s.agents(s.victim)...)
	if err != nil {
		return err
	}
	s.line.check("its pods have left the slice of service "+everywhere, slicer, left.Sub(unknown), soon)
	executed, err := s.untilNode(ctx, "tainted NoExecute", taintedWith(corev1.TaintEffectNoExecute))
	if err != nil {
		return err
	}
	s.line.check("it is tainted unreachable:NoExecute, at the rate of its zone", by, executed.Sub(unknown), evicting)
	return nil
}

// takeOver: who holds what is about to be due dies at some time before it is; returns
// who holds it then. Whoever goes on neither starts the time anew nor cuts it.
func (s *story) takeOver(ctx context.Context, role, holder string, at time.Time) (successor string, err error) {
	i := slices.IndexFunc(s.f.Members(role), func(m *fleet.Member) bool { return m.Name == holder })
	if i < 0 {
		return "", fmt.Errorf("nobody of %s holds it, but %s", role, holder)
	}
	select {
	case <-time.After(time.Until(at)):
	case <-ctx.Done():
		return "", ctx.Err()
	}
	s.line.say("%s holds it: kill -9, %s before that is over", holder, early)
	s.f.Members(role)[i].Kill()
	return s.f.Members(role)[0].Name, nil // there were two
}

// comeBack: the node beats again, and all of that is undone.
func (s *story) comeBack(ctx context.Context) error {
	by, slicer := s.keeper(ctx, s.victim), s.holder(ctx)
	s.line.say("%s beats again", s.victim)
	began := time.Now()
	s.kubelet.Resume(s.victim)
	ready, err := s.untilNode(ctx, "ready", isReady)
	if err != nil {
		return err
	}
	s.line.say("its kubelet has said that it is ready after %s", millis(ready.Sub(began)))
	free, err := s.untilNode(ctx, "free", func(n *corev1.Node) bool { return isReady(n) && len(n.Spec.Taints) == 0 })
	if err != nil {
		return err
	}
	s.line.check("it has no taint", by, free.Sub(began), soon)
	back, err := s.seen.await(ctx, everywhere, append(s.agents(s.victim), patient)...)
	if err != nil {
		return err
	}
	s.line.check("the pod that was left to it is in the slice again", slicer, back.Sub(began), soon)
	if _, err = s.untilPod(ctx, "gone", agentOn(s.victim), func(p *corev1.Pod) bool { return p == nil }); err != nil {
		return err
	}
	s.line.fact("no other node was Unknown or tainted at any version seen", len(s.seen.hurt()) == 0)
	return nil
}

// spread puts a pod of one service on every node, and one that is more patient on the
// node that is to fall silent.
func (s *story) spread(ctx context.Context) error {
	s.line.say("service %s gets a pod on every node, and %s on %s", everywhere, patient, s.victim)
	labels := map[string]string{"app": everywhere}
	if err := s.createService(ctx, everywhere, labels); err != nil {
		return err
	}
	for _, node := range s.nodes {
		if err := s.createPod(ctx, agentOn(node), node, labels, tolerating(corev1.TaintNodeUnreachable, tolerated)); err != nil {
			return err
		}
	}
	if err := s.createPod(ctx, patient, s.victim, labels, tolerating(maintenance, maintained)); err != nil {
		return err
	}
	_, err := s.seen.await(ctx, everywhere, append(s.agents(""), patient)...)
	return err
}

func (s *story) createService(ctx context.Context, name string, labels map[string]string) error {
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.ServiceSpec{
			Selector: labels,
			Ports:    []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	if _, err := s.api.CoreV1().Services(namespace).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating service %s: %w", name, err)
	}
	return nil
}

// agentOn is the pod of that service on a node.
func agentOn(node string) string { return everywhere + "-" + node }

// agents are those pods on all nodes but one.
func (s *story) agents(without string) (names []string) {
	for _, node := range s.nodes {
		if node != without {
			names = append(names, agentOn(node))
		}
	}
	return names
}

// choose picks the node that is to fall silent: not that of db-0, which is to be
// ready all the time.
func (s *story) choose() string {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	steady := s.seen.pods["db-0"]
	for _, node := range s.nodes {
		if steady == nil || steady.Spec.NodeName != node {
			return node
		}
	}
	return s.nodes[0]
}

// untilNode waits for the silent node to be so.
func (s *story) untilNode(ctx context.Context, what string, so func(*corev1.Node) bool) (time.Time, error) {
	at, err := s.seen.until(ctx, func() bool { n := s.seen.nodes[s.victim]; return n != nil && so(n) })
	if err != nil {
		return at, fmt.Errorf("waiting for node %s to be %s: %w", s.victim, what, err)
	}
	return at, nil
}

// keeper returns the replicas of nodelifecycle that hold some nodes.
func (s *story) keeper(ctx context.Context, nodes ...string) string {
	keys := make([]event.Key, len(nodes))
	for i, node := range nodes {
		keys[i] = event.Key{Name: node}
	}
	return s.holding(ctx, lifecycle, keys...)
}

// holding returns the replica of a role that holds some keys; the role if there are
// several.
func (s *story) holding(ctx context.Context, role string, keys ...event.Key) string {
	st, err := s.f.Status(ctx)
	if err != nil {
		return "?"
	}
	holders := st.Holders(role)
	var hosts []string
	for _, key := range keys {
		host := holders[fmt.Sprint(partition.OfKey(key, st.Partitions))]
		if host != "" && !slices.Contains(hosts, host) {
			hosts = append(hosts, host)
		}
	}
	switch len(hosts) {
	case 0:
		return "nobody"
	case 1:
		return hosts[0]
	default:
		return role
	}
}

// expectHealthy notes nodes that from now on must be ready and without a taint at
// every version.
func (o *observer) expectHealthy(nodes ...string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, n := range nodes {
		o.healthy[n] = true
	}
}

// hurt returns the versions at which a healthy node was not.
func (o *observer) hurt() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.harmed
}

func readiness(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func isReady(n *corev1.Node) bool { return readiness(n) == corev1.ConditionTrue }

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// taintedWith reports of a node whether it is tainted as unreachable.
func taintedWith(effect corev1.TaintEffect) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool {
		return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
			return t.Key == corev1.TaintNodeUnreachable && t.Effect == effect
		})
	}
}

// readyOn returns how many pods of a node are ready. o.mu is held.
func (o *observer) readyOn(node string) (n int) {
	for _, p := range o.pods {
		if p.Spec.NodeName == node && podReady(p) {
			n++
		}
	}
	return n
}
