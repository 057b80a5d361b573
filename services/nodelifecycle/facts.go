package nodelifecycle

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/facts"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// allZones names the one fact there is about zones.
const allZones = "all"

type (
	registeredFacts = facts.Topic[millracev1.NodeRegistered, *millracev1.NodeRegistered]
	zonesFacts      = facts.Topic[millracev1.NodeZones, *millracev1.NodeZones]
	zonesView       = facts.View[millracev1.NodeZones, *millracev1.NodeZones]
)

// zoneFact is whether all zones are down, as the fleet has agreed, and since when
// that is so. It is written on both edges and by whoever sees one first.
type zoneFact struct {
	topic *zonesFacts
	view  *zonesView
}

func factsOf(store facts.Store) (*registeredFacts, *zoneFact) {
	topic := facts.New[millracev1.NodeZones](store, "zones")
	return facts.New[millracev1.NodeRegistered](store, "registered"), &zoneFact{topic: topic, view: topic.View()}
}

// down reports whether all zones are recorded as down.
func (z *zoneFact) down() bool {
	fact, _ := z.view.Fact(allZones)
	return fact.GetDown()
}

// up returns for how long the zones have not been down since they all were; up is
// false where they never were, or are now. known: the fact is not known otherwise.
func (z *zoneFact) up(now time.Time) (since time.Duration, up, known bool) {
	fact, complete := z.view.Fact(allZones)
	if fact == nil || fact.GetDown() {
		return 0, false, complete
	}
	return max(0, now.Sub(fact.GetSince().AsTime())), true, complete
}

// forbids returns how long nobody may be tainted NoExecute yet ⚠: while all zones
// are recorded as down, whatever this member sees; for a grace period after; and
// while nothing is known of it.
func (z *zoneFact) forbids(now time.Time, grace time.Duration) time.Duration {
	since, up, known := z.up(now)
	switch {
	case !known || z.down():
		return soon
	case up:
		return max(0, grace-since)
	default:
		return 0
	}
}

func (z *zoneFact) changed() <-chan struct{} { return z.view.Changed() }

// recordZones writes what all zones together say, if the fleet believes something
// else. What it is asked under is what any destructive write is: a view that is
// complete and fresh.
func (r *reconciler) recordZones(ctx context.Context) {
	if err := r.p.Guard(ctx, event.Key{Name: allZones}, controller.Destructive); err != nil {
		return // the next tick asks again
	}
	down := r.census.anew(r.p).allDown() // an earlier count may be of what was not complete
	now, err := r.p.Now()
	if err != nil || down == r.zones.down() {
		return
	}
	wrote := false
	_, err = r.zones.topic.Update(ctx, allZones, func(m *millracev1.NodeZones) bool {
		if wrote = m.GetDown() != down; wrote {
			m.Down, m.Since = down, timestamppb.New(now)
		}
		return wrote
	})
	switch {
	case err != nil:
		r.log.Warn("cannot record whether all zones are down, trying on", "down", down, "err", err)
	case wrote:
		r.log.Warn("recorded whether all zones are down", "down", down)
	}
}

// register tells once in the life of a node, over all replicas and restarts, that
// it was registered.
func (r *reconciler) register(ctx context.Context, key event.Key, n *corev1.Node) {
	r.mu.Lock()
	s := r.known[n.Name]
	done := s == nil || s.registered
	r.mu.Unlock()
	if done || sharedrole.May(ctx, r.p, key, controller.Harmless) != nil {
		return
	}
	fact := &millracev1.NodeRegistered{Node: n.Name, At: timestamppb.Now()}
	stands, err := r.registered.Once(ctx, string(n.UID), fact)
	if err != nil {
		return // the next run of the node tries again
	}
	r.mu.Lock()
	s.registered = true
	r.mu.Unlock()
	if stands == fact {
		r.tell(n.Name, n.UID, "RegisteredNode", "Node %s is registered with the node lifecycle controller")
	}
}

// gone forgets a node, and tells so if it was known here.
func (r *reconciler) gone(ctx context.Context, key event.Key) {
	r.evictions.forget(r.p, key)
	r.mu.Lock()
	s := r.known[key.Name]
	delete(r.known, key.Name)
	r.mu.Unlock()
	if s == nil || sharedrole.May(ctx, r.p, key, controller.Harmless) != nil {
		return
	}
	r.tell(key.Name, types.UID(s.uid), "RemovingNode", "Node %s is gone")
	_ = r.registered.Forget(ctx, s.uid) // left behind it harms nobody
}
