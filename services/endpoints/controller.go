package endpoints

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/endpointslice"
	endpointsliceutil "k8s.io/endpointslice/util"
	"k8s.io/klog/v2" //nolint:depguard // the library takes its logger

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/protocol"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

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
	own      sync.Map // partition → *ownWrites
}

func newEndpointSlices(api kubernetes.Interface, writes kube.WriteOptions, cfg policy, events record.EventRecorder, m *metrics) *endpointSlices {
	s := &endpointSlices{
		api:      api,
		tracker:  endpointsliceutil.NewEndpointSliceTracker(),
		triggers: endpointsliceutil.NewTriggerTimeTracker(),
		events:   events,
		nodes:    &nodeLister{},
		metrics:  m,
	}
	writes.Guard, writes.OnWrite = askGuard, m.wrote
	s.guarded = kube.GuardEndpointSlices(api, kube.GuardOptions{WriteOptions: writes})
	s.lib = endpointslice.NewReconciler(s.guarded, s.nodes, cfg.MaxEndpointsPerSlice, s.tracker, nil, events, managedBy,
		endpointslice.WithPreferSameTrafficDistributionEnabled(true))
	return s
}

// partition is what this role needs of one that it holds; *controller.Partition
// is one.
type partition interface {
	view
	Guard(ctx context.Context, key event.Key, d controller.Danger) error
	ReadLive(key event.Key)
	CatchUp(ctx context.Context) error
	Wrote(key event.Key, w protocol.Write)
	Record(key event.Key, d controller.Decision)
	Intend(key event.Key, effect any)
	Changed(key event.Key) (controller.Cause, bool)
}

// reconciler works on one partition.
type reconciler struct {
	*endpointSlices
	p     partition
	own   *ownWrites
	known knownServices
}

// forPartition is called for every partition that is claimed.
func (s *endpointSlices) forPartition(p partition) *reconciler {
	r := &reconciler{endpointSlices: s, p: p, own: &ownWrites{}}
	s.own.Store(p, r.own)
	return r
}

