package kube

import (
	"context"
	"errors"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/event"
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

// Heartbeat is when a node's Ready condition says that it was reported, as
// beat.Beat has it; 0 for another object or none.
func Heartbeat(raw any) int64 {
	n, ok := raw.(*corev1.Node)
	if !ok {
		return 0
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady && !c.LastHeartbeatTime.IsZero() {
			return c.LastHeartbeatTime.Unix()
		}
	}
	return 0
}

// LiveBeat reads a node and its Lease straight through, to be compared with a
// digest. Of a node that is gone the UID is empty; a missing Lease is no error.
func (a *API) LiveBeat(ctx context.Context, node string) (beat.Beat, error) {
	b := beat.Beat{Node: node}
	lease, err := a.GetOne(ctx, Leases, event.Key{Namespace: corev1.NamespaceNodeLease, Name: node})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return b, fmt.Errorf("reading the beat of node %s: %w", node, err)
	}
	b.Renewed = Renewed(lease.Raw)
	object, err := a.GetOne(ctx, Nodes, event.Key{Name: node})
	if err != nil && !errors.Is(err, ErrNotFound) {
		return b, fmt.Errorf("reading the beat of node %s: %w", node, err)
	}
	b.UID, b.Heartbeat = object.UID, Heartbeat(object.Raw)
	return b, nil
}
