package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// leaseSeconds is what kubelet v1.37 writes by default (nodeLeaseDurationSeconds).
const leaseSeconds = 40

// retryBeat is the wait after a renewal that did not work, as long as it is
// shorter than the beat.
const retryBeat = 200 * time.Millisecond

// errSilent is what a write of a silent node comes to.
var errSilent = errors.New("the node is silent")

// node is one node as its kubelet knows it.
type node struct {
	name string
	zone string        // may be empty
	addr string        // its own
	pods *addressPool  // its pods'
	look chan struct{} // one token: report now
	gate sync.RWMutex  // read-locked during a write, so that Silence can wait
	mute bool          // under gate

	mu       sync.Mutex
	ready    bool
	beatAt   time.Time
	statusAt time.Time
	lease    *coordinationv1.Lease
}

// newNode gives the node with that number its addresses: 198.18.0.0/15, the
// range for benchmarks (RFC 2544), for nodes, and 2046 of 10.0.0.0/8 for its pods.
func newNode(name string, number int) *node {
	return &node{
		name:  name,
		addr:  offset("198.18.0.1", number),
		pods:  newAddressPool(offset("10.0.0.0", number<<podBits)),
		look:  make(chan struct{}, 1),
		ready: true,
	}
}

// podBits is the size of a node's pod range: 2^11 addresses, so that 8192 nodes
// fit in 10.0.0.0/8.
const podBits = 11

func offset(first string, n int) string {
	b := netip.MustParseAddr(first).As4()
	v := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	v += uint32(n)
	return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}).String()
}

func (n *node) setSilent(silent bool) {
	n.gate.Lock()
	defer n.gate.Unlock()
	n.mute = silent
}

// write does one write, unless the node is silent.
func (n *node) write(ctx context.Context, do func(context.Context) error) error {
	n.gate.RLock()
	defer n.gate.RUnlock()
	if n.mute {
		return errSilent
	}
	ctx, cancel := context.WithTimeout(ctx, writeWithin)
	defer cancel()
	return do(ctx)
}

func (n *node) lookNow() {
	select {
	case n.look <- struct{}{}:
	default: // it will look already
	}
}

func (n *node) setReady(ready bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ready = ready
}

func (n *node) isReady() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ready
}

func (n *node) lastBeat() time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.beatAt
}

// live beats until ctx ends, the first time after first.
func (k *Kubelet) live(ctx context.Context, n *node, first time.Duration) {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-n.look:
		}
		wait := k.cfg.Beat
		if err := errors.Join(k.beat(ctx, n), k.refresh(ctx, n)); err != nil && !errors.Is(err, errSilent) {
			wait = min(wait, retryBeat)
		}
		timer.Reset(wait)
	}
}

// beat renews the node's Lease, making it if there is none.
func (k *Kubelet) beat(ctx context.Context, n *node) error {
	return n.write(ctx, func(ctx context.Context) error {
		n.mu.Lock()
		lease := n.lease
		n.mu.Unlock()
		renewed, err := k.renew(ctx, n.name, lease)
		n.mu.Lock()
		defer n.mu.Unlock()
		if err != nil {
			n.lease = nil // read it again; what comes with an error is an empty one
			return fmt.Errorf("renewing the lease of %s: %w", n.name, err)
		}
		n.lease, n.beatAt = renewed, time.Now()
		return nil
	})
}

func (k *Kubelet) renew(ctx context.Context, name string, lease *coordinationv1.Lease) (*coordinationv1.Lease, error) {
	leases := k.client.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	if lease == nil {
		read, err := leases.Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return leases.Create(ctx, newLease(name), metav1.CreateOptions{})
		}
		if err != nil {
			return nil, err
		}
		lease = read
	}
	lease = lease.DeepCopy()
	now := metav1.NowMicro()
	lease.Spec.RenewTime = &now
	return leases.Update(ctx, lease, metav1.UpdateOptions{})
}

func newLease(name string) *coordinationv1.Lease {
	seconds, now := int32(leaseSeconds), metav1.NowMicro()
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: corev1.NamespaceNodeLease},
		Spec: coordinationv1.LeaseSpec{
			HolderIdentity:       &name,
			LeaseDurationSeconds: &seconds,
			RenewTime:            &now,
		},
	}
}

