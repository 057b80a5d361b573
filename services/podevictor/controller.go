package podevictor

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// podEvictor is what all partitions of this process share.
type podEvictor struct {
	policy     policy
	api        *kube.API
	writes     kube.WriteOptions
	events     record.EventRecorder
	hosts      *kube.SharedReads
	sightings  *sightings
	quarantine *quarantine
	line       *line
	metrics    *metrics
	log        *slog.Logger
	// cluster is the API server's clock, as API.ClusterTime has it.
	cluster func(now time.Time) (t time.Time, skew time.Duration, known bool)

	mu   sync.Mutex
	held map[view]*reconciler
}

func newPodEvictor(p policy, api *kube.API, writes kube.WriteOptions, events record.EventRecorder) *podEvictor {
	return &podEvictor{
		policy: p, api: api, writes: writes, events: events, hosts: api.SharedReads(nodes, hostShared),
		cluster:    api.ClusterTime,
		quarantine: newQuarantine(), log: slog.New(slog.DiscardHandler), held: make(map[view]*reconciler),
	}
}

// held is what this role needs of a partition that it holds; *controller.Partition
// is one.
type held interface {
	view
	sharedrole.Parted
	Mode(part string) string
	ReadLive(key event.Key)
	Now() (time.Time, error)
	Wake(key event.Key)
}

// reconciler works on one partition.
type reconciler struct {
	*podEvictor
	p held

	mu    sync.Mutex
	tasks map[event.Key]*task      // of pods that there is something to do about
	last  map[event.Key]collection // by name: see recently
}

// forPartition is called for every partition that is claimed.
func (s *podEvictor) forPartition(p held) *reconciler {
	r := &reconciler{podEvictor: s, p: p, tasks: make(map[event.Key]*task), last: make(map[event.Key]collection)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[p] = r
	return r
}

// Close forgets a partition that is no longer ours.
func (r *reconciler) Close() error {
	r.podEvictor.mu.Lock()
	delete(r.held, r.p)
	r.podEvictor.mu.Unlock()
	r.line.leave(r.p)
	return nil
}

// Reconcile does what there is to be done about one pod: as garbage, or by the taints
// of its node.
func (r *reconciler) Reconcile(ctx context.Context, key event.Key) (controller.Result, error) {
	pod, n, err := r.look(key)
	if err != nil {
		return controller.Result{}, err
	}
	if pod == nil {
		r.lost(ctx, key)
		return controller.Result{}, nil
	}
	t := r.task(key, pod)
	t.waiting = waitsFreshness // unless it turns out to be something else: what was seen live is to be heard of
	rule := garbage(pod, n)
	if rule != "" && r.p.Mode(partGarbage) != controller.ModeOff {
		r.line.forget(r.p, key)
		after, err := r.collect(ctx, key, t, pod, rule)
		return r.settle(key, t, after, err)
	}
	if n == nil || pod.DeletionTimestamp != nil || r.p.Mode(partTaints) == controller.ModeOff {
		r.cancel(ctx, key, t)
		return controller.Result{}, nil
	}
	after, err := r.evict(ctx, key, t, pod, n)
	return r.settle(key, t, after, err)
}

// look reads a pod and its node from the cache; nil for what is not there.
func (r *reconciler) look(key event.Key) (pod *corev1.Pod, n *corev1.Node, err error) {
	r.p.View(func(reader controller.Reader) {
		if reader.Opaque(pods, key) {
			err = fmt.Errorf("reading pod %s: %w", key, controller.ErrOpaque)
			return
		}
		pod, _ = cache.Get[*corev1.Pod](reader, pods, key)
		if pod == nil || pod.Spec.NodeName == "" {
			return
		}
		at := event.Key{Name: pod.Spec.NodeName}
		if reader.Opaque(nodes, at) {
			err = fmt.Errorf("reading node %s: %w", at, controller.ErrOpaque)
			return
		}
		n, _ = cache.Get[*corev1.Node](reader, nodes, at)
	})
	return pod, n, err
}

// readPod reads a pod straight through, if it is still the one.
func (r *reconciler) readPod(ctx context.Context, key event.Key, uid string) (*corev1.Pod, kube.Ref, error) {
	object, err := r.api.GetOne(ctx, pods, key)
	if err != nil {
		return nil, kube.Ref{}, err
	}
	live, ok := object.Raw.(*corev1.Pod)
	if !ok || object.UID != uid {
		return nil, kube.Ref{}, fmt.Errorf("pod %s is another one now: %w", key, kube.ErrGone)
	}
	r.p.ReadLive(key)
	return live, object.Ref(pods), nil
}

// track ties the writes about one pod to the frame.
func (r *reconciler) track(key event.Key, part, rule string, why string, pod, n *kube.Ref) *sharedrole.Track {
	return &sharedrole.Track{
		Partition: sharedrole.OfPart(r.p, part), Key: key, Rule: rule, Danger: controller.Evicting,
		Detail: func() string { return why },
		Inputs: func() []controller.Ref {
			if n == nil {
				return []controller.Ref{controller.Ref(*pod)}
			}
			return []controller.Ref{controller.Ref(*pod), controller.Ref(*n)}
		},
	}
}

// classify sorts what a request failed with.
func classify(err error) controller.Class { return sharedrole.ClassifyLive(err) }
