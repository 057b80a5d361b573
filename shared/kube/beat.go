package kube

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/beat"
)

// Renewed is when a Lease says that it was renewed, as beat.Beat has it; 0 for
// another object or none.
func Renewed(raw any) int64 {
	l, ok := raw.(*coordinationv1.Lease)
	if !ok || l.Spec.RenewTime == nil {
		return 0
	}
	return l.Spec.RenewTime.UnixMicro()
}

// neverReported is the reason of conditions that a controller has put where a
// kubelet has never reported any. Source: upstream v1.37.
const neverReported = "NodeStatusNeverUpdated"

// Heartbeat is when a node's Ready condition says that it was reported, as
// beat.Beat has it; 0 for another object or none, and for a condition that no
// kubelet wrote ⚠: ours would be taken for a beat of the node that we found dead.
func Heartbeat(raw any) int64 {
	n, ok := raw.(*corev1.Node)
	if !ok {
		return 0
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Reason != neverReported && !c.LastHeartbeatTime.IsZero() {
			return c.LastHeartbeatTime.Unix()
		}
	}
	return 0
}

// LiveBeat reads a node and its Lease straight through, to be compared with a
// digest, and returns the node too. Of a node that is gone the UID is empty; a
// missing Lease is no error. It does not wait behind the requests of this
// process: the caller limits how often it asks.
func (a *API) LiveBeat(ctx context.Context, name string) (b beat.Beat, node Object, err error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.RequestTimeout)
	defer cancel()
	b.Node = name
	renewed := make(chan renewal, 1)
	go func() { renewed <- a.renewal(ctx, name) }() // both at once: a silence is told when it is due
	n, err := a.checks.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err = Sort(err); err == nil {
		node, err = toObject(n, time.Now())
	}
	lease := <-renewed
	b.Renewed = lease.at
	switch {
	case lease.err != nil:
		return b, Object{}, fmt.Errorf("reading the beat of node %s: %w", name, lease.err)
	case errors.Is(err, ErrNotFound):
		return b, Object{}, nil
	case err != nil:
		return b, Object{}, fmt.Errorf("reading the beat of node %s: %w", name, err)
	}
	b.UID, b.Heartbeat = node.UID, Heartbeat(n)
	return b, node, nil
}

// renewal is when a Lease says that it was renewed; 0 if there is none.
type renewal struct {
	at  int64
	err error
}

func (a *API) renewal(ctx context.Context, name string) renewal {
	lease, err := a.checks.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
	switch err = Sort(err); {
	case err == nil:
		return renewal{at: Renewed(lease)}
	case errors.Is(err, ErrNotFound):
		return renewal{}
	default:
		return renewal{err: err}
	}
}
