package nodelifecycle

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// The rules, as records of decisions name them.
const (
	ruleCondition = "taint-by-condition"
	ruleLabels    = "mirror-labels"
	ruleSilence   = "silence"
	ruleExecute   = "no-execute"
	ruleSwap      = "no-execute-swap"
	ruleRemoval   = "no-execute-removal"
	rulePod       = "pod-not-ready"
)

// soon is when to look again where something is on its way that will not wake the
// key. Unit: time. Source: ours.
const soon = time.Second

// node brings one node to the state it should have: what harms nobody first.
func (r *reconciler) node(ctx context.Context, key event.Key) (controller.Result, error) {
	n, err := r.look(key)
	switch {
	case err != nil:
		return controller.Result{}, err
	case n == nil:
		r.gone(ctx, key)
		return controller.Result{}, nil
	}
	sick := r.see(n)
	r.register(ctx, key, n)
	now, err := r.p.Now()
	if err != nil {
		return controller.Result{}, err
	}
	s := r.silence(n, now)
	// A silence that cannot be acted on yet keeps what harms nobody from nothing.
	var wait time.Duration
	var refused error
	if s.due {
		wait, refused = r.declare(ctx, key, n, s)
		if refused == nil && wait == 0 || refused != nil && classify(refused) != controller.Waiting {
			return controller.Result{}, refused
		}
	}
	down := r.zones.down() && r.census.take(r.p).allDown()
	if p := planned(n, down, now); p.needed() {
		err = r.harmless(ctx, key, n, down)
	} else {
		var next time.Duration
		next, err = r.execute(ctx, key, n, sick, s, down, now)
		wait = sooner(wait, next)
	}
	if err == nil {
		err = refused
	}
	return controller.Result{After: wait}, err
}

// sooner is the smaller of two waits, of which 0 is none.
func sooner(a, b time.Duration) time.Duration {
	if a == 0 || b == 0 {
		return max(a, b)
	}
	return min(a, b)
}

// plan is what is to be changed of a node that harms nobody: taints by condition
// and labels, and what takes a NoExecute taint away.
type plan struct {
	rule    string
	tainted bool
	taints  []corev1.Taint
	labels  map[string]string
}

// planned decides the plan. down: every zone is, and nobody may be evicted.
func planned(n *corev1.Node, down bool, now time.Time) (p plan) {
	p.labels = mirrored(n.Labels)
	if p.labels != nil {
		p.rule = ruleLabels
	}
	if p.taints, p.tainted = conditionTaints(n, now); p.tainted {
		p.rule = ruleCondition
	}
	if wantedNoExecute(n) == remove || down && isTainted(n) {
		with := *n
		with.Spec.Taints = p.taints
		p.taints, p.tainted = withoutNoExecute(&with, corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable), true
		p.rule = ruleRemoval
	}
	return p
}

func (p plan) needed() bool { return p.rule != "" }

// patch is what is sent. The list of taints travels whole.
func (p plan) patch() map[string]any {
	out := map[string]any{}
	if p.labels != nil {
		out["metadata"] = map[string]any{"labels": p.labels}
	}
	if p.tainted {
		out["spec"] = map[string]any{"taints": p.taints}
	}
	return out
}

// harmless decides the plan again on a live read, and writes it.
func (r *reconciler) harmless(ctx context.Context, key event.Key, n *corev1.Node, down bool) error {
	if err := sharedrole.Allowed(ctx, r.p, key, controller.Harmless); err != nil {
		return err
	}
	live, ref, err := r.read(ctx, key, n)
	if err != nil {
		return err
	}
	now, err := r.p.Now()
	if err != nil {
		return err
	}
	return r.follow(ctx, key, live, ref, down, now)
}

// follow writes what the plan of a live node asks for.
func (r *reconciler) follow(ctx context.Context, key event.Key, live *corev1.Node, ref kube.Ref, down bool, now time.Time) error {
	p := planned(live, down, now)
	if !p.needed() {
		return nil
	}
	err := r.write(ctx, key, live, ref, p.rule, controller.Harmless, nil, p.patch())
	if err == nil && p.rule == ruleRemoval {
		r.log.Info("node is free of NoExecute taints", "node", live.Name, "zone", nameOf(zoneOf(live)), "all_zones_down", down)
	}
	return err
}

// read reads a node straight through: what the cache holds of it may be old in
// all that no role reads, so its version is no precondition to go by.
func (r *reconciler) read(ctx context.Context, key event.Key, n *corev1.Node) (*corev1.Node, kube.Ref, error) {
	object, err := r.api.GetOne(ctx, nodes, key)
	if err != nil {
		return nil, kube.Ref{}, err
	}
	r.p.ReadLive(key)
	return judged(object, n)
}

// judged returns the node of a live read, if it is still the one.
func judged(o kube.Object, n *corev1.Node) (*corev1.Node, kube.Ref, error) {
	live, ok := o.Raw.(*corev1.Node)
	if !ok || live.UID != n.UID {
		return nil, kube.Ref{}, fmt.Errorf("node %s is another one now: %w", n.Name, kube.ErrGone)
	}
	return trimNode(live), o.Ref(nodes), nil
}

// write sends one patch of a node's metadata and spec.
func (r *reconciler) write(
	ctx context.Context, key event.Key, n *corev1.Node, ref kube.Ref, rule string, d controller.Danger, valid func() error, patch map[string]any,
) error {
	track := r.track(key, rule, d, n)
	track.Valid = valid
	_, err := r.api.Writer(track.Options(r.writes)).Patch(ctx, ref, patch)
	return track.Err(err)
}

// track ties one write to the frame.
func (r *reconciler) track(key event.Key, rule string, d controller.Danger, n *corev1.Node) *sharedrole.Track {
	return &sharedrole.Track{
		Partition: r.p, Key: key, Rule: rule, Danger: d,
		Inputs: func() []controller.Ref { return []controller.Ref{refTo(nodes, n)} },
	}
}
