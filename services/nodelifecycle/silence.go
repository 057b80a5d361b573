package nodelifecycle

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// silent is what can be said of a node's silence at one moment.
type silent struct {
	beat.Verdict
	// grace is how long it may be silent, over how long it has been so longer.
	grace, over time.Duration
	// judged: the silence may be believed. due: the node is to be written Unknown.
	judged, due bool
	at          time.Time // when this was said
}

// unknownZones is why nothing is judged before it is known whether all zones have
// been down.
const unknownZones beat.Reason = "it is not known whether all zones were down"

// grace is how long a node may be silent: longer where it has never reported.
func (s *nodeLifecycle) grace(b beat.Beat) time.Duration {
	if b.Heartbeat == 0 {
		return s.policy.NodeStartupGracePeriod
	}
	return s.policy.NodeMonitorGracePeriod
}

// silence judges a node. Since all zones were down last, everybody has a whole
// grace period.
func (r *reconciler) silence(n *corev1.Node, now time.Time) (s silent) {
	s.at = time.Now()
	s.Verdict = r.beats.Of(n.Name, string(n.UID))
	since, up, known := r.zones.up(now)
	switch {
	case !known && s.Why == "":
		s.Why = unknownZones
	case up:
		s.Silence = min(s.Silence, since)
	}
	s.grace = r.grace(s.Beat)
	s.over = s.Silence - s.grace
	s.judged = s.Why == ""
	ready, _ := statusOf(n, corev1.NodeReady)
	s.due = s.judged && s.over >= 0 && ready != corev1.ConditionUnknown
	return s
}

// declare writes a silent node Unknown, after a live look at it and its Lease has
// shown that the digest is not behind ⚠. wait: not yet.
func (r *reconciler) declare(ctx context.Context, key event.Key, n *corev1.Node, s silent) (wait time.Duration, err error) {
	if err := sharedrole.Allowed(ctx, r.p, key, controller.Destructive); err != nil {
		return 0, err
	}
	object, wait, err := r.check(ctx, n, s.Verdict)
	if err != nil || wait > 0 {
		return wait, err
	}
	live, ref, err := judged(object, n)
	if err != nil {
		return 0, err
	}
	now, err := r.p.Now()
	if err != nil {
		return 0, err
	}
	conditions := silentConditions(live, now)
	if conditions == nil {
		return soon, nil // written already: it will come
	}
	r.p.ReadLive(key)
	wasReady := isReady(live)
	track := r.track(key, ruleSilence, controller.Destructive, live)
	after, failed := r.api.Writer(track.Options(r.writes)).PatchStatus(ctx, ref, map[string]any{"status": map[string]any{"conditions": conditions}})
	if err := track.Err(failed); err != nil {
		return 0, err
	}
	r.metrics.delay.Observe((s.over + time.Since(s.at)).Seconds())
	r.log.Info("node is silent, its status is Unknown now", "node", n.Name, "silence", s.Silence, "grace", s.grace)
	if wasReady {
		r.tell(n.Name, n.UID, "NodeNotReady", "Node %s is silent: its status is not known any more")
	}
	apply(live, conditions)
	return 0, r.follow(ctx, key, live, after, false, now)
}

// apply shows a node what has just been written of it.
func apply(n *corev1.Node, conditions []condition) {
	for _, c := range conditions {
		found := false
		for i := range n.Status.Conditions {
			if string(n.Status.Conditions[i].Type) == c.Type {
				n.Status.Conditions[i].Status, found = corev1.ConditionStatus(c.Status), true
			}
		}
		if !found {
			n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
				Type: corev1.NodeConditionType(c.Type), Status: corev1.ConditionStatus(c.Status),
			})
		}
	}
}

// promptly is how long a live look may take to count ⚠: a server that has just
// come to life again answers what waited before it hears of any beat. Unit: time.
// Source: ours; a healthy one answers in milliseconds.
const promptly = time.Second

// check reads a node and its Lease straight through and compares them with the
// digest that the node was judged by. wait: not now, or they do not agree.
func (r *reconciler) check(ctx context.Context, n *corev1.Node, v beat.Verdict) (object kube.Object, wait time.Duration, err error) {
	if wait := r.checks.take(string(n.UID), time.Now()); wait > 0 {
		return object, wait, nil
	}
	sent := time.Now()
	live, object, err := r.api.LiveBeat(ctx, n.Name)
	if err == nil && time.Since(sent) > promptly {
		err = fmt.Errorf("reading the beat of node %s: %w: the answer took %s", n.Name, kube.ErrUnavailable, time.Since(sent))
	}
	if err != nil {
		r.metrics.checks.WithLabelValues("failed").Inc()
		return object, 0, err
	}
	if !r.beats.Live(v.Beat, live) {
		r.metrics.checks.WithLabelValues("contradicted").Inc()
		return object, soon, nil
	}
	r.metrics.checks.WithLabelValues("agreed").Inc()
	return object, 0, nil
}

// watch wakes nodes whose grace has passed, exactly then, and looks after what all
// zones together say, until ctx ends.
func (r *reconciler) watch(ctx context.Context) {
	timer, tick := time.NewTimer(soon), time.NewTicker(soon)
	defer timer.Stop()
	defer tick.Stop()
	changed := r.zones.changed()
	for {
		select {
		case <-ctx.Done():
			return
		case <-changed: // also where it was our own tick that changed it
			changed = r.zones.changed()
			r.wakeAll()
		case <-r.beats.Heard():
		case <-timer.C:
		case <-tick.C:
			r.tick(ctx)
		}
		r.wakeSilent()
		if wait, ok := r.beats.Next(r.grace); ok {
			timer.Reset(wait)
		}
	}
}

// tick counts the time in which nobody could be judged, and keeps the fact about
// all zones true.
func (r *reconciler) tick(ctx context.Context) {
	if r.beats.Suspended() != "" {
		r.metrics.suspended.Add(soon.Seconds())
	}
	if _, complete := r.zones.view.Fact(allZones); complete && r.census.take(r.p).allDown() != r.zones.down() {
		r.recordZones(ctx)
	}
}

// wakeSilent wakes the nodes whose silence is over their grace and which are not
// Unknown yet: no sooner than they may be looked at, and in shadow mode, where they
// stay so, once.
func (r *reconciler) wakeSilent() {
	if r.beats.Suspended() != "" {
		return
	}
	now, shadow := time.Now(), r.p.Shadow()
	woken := map[string]bool{}
	for _, b := range r.beats.Nodes() {
		if v := r.beats.Of(b.Node, b.UID); v.Why != "" || v.Silence < r.grace(b) {
			continue
		}
		if woken[b.Node] = r.woken[b.Node] && shadow; !woken[b.Node] && r.checks.next(b.UID, now) == 0 {
			woken[b.Node] = r.wakeUnlessUnknown(event.Key{Name: b.Node})
		}
	}
	r.woken = woken
}

func (r *reconciler) wakeUnlessUnknown(key event.Key) bool {
	n, err := r.look(key)
	if err != nil || n == nil {
		return false
	}
	if status, _ := statusOf(n, corev1.NodeReady); status == corev1.ConditionUnknown {
		return false
	}
	r.p.Wake(key)
	return true
}

// wakeAll wakes every node of the partition.
func (r *reconciler) wakeAll() {
	r.p.View(func(reader controller.Reader) {
		for _, key := range reader.Keys(nodes) {
			if r.holds(r.p, key) {
				r.p.Wake(key)
			}
		}
	})
}
