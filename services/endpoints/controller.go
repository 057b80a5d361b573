package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/protocol"
)

// errOpaque: an object that this decision reads could not be carried. The key
// waits: half an input must not shrink a slice.
var errOpaque = errors.New("an input cannot be read")

// endpointSlices is what all partitions of this process share. The library keeps gauges
// over all services, so there is one of it per process.
type endpointSlices struct {
	api      kubernetes.Interface
	guarded  *kube.SliceClient
	lib      *endpointslice.Reconciler
	tracker  *endpointsliceutil.EndpointSliceTracker
	triggers *endpointsliceutil.TriggerTimeTracker
	events   record.EventRecorder
	nodes    *nodeLister
	metrics  *metrics
	own      sync.Map // *controller.Partition → *ownWrites
}

func newEndpointSlices(api kubernetes.Interface, cfg policy, events record.EventRecorder, m *metrics) *endpointSlices {
	s := &endpointSlices{
		api:      api,
		tracker:  endpointsliceutil.NewEndpointSliceTracker(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(),
		events:   events,
		nodes:    &nodeLister{},
		metrics:  m,
	}
	s.guarded = kube.GuardEndpointSlices(api, kube.GuardOptions{WriteOptions: kube.WriteOptions{
		Manager: manager, Guard: askGuard, OnWrite: m.wrote,
	}})
	s.lib = endpointslice.NewReconciler(s.guarded, s.nodes, cfg.MaxEndpointsPerSlice, s.tracker, nil, events, managedBy,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	return s
}

// reconciler works on one partition.
type reconciler struct {
	*endpointSlices
	p   *controller.Partition
	own *ownWrites
	// known are the services whose trigger times this holder follows; before
	// that the slices themselves say how far a predecessor came.
	known knownServices
}

// forPartition is called for every partition that is claimed.
func (s *endpointSlices) forPartition(p *controller.Partition) controller.Reconciler {
	r := &reconciler{endpointSlices: s, p: p, own: &ownWrites{}}
	s.own.Store(p, r.own)
	return r
}

// ownOf returns the writes of a partition that have not come back.
func (s *endpointSlices) ownOf(p *controller.Partition) *ownWrites {
	if own, ok := s.own.Load(p); ok {
		return own.(*ownWrites) //nolint:forcetypeassert // forPartition stores nothing else
	}
	return &ownWrites{}
}

// Close forgets the services of a partition that is no longer ours, so that two
// replicas never count the same one.
func (r *reconciler) Close() error {
	for _, key := range r.known.all() {
		r.forget(key)
	}
	r.endpointSlices.own.Delete(r.p)
	return nil
}

// Reconcile makes the slices of one service say what its pods do.
func (r *reconciler) Reconcile(ctx context.Context, key event.Key) (controller.Result, error) {
	snap := gather(r.p, key)
	switch {
	case snap.Opaque:
		return controller.Result{}, fmt.Errorf("reading inputs of service %s: %w", key, errOpaque)
	case snap.Service == nil:
		r.forget(key) // its slices go with it, by their owner reference
		return controller.Result{}, nil
	case !wanted(snap.Service):
		return controller.Result{}, nil
	}
	r.nodes.use(r.p)
	trigger := r.trigger(key, snap)
	err := r.apply(ctx, key, snap, trigger)
	if errors.Is(err, controller.ErrLiveFirst) {
		if snap, err = readLive(ctx, r.api, snap); err == nil {
			r.p.ReadLive(key)
			err = r.apply(ctx, key, snap, trigger)
		}
	}
	if err != nil {
		r.complain(snap.Service, err)
		return controller.Result{}, err
	}
	r.metrics.synced(r.p, key)
	return controller.Result{}, nil
}

// apply lets the library decide and write, through a session that adds what its
// writes lack: preconditions, names, and the questions of the frame.
func (r *reconciler) apply(ctx context.Context, key event.Key, snap snapshot, trigger time.Time) error {
	ctx = withGuard(ctx, func(ctx context.Context) error { return r.p.Guard(ctx, key, controller.Harmless) })
	session := r.guarded.Begin(ctx, kube.SliceScope{
		Service:  key,
		OwnerUID: string(snap.Service.UID),
		Existing: slices.Concat(snap.Slices, snap.Foreign),
	})
	defer func() {
		session.End()
		for _, w := range session.Writes() {
			r.own.note(w.Ref)
			r.p.Wrote(key, protocol.Write{
				Kind: w.Ref.Kind, Key: w.Ref.Key, UID: w.Ref.UID,
				Version: w.Ref.Version, Deleted: w.Verb == kube.VerbDelete,
			})
		}
	}()
	err := r.lib.Reconcile(klog.Background(), snap.Service, snap.Pods, snap.Slices, trigger)
	return errors.Join(session.Err(), unless(session.Err() != nil, err))
}

// unless returns err where the session does not know better: the library
// flattens the session's errors to text, but has some of its own.
func unless(known bool, err error) error {
	if known || err == nil {
		return nil
	}
	return fmt.Errorf("reconciling slices: %w", err)
}

// trigger returns the time that says since when the slices have been out of
// date. The library's memory begins with this holder, so its first answer for a
// service that already has slices is replaced by what they say.
func (r *reconciler) trigger(key event.Key, snap snapshot) time.Time {
	at := r.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, snap.Service, snap.Pods)
	if r.known.add(key) && len(snap.Slices) > 0 {
		return resumedTrigger(snap.Slices, snap.Pods)
	}
	return at
}

func (r *reconciler) forget(key event.Key) {
	r.known.remove(key)
	r.triggers.DeleteService(key.Namespace, key.Name)
	r.lib.DeleteService(key.Namespace, key.Name)
	r.tracker.DeleteService(key.Namespace, key.Name)
}

// complain writes the event that upstream writes, when it is the API server or
// the pods that stand in the way and not our own caution.
func (r *reconciler) complain(s *corev1.Service, err error) {
	if class := classify(err); class == controller.Retry || class == controller.Final {
		r.events.Eventf(s, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
			"Error updating Endpoint Slices for Service %s/%s: %v", s.Namespace, s.Name, err)
	}
}

// classify sorts what a write failed with.
func classify(err error) controller.Class {
	switch {
	case errors.Is(err, controller.ErrNotHolder):
		return controller.NotHolder
	case errors.Is(err, controller.ErrNotSynced), errors.Is(err, controller.ErrStale), errors.Is(err, errOpaque):
		return controller.Waiting
	case errors.Is(err, controller.ErrShadow):
		return controller.Shadow
	case errors.Is(err, kube.ErrNamespaceTerminating):
		return controller.Shadow // nothing can be created there again: the key is done
	case errors.Is(err, kube.ErrMalformed):
		return controller.Final
	case errors.Is(err, kube.ErrConflict), errors.Is(err, controller.ErrLiveFirst):
		return controller.Conflict
	case errors.Is(err, kube.ErrGone):
		return controller.Gone
	default:
		return controller.Retry
	}
}
