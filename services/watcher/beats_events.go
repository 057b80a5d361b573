package watcher

import (
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/kube"
)

// What comes in of heartbeats, in the goroutines of the two watches.

// leaseEvents implements kube.Events for the Leases of nodes.
type leaseEvents struct{ b *beater }

func (e leaseEvents) Replaced(_ uint64, objects []kube.Object) {
	list := make([]beat.Beat, len(objects))
	for i := range objects {
		list[i] = beat.Beat{Node: objects[i].Key.Name, Renewed: renewed(objects[i])}
	}
	e.b.metrics.events.Add(float64(len(list)))
	e.b.send(func(a *beat.Ages) { a.Leases(list) })
}

func (e leaseEvents) Changed(o kube.Object, deleted bool) {
	e.b.metrics.events.Inc()
	name, at := o.Key.Name, renewed(o)
	e.b.send(func(a *beat.Ages) {
		if deleted {
			a.LeaseGone(name)
			return
		}
		a.Lease(name, at)
	})
}

func (leaseEvents) Progress(uint64) {}

// renewed is renewTime in microseconds; 0 for none.
func renewed(o kube.Object) int64 {
	if l, ok := o.Raw.(*coordinationv1.Lease); ok && l.Spec.RenewTime != nil {
		return l.Spec.RenewTime.UnixMicro()
	}
	return 0
}

// nodesReplaced and nodeChanged see nodes before they are projected, which drops
// their heartbeats.
func (b *beater) nodesReplaced(objects []kube.Object) {
	list := make([]beat.Beat, len(objects))
	for i := range objects {
		list[i] = beat.Beat{Node: objects[i].Key.Name, UID: objects[i].UID, Heartbeat: heartbeat(objects[i])}
	}
	b.send(func(a *beat.Ages) { a.Nodes(list) })
}

func (b *beater) nodeChanged(o kube.Object, deleted bool) {
	name, uid, at := o.Key.Name, o.UID, heartbeat(o)
	b.send(func(a *beat.Ages) {
		if deleted {
			a.NodeGone(name)
			return
		}
		a.Node(name, uid, at)
	})
}

// heartbeat is lastHeartbeatTime of the Ready condition in seconds; 0 for none.
func heartbeat(o kube.Object) int64 {
	n, ok := o.Raw.(*corev1.Node)
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

var _ kube.Events = leaseEvents{}
