package podevictor

import (
	"context"
	"errors"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// reasonsFor say for people by what each rule goes.
var reasonsFor = map[string]string{
	ruleOrphaned:     "its node is gone",
	ruleOutOfService: "it is being deleted, and its node is out of service",
	ruleUnscheduled:  "it is being deleted, and was never bound to a node",
	ruleTerminated:   "it has ended, and more such pods are kept than the threshold allows",
}

// collect deletes a pod by force that nobody runs any more. after is when to look
// again.
func (r *reconciler) collect(ctx context.Context, key event.Key, t *task, pod *corev1.Pod, rule string) (after time.Duration, err error) {
	begun, now := t.rule == rule, time.Now()
	t.rule, t.why, t.node, t.armed = rule, reasonsFor[rule], pod.Spec.NodeName, false
	if !begun {
		t.due = r.clusterTime()
	}
	if wait := r.quarantined(rule, pod, now); wait > 0 {
		t.due, t.waiting = r.clusterTime().Add(wait), waitsQuarantine
		return wait, nil
	}
	if wait := r.recently(key, t.uid, now); wait > 0 {
		t.due, t.waiting = r.clusterTime().Add(wait), waitsTime
		return wait, nil
	}
	if err := sharedrole.Allowed(ctx, sharedrole.OfPart(r.p, partGarbage), key, controller.Evicting); err != nil {
		return 0, err
	}
	return r.discard(ctx, key, t, rule)
}

// quarantined returns for how long yet a pod's node has not been missing long enough.
func (r *reconciler) quarantined(rule string, pod *corev1.Pod, now time.Time) time.Duration {
	if rule != ruleOrphaned {
		return 0
	}
	return r.quarantine.missing(pod.Spec.NodeName, now).Add(r.policy.OrphanQuarantine).Sub(now)
}

// discard deletes a pod, on a live look at it and at its node, unless that shows that
// it is no garbage.
func (r *reconciler) discard(ctx context.Context, key event.Key, t *task, rule string) (after time.Duration, err error) {
	pod, ref, err := r.readPod(ctx, key, t.uid)
	if err != nil {
		return 0, err
	}
	n, _, err := r.found(ctx, pod, rule)
	if err != nil {
		return 0, err
	}
	if garbage(pod, n) != rule {
		return r.spared(pod, n, rule), nil
	}
	if ended(pod) && asked(pod) {
		t.rule = ""
		return 0, nil
	}
	track := r.track(key, partGarbage, rule, reasonsFor[rule], &ref, refOf(n))
	writer := r.api.Writer(lastLook(track.Options(r.writes), func(ctx context.Context) (fresh func() error, err error) {
		if n, fresh, err = r.found(ctx, pod, rule); err == nil && garbage(pod, n) != rule {
			err = errSpared
		}
		return fresh, err
	}))
	if !ended(pod) {
		ref, err = r.fail(ctx, writer, pod, ref, rule)
	}
	if err == nil && !asked(pod) {
		err = writer.Delete(ctx, ref, new(int64))
		r.metrics.forced(key.Namespace, rule, track.Err(err))
	}
	switch {
	case errors.Is(err, errSpared):
		return r.spared(pod, n, rule), nil
	case lapsed(err):
		return atOnce, nil
	}
	if err := track.Err(err); err != nil {
		return 0, err
	}
	r.collected(key, t.uid)
	r.log.Info("pod is collected", "pod", key, "uid", t.uid, "node", t.node, "rule", rule)
	t.rule = ""
	return 0, nil
}

// fail writes that a pod has failed, which nobody else will: controllers wait for it.
// That of an orphan also says why. Source: contract 2, B4.
func (r *reconciler) fail(ctx context.Context, w *kube.Writer, pod *corev1.Pod, ref kube.Ref, rule string) (kube.Ref, error) {
	now, err := r.p.Now()
	if err != nil {
		return ref, err
	}
	return w.PatchStatus(ctx, ref, map[string]any{"status": failed(pod, rule, now)})
}

// failed is the status of a pod that has failed, as far as it is ours to say.
func failed(pod *corev1.Pod, rule string, now time.Time) map[string]any {
	status := map[string]any{"phase": corev1.PodFailed}
	if pod.Generation > 0 {
		status["observedGeneration"] = pod.Generation
	}
	if rule == ruleOrphaned {
		if c := disruption(pod, reasonGarbage, messageOrphan, now); c != nil {
			status["conditions"] = []condition{*c}
		}
	}
	return status
}

// spared returns when to look again at a pod that is no garbage by a live look: its
// node has come, and should it go its quarantine begins anew.
func (r *reconciler) spared(pod *corev1.Pod, n *corev1.Node, rule string) time.Duration {
	if rule != ruleOrphaned || n == nil {
		return soon
	}
	r.quarantine.there(n.Name)
	return max(soon, r.quarantined(rule, pod, time.Now()))
}

// found reads the node of a pod for a rule that goes by it; nil: there is none.
func (r *reconciler) found(ctx context.Context, pod *corev1.Pod, rule string) (n *corev1.Node, fresh func() error, err error) {
	if rule == ruleUnscheduled {
		return nil, func() error { return nil }, nil
	}
	return r.host(ctx, pod.Spec.NodeName)
}

// collection is the last pod of a name that was collected.
type collection struct {
	uid string
	at  time.Time
}

// collected remembers that the pod of a name was.
func (r *reconciler) collected(key event.Key, uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(r.last, func(_ event.Key, c collection) bool { return now.Sub(c.at) >= r.policy.GCPeriod })
	r.last[key] = collection{uid, now}
}

// recently returns for how long yet a name is to be left alone whose last pod was
// collected: who makes it anew at once would have it deleted as fast.
func (r *reconciler) recently(key event.Key, uid string, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if c, was := r.last[key]; was && c.uid != uid {
		return c.at.Add(r.policy.GCPeriod).Sub(now)
	}
	return 0
}
