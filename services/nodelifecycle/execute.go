package nodelifecycle

import (
	"context"
	"errors"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/rates"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// execute brings the NoExecute taints of a sick node to what they should be. down:
// every zone is, and nobody is tainted.
func (r *reconciler) execute(
	ctx context.Context, key event.Key, n *corev1.Node, sick time.Time, s silent, down bool, now time.Time,
) (wait time.Duration, err error) {
	want := wantedNoExecute(n)
	if want != add || down {
		r.evictions.forget(r.p, key)
	}
	switch {
	case want == leave || down:
		return 0, nil // the end of that wakes all
	case r.census.take(r.p).allDown():
		return soon, nil // it may end before it is recorded
	case want == swap:
		return 0, r.swap(ctx, key, n)
	}
	if wait := max(r.beating(n, s), r.zones.forbids(now, r.policy.NodeMonitorGracePeriod), r.checks.next(string(n.UID), time.Now())); wait > 0 {
		r.evictions.forget(r.p, key)
		return wait, nil
	}
	token, granted := r.evictions.claim(r.p, key)
	if !granted {
		r.evictions.want(r.p, key, zoneOf(n), sick)
		return 0, nil // a token wakes it
	}
	return r.taint(ctx, key, n, s, token)
}

// beating returns when to look again at a node that is Unknown and must not be
// tainted for it: because it beats again and will say so, or because nothing is
// known of its beats; 0 for one that is silent, or says itself that it is not
// ready.
func (r *reconciler) beating(n *corev1.Node, s silent) time.Duration {
	switch {
	case sickness(n) != corev1.TaintNodeUnreachable:
		return 0
	case !s.judged:
		return soon
	default:
		return max(0, -s.over)
	}
}

// swap puts the one of the two NoExecute taints in the place of the other, at
// once and in one write.
func (r *reconciler) swap(ctx context.Context, key event.Key, n *corev1.Node) error {
	if err := sharedrole.Allowed(ctx, r.p, key, controller.Evicting); err != nil {
		return err
	}
	live, ref, err := r.read(ctx, key, n)
	if err != nil || wantedNoExecute(live) != swap {
		return err
	}
	now, err := r.p.Now()
	if err != nil {
		return err
	}
	return r.write(ctx, key, live, ref, ruleSwap, controller.Evicting, nil, taintsOf(executed(live, now)))
}

// taint adds the NoExecute taint that the node's sickness asks for, with a token
// of its zone, on a live look.
func (r *reconciler) taint(ctx context.Context, key event.Key, n *corev1.Node, s silent, token rates.Token) (wait time.Duration, err error) {
	if err := sharedrole.Allowed(ctx, r.p, key, controller.Evicting); err != nil {
		return 0, err
	}
	live, ref, wait, err := r.lookSick(ctx, key, n, s)
	if err != nil || wait > 0 {
		return wait, err
	}
	if wantedNoExecute(live) != add {
		return soon, nil
	}
	now, err := r.p.Now()
	if err != nil {
		return 0, err
	}
	err = r.write(ctx, key, live, ref, ruleExecute, controller.Evicting, token.Valid, taintsOf(executed(live, now)))
	switch {
	case err == nil:
		r.metrics.evictions.WithLabelValues(zoneOf(live)).Inc()
		r.log.Info("node is tainted NoExecute", "node", n.Name, "taint", sickness(live), "zone", nameOf(zoneOf(live)))
	case errors.Is(err, rates.ErrVoid):
		return time.Millisecond, nil // another token
	}
	return 0, err
}

// lookSick reads a sick node live; where it is silence that it is judged by, its
// Lease as well.
func (r *reconciler) lookSick(ctx context.Context, key event.Key, n *corev1.Node, s silent) (*corev1.Node, kube.Ref, time.Duration, error) {
	if sickness(n) != corev1.TaintNodeUnreachable {
		live, ref, err := r.read(ctx, key, n)
		return live, ref, 0, err
	}
	object, wait, err := r.check(ctx, n, s.Verdict)
	if err != nil || wait > 0 {
		return nil, kube.Ref{}, wait, err
	}
	r.p.ReadLive(key)
	live, ref, err := judged(object, n)
	return live, ref, 0, err
}

func taintsOf(taints []corev1.Taint) map[string]any {
	return map[string]any{"spec": map[string]any{"taints": taints}}
}
