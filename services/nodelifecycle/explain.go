package nodelifecycle

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
)

// explain says of a node what no object shows: its silence, what stands in the
// way of judging it, how its zone does, and for what it waits.
func (s *nodeLifecycle) explain(p *controller.Partition, key event.Key) []string {
	if !isNode(key) {
		return nil
	}
	r := s.metrics.of(p)
	if r == nil {
		return nil
	}
	n, err := r.look(key)
	if err != nil || n == nil {
		return nil
	}
	now, err := p.Now()
	if err != nil {
		return []string{err.Error()}
	}
	return []string{r.sayBeat(n, now), r.sayZone(n), r.sayTaint(key, n, now)}
}

// sayBeat: the last beat, and whether it may be judged by.
func (r *reconciler) sayBeat(n *corev1.Node, now time.Time) string {
	s := r.silence(n, now)
	text := fmt.Sprintf("silent for %s of %s", s.Silence.Round(100*time.Millisecond), s.grace)
	if s.Renewed != 0 {
		text += ", lease last renewed at " + time.UnixMicro(s.Renewed).UTC().Format("15:04:05.000") + " by its own clock"
	}
	if !s.judged {
		text += "; not judged: " + string(s.Why)
	}
	return text
}

// sayZone: how the zone does, and at what rate it may be tainted.
func (r *reconciler) sayZone(n *corev1.Node) string {
	c := r.census.take(r.p)
	z := c.zones[zoneOf(n)]
	text := fmt.Sprintf("zone %q: %d of %d ready, %s, %g nodes/s may be tainted NoExecute", nameOf(zoneOf(n)), z.ready, z.size(),
		z.state(r.policy.UnhealthyZoneThreshold), c.rate(zoneOf(n), &r.policy))
	if r.zones.down() {
		text += "; all zones are recorded as down"
	}
	return text
}

// sayTaint: what is to be done about the node's NoExecute taints, and what that
// waits for.
func (r *reconciler) sayTaint(key event.Key, n *corev1.Node, now time.Time) string {
	switch wantedNoExecute(n) {
	case swap:
		return "its NoExecute taint is to be swapped"
	case remove:
		return "its NoExecute taints are to be removed"
	case leave:
		if isTainted(n) {
			return "tainted NoExecute as it should be"
		}
		return "not to be tainted NoExecute"
	case add:
	}
	if zone, ahead, waiting := r.evictions.place(r.p, key); waiting > 0 {
		return fmt.Sprintf("waits for a token of zone %q, %d of %d that wait have been sick longer", nameOf(zone), ahead, waiting)
	}
	s := r.silence(n, now)
	if wait := r.beating(n, s); wait > 0 {
		return "beats again, or that is not known: not to be tainted NoExecute"
	}
	if wait := r.zones.forbids(now, r.policy.NodeMonitorGracePeriod); wait > 0 {
		return fmt.Sprintf("all zones are or were down: not to be tainted NoExecute for at least %s", wait.Round(100*time.Millisecond))
	}
	if wait := r.checks.next(string(n.UID), time.Now()); wait > 0 {
		return fmt.Sprintf("to be tainted NoExecute; it may be looked at live again in %s", wait.Round(100*time.Millisecond))
	}
	return "to be tainted NoExecute"
}
