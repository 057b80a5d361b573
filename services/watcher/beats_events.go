package watcher

import (
	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/kube"
)

// What comes in of heartbeats, in the goroutines of the two watches.

// leaseEvents implements kube.Events for the Leases of nodes.
type leaseEvents struct{ b *beater }

func (e leaseEvents) Replaced(_ uint64, objects []kube.Object) {
	list := make([]beat.Beat, len(objects))
	for i := range objects {
		list[i] = beat.Beat{Node: objects[i].Key.Name, Renewed: kube.Renewed(objects[i].Raw)}
	}
	e.b.metrics.events.Add(float64(len(list)))
	e.b.send(func(a *beat.Ages) { a.Leases(list) })
}

func (e leaseEvents) Changed(o kube.Object, deleted bool) {
	e.b.metrics.events.Inc()
	name, at := o.Key.Name, kube.Renewed(o.Raw)
	e.b.send(func(a *beat.Ages) {
		if deleted {
			a.LeaseGone(name)
			return
		}
		a.Lease(name, at)
	})
}

func (leaseEvents) Progress(uint64) {}

// nodesReplaced and nodeChanged see nodes before they are projected, which drops
// their heartbeats.
func (b *beater) nodesReplaced(objects []kube.Object) {
	list := make([]beat.Beat, len(objects))
	for i := range objects {
		list[i] = beat.Beat{Node: objects[i].Key.Name, UID: objects[i].UID, Heartbeat: kube.Heartbeat(objects[i].Raw)}
	}
	b.send(func(a *beat.Ages) { a.Nodes(list) })
}

func (b *beater) nodeChanged(o kube.Object, deleted bool) {
	name, uid, at := o.Key.Name, o.UID, kube.Heartbeat(o.Raw)
	b.send(func(a *beat.Ages) {
		if deleted {
			a.NodeGone(name)
			return
		}
		a.Node(name, uid, at)
	})
}

var _ kube.Events = leaseEvents{}