// ownOf returns the writes of a partition that have not come back.
func (s *endpointSlices) ownOf(p partition) *ownWrites {
	own, _ := s.own.Load(p)
	if writes, ok := own.(*ownWrites); ok {
		return writes
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
func (r *reconciler) Reconcile(ctx context.Context, key event.Key) (_ controller.Result, err error) {
	defer func() { countSync(err) }()
	snap := gather(r.p, key)
	switch {
	case snap.Opaque:
		return controller.Result{}, fmt.Errorf("reading inputs of service %s: %w", key, controller.ErrOpaque)
	case snap.Service == nil:
		r.forget(key) // its slices go with it, by their owner reference
		return controller.Result{}, nil
	case !wanted(snap.Service):
		return controller.Result{}, nil
	}
	if err := r.sync(ctx, key, snap); err != nil {
		r.complain(ctx, snap.Service, err)
		return controller.Result{}, err
	}
	r.metrics.synced(r.p, key)
	return controller.Result{}, nil
}

// sync brings the slices of one service up to date, on a live read of them where
// the frame asks for it or another holder has been at work.
func (r *reconciler) sync(ctx context.Context, key event.Key, snap snapshot) error {
	r.nodes.use(r.p)
	since := r.since(key, snap)
	err := r.apply(ctx, key, snap, since)
	if errors.Is(err, controller.ErrLiveFirst) {
		err = r.syncLive(ctx, key, snap)
	}
	return err
}

// syncLive decides on the slices as the API server holds them. Whoever wrote
// them may have seen further than our inputs have come ⚠: without catching up
// first we would take out again a pod that we have not seen become ready.
func (r *reconciler) syncLive(ctx context.Context, key event.Key, snap snapshot) error {
	live, err := readLive(ctx, r.api, snap)
	if err != nil {
		return err
	}
	if err := r.p.CatchUp(ctx); err != nil {
		return fmt.Errorf("reading service %s live: %w", key, err)
	}
	now := gather(r.p, key)
	switch {
	case now.Opaque:
		return fmt.Errorf("reading inputs of service %s: %w", key, controller.ErrOpaque)
	case now.Service == nil || !wanted(now.Service) || now.Service.UID != snap.Service.UID:
		return nil // its own change has woken it again
	}
	now.Slices, now.Foreign, now.Live = live.Slices, live.Foreign, true
	r.p.ReadLive(key)
	return r.apply(ctx, key, now, r.since(key, now))
}

// silent is the library's log: what it says there comes back as an error, or is
// a line per sync.
var silent klog.Logger

// apply lets the library decide and write, through a session that adds what its
// writes lack: preconditions, names, and the questions of the frame.
func (r *reconciler) apply(ctx context.Context, key event.Key, snap snapshot, since outdated) (err error) {
	track := &sharedrole.Track{
		Partition: r.p, Key: key, Rule: ruleSlices,
		Inputs: func() []controller.Ref { return r.inputs(key, snap) },
	}
	ctx = withGuard(ctx, func(ctx context.Context) error {
		if !snap.Live && since.strange(snap) {
			return fmt.Errorf("writing slices that another holder wrote: %w", controller.ErrLiveFirst)
		}
		return track.Guard(ctx)
	})
	session := r.guarded.Begin(ctx, kube.SliceScope{
		Service:  key,
		OwnerUID: string(snap.Service.UID),
		Existing: slices.Concat(snap.Slices, snap.Foreign),
		OnWrite: func(w kube.Write) {
			if !w.Shadow {
				r.own.note(w)
			}
			track.Wrote(w)
		},
		OnFail: track.Failed,
	})
	defer func() {
		session.End()
		r.tracker.DeleteService(key.Namespace, key.Name) // the frame remembers what was written
		if err = track.Err(err); errors.Is(err, controller.ErrShadow) {
			r.p.Intend(key, reachableBy(session.Slices()))
			return // the slices are as they were, and so is what we know of them
		}
		r.known.put(key, since.after(snap, session.Writes(), err, session.Err() == nil))
	}()
	said := r.lib.Reconcile(silent, snap.Service, snap.Pods, snap.Slices, triggerTime(since, snap))
	return outcome(session.Err(), said)
}

// outcome is what a sync failed with. The session knows its failures best, since
// the library flattens them to text; the library has some of its own. A creation
// refused because the namespace is ending is an outcome only where nothing else
// failed: it is never tried again, and the rest must be.
func outcome(session, library error) error {
	var failed []error
	if joined, ok := session.(interface{ Unwrap() []error }); ok {
		for _, err := range joined.Unwrap() {
			if !errors.Is(err, kube.ErrNamespaceTerminating) {
				failed = append(failed, err)
			}
		}
	}
	switch {
	case failed != nil:
		return errors.Join(failed...)
	case library != nil:
		return fmt.Errorf("reconciling slices: %w", library)
	default:
		return session
	}
}

// since returns since when the slices of a service have been out of date. The
// library tells each time once, so that what a failed sync owes is kept.
func (r *reconciler) since(key event.Key, snap snapshot) outdated {
	told := r.triggers.ComputeEndpointLastChangeTriggerTime(key.Namespace, snap.Service, snap.Pods)
	since := r.known.get(key)
	since.trigger = earliest(since.trigger, told)
	r.known.put(key, since)
	return since
}

func (r *reconciler) forget(key event.Key) {
	r.known.remove(key)
	r.triggers.DeleteService(key.Namespace, key.Name)
	r.lib.DeleteService(key.Namespace, key.Name)
	r.tracker.DeleteService(key.Namespace, key.Name)
}

// complain writes the event that upstream writes, when it is the API server or
// the pods that stand in the way and not our own caution, and only while we may
// write at all.
func (r *reconciler) complain(ctx context.Context, s *corev1.Service, err error) {
	if class := classify(err); class != controller.Retry && class != controller.Final || errors.Is(err, kube.ErrRefused) {
		return
	}
	key := event.Key{Namespace: s.Namespace, Name: s.Name}
	if no := r.p.Guard(ctx, key, controller.Harmless); no != nil && !errors.Is(no, controller.ErrLiveFirst) {
		return
	}
	r.events.Eventf(s, corev1.EventTypeWarning, "FailedToUpdateEndpointSlices",
		"Error updating Endpoint Slices for Service %s/%s: %v", s.Namespace, s.Name, err)
}

// classify sorts what a reconcile failed with.
func classify(err error) controller.Class { return controller.Classify(err, classifyWrite) }

// classifyWrite sorts what a write failed with.
func classifyWrite(err error) controller.Class {
	if errors.Is(err, kube.ErrNamespaceTerminating) {
		return controller.Shadow // nothing can be created there again: the key is done
	}
	return sharedrole.Classify(err)
}
