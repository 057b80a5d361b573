package nodelifecycle

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
	"github.com/millrace-io/millrace/shared/protocol"
	sharedrole "github.com/millrace-io/millrace/shared/role"
	"github.com/millrace-io/millrace/shared/silence"
)

// nodeLifecycle is what all partitions of this process share.
type nodeLifecycle struct {
	policy     policy
	partitions int
	api        *kube.API
	writes     kube.WriteOptions
	events     record.EventRecorder
	census     *registrar
	evictions  *evictor
	silences   *silence.Follower
	registered *registeredFacts
	zones      *zoneFact
	checks     *checks
	reads      *kube.SharedReads
	metrics    *metrics
	log        *slog.Logger
	background context.Context //nolint:containedctx // of what runs beside the partitions
}

func newNodeLifecycle(ctx context.Context, p policy, api *kube.API, writes kube.WriteOptions, events record.EventRecorder) *nodeLifecycle {
	return &nodeLifecycle{
		policy: p, api: api, writes: writes, events: events, background: ctx,
		census: &registrar{}, checks: newChecks(), reads: api.SharedReads(nodes, sharedRead),
	}
}

// held is what this role needs of one that it holds; *controller.Partition
// is one.
type held interface {
	view
	Guard(ctx context.Context, key event.Key, d controller.Danger) error
	LiveFirst(key event.Key) bool
	ReadLive(key event.Key)
	Wrote(key event.Key, w protocol.Write)
	Record(key event.Key, d controller.Decision)
	Now() (time.Time, error)
	Shadow() bool
	Wake(key event.Key)
}

// reconciler works on one partition.
type reconciler struct {
	*nodeLifecycle
	p     held
	beats *silence.Partition
	stop  context.CancelFunc
	tasks sync.WaitGroup
	// woken are the nodes that are silent and have been woken for it; watch's alone.
	woken map[string]bool

	mu    sync.Mutex
	known map[string]*sighting // nodes of this partition
}

// sighting is what is remembered of a node while its partition is held.
type sighting struct {
	uid        string
	registered bool
	// sick is since when its Ready condition has not been True, as seen here; zero
	// while it is.
	sick time.Time
}

// forPartition is called for every partition that is claimed.
func (s *nodeLifecycle) forPartition(p held) *reconciler {
	ctx, stop := context.WithCancel(s.background)
	r := &reconciler{
		nodeLifecycle: s, p: p, stop: stop,
		beats: s.silences.Partition(p.Number()), known: make(map[string]*sighting),
	}
	s.metrics.enter(r)
	r.tasks.Go(func() { _ = r.beats.Run(ctx) }) // ends with ctx only
	r.tasks.Go(func() { r.watch(ctx) })
	return r
}

// Close ends what runs beside the keys of a partition that is no longer ours.
func (r *reconciler) Close() error {
	r.stop()
	r.tasks.Wait()
	r.evictions.leave(r.p)
	r.metrics.leave(r)
	return nil
}

// Reconcile brings a node, or a pod of one that has fallen silent, to the state it
// should have.
func (r *reconciler) Reconcile(ctx context.Context, key event.Key) (controller.Result, error) {
	if isNode(key) {
		begun := time.Now()
		defer func() { r.metrics.update.Observe(time.Since(begun).Seconds()) }()
		return r.node(ctx, key)
	}
	return r.pod(ctx, key)
}

// look reads a node from the cache; nil if there is none.
func (r *reconciler) look(key event.Key) (n *corev1.Node, err error) {
	r.p.View(func(reader controller.Reader) {
		if reader.Opaque(nodes, key) {
			err = fmt.Errorf("reading node %s: %w", key, controller.ErrOpaque)
		}
		n, _ = cache.Get[*corev1.Node](reader, nodes, key)
	})
	return n, err
}

// see remembers a node, and returns since when it has been sick; zero: it is not.
func (r *reconciler) see(n *corev1.Node) (sick time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.known[n.Name]
	if s == nil || s.uid != string(n.UID) {
		s = &sighting{uid: string(n.UID)}
		r.known[n.Name] = s
	}
	switch {
	case sickness(n) == "":
		s.sick = time.Time{}
	case s.sick.IsZero():
		s.sick = time.Now()
	}
	return s.sick
}

// classify sorts what a reconcile failed with.
func classify(err error) controller.Class { return controller.Classify(err, classifyRequest) }

// classifyRequest sorts what a request failed with.
func classifyRequest(err error) controller.Class { return sharedrole.ClassifyLive(err) }