// refresh writes the node's status when it is due, or when somebody else has
// written what this kubelet does not think.
func (k *Kubelet) refresh(ctx context.Context, n *node) error {
	n.mu.Lock()
	due := time.Since(n.statusAt) >= k.cfg.StatusEvery
	n.mu.Unlock()
	if !due && k.agrees(n) {
		return nil
	}
	return k.reportNode(ctx, n)
}

// agrees tells whether the API server shows the node as it sees itself.
func (k *Kubelet) agrees(n *node) bool {
	obj, ok, err := k.known.GetStore().GetByKey(n.name)
	if err != nil || !ok {
		return true // not seen yet, or deleted: a kubelet registers only on start
	}
	for _, c := range obj.(*corev1.Node).Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == status(n.isReady())
		}
	}
	return false
}

// reportNode writes the node's conditions.
func (k *Kubelet) reportNode(ctx context.Context, n *node) error {
	return n.write(ctx, func(ctx context.Context) error {
		current, err := k.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{ResourceVersion: "0"})
		if err != nil {
			return fmt.Errorf("reading node %s: %w", n.name, err)
		}
		conditions := nodeConditions(current.Status.Conditions, n.isReady())
		patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
		if err != nil {
			return fmt.Errorf("encoding the status of node %s: %w", n.name, err)
		}
		_, err = k.client.CoreV1().Nodes().
			Patch(ctx, n.name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		if err != nil {
			return fmt.Errorf("writing the status of node %s: %w", n.name, err)
		}
		n.mu.Lock()
		defer n.mu.Unlock()
		n.statusAt = time.Now()
		return nil
	})
}

// registerNode makes the node, or takes over one that is there.
func (k *Kubelet) registerNode(ctx context.Context, n *node) error {
	return n.write(ctx, func(ctx context.Context) error {
		_, err := k.client.CoreV1().Nodes().Create(ctx, k.nodeObject(n), metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("registering node %s: %w", n.name, err)
		}
		if err == nil { // else the status is due at the first beat
			n.mu.Lock()
			defer n.mu.Unlock()
			n.statusAt = time.Now()
		}
		return nil
	})
}

func (k *Kubelet) nodeObject(n *node) *corev1.Node {
	labels := map[string]string{corev1.LabelHostname: n.name}
	maps.Copy(labels, k.cfg.Labels)
	if n.zone != "" {
		labels[corev1.LabelTopologyZone] = n.zone
	}
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.name, Labels: labels},
		Spec:       corev1.NodeSpec{PodCIDR: n.pods.cidr(), PodCIDRs: []string{n.pods.cidr()}},
		Status: corev1.NodeStatus{
			Capacity:    k.cfg.Capacity,
			Allocatable: k.cfg.Capacity,
			Addresses: []corev1.NodeAddress{
				{Type: corev1.NodeInternalIP, Address: n.addr},
				{Type: corev1.NodeHostName, Address: n.name},
			},
			Conditions: nodeConditions(nil, true),
		},
	}
}

// nodeConditions are the four a kubelet reports. A transition time is kept while
// the status stays the same.
func nodeConditions(old []corev1.NodeCondition, ready bool) []corev1.NodeCondition {
	now := metav1.Now()
	report := func(kind corev1.NodeConditionType, s corev1.ConditionStatus, reason string) corev1.NodeCondition {
		c := corev1.NodeCondition{Type: kind, Status: s, Reason: reason, LastHeartbeatTime: now, LastTransitionTime: now}
		for _, o := range old {
			if o.Type == kind && o.Status == s {
				c.LastTransitionTime = o.LastTransitionTime
			}
		}
		return c
	}
	readyReason := "KubeletReady"
	if !ready {
		readyReason = "KubeletNotReady"
	}
	return []corev1.NodeCondition{
		report(corev1.NodeMemoryPressure, corev1.ConditionFalse, "KubeletHasSufficientMemory"),
		report(corev1.NodeDiskPressure, corev1.ConditionFalse, "KubeletHasNoDiskPressure"),
		report(corev1.NodePIDPressure, corev1.ConditionFalse, "KubeletHasSufficientPID"),
		report(corev1.NodeReady, status(ready), readyReason),
	}
}

func status(yes bool) corev1.ConditionStatus {
	if yes {
		return corev1.ConditionTrue
	}
	return corev1.ConditionFalse
}
