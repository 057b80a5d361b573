package podevictor

import (
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// soon is when to look again where something is on its way that will not wake the
// key. Unit: time. Source: ours.
const soon = time.Second

// moving is when to look again at a pod whose node is just changing. Unit: time.
// Source: ours; what is to be heard of it is a function call away.
const moving = 10 * time.Millisecond

// atOnce is when to look again where only what allowed a write has run out. Unit:
// time. Source: ours; zero would mean never.
const atOnce = time.Millisecond

// evict does what the taints of a pod's node ask for: nothing, to wait, or to delete
// it. after is when to look again.
func (r *reconciler) evict(ctx context.Context, key event.Key, t *task, pod *corev1.Pod, n *corev1.Node) (after time.Duration, err error) {
	now, err := r.p.Now()
	if err != nil {
		return 0, err
	}
	terms, err := r.sightings.terms(ctx, n, now)
	if errors.Is(err, errMoved) {
		return moving, nil
	}
	if err != nil {
		return 0, err
	}
	v := judge(pod, terms, r.policy.TaintTolerationComparisonOperators)
	if !v.evict {
		r.cancel(ctx, key, t)
		t.rule = ""
		return 0, nil
	}
	t.rule, t.why, t.node, t.due, t.armed = ruleTaint, v.why(), n.Name, v.due, true
	if wait := v.wait(now); wait > 0 {
		r.line.forget(r.p, key)
		t.waiting = waitsTime
		return wait, nil
	}
	if err := sharedrole.Allowed(ctx, sharedrole.OfPart(r.p, partTaints), key, controller.Evicting); err != nil {
		return 0, err
	}
	valid := func() error { return nil }
	if r.p.Mode(partTaints) == controller.ModeActive { // in shadow nobody's token is spent
		token, ok := r.line.pass(r.p, key, n, v.due)
		if !ok {
			t.waiting = waitsRate
			return 0, nil
		}
		if token != nil {
			valid = token
		}
	}
	return r.remove(ctx, key, t, known{n.UID, terms}, valid)
}

// remove deletes a pod that is due, on a live look at it and at its node, unless that
// shows that it is not.
func (r *reconciler) remove(ctx context.Context, key event.Key, t *task, k known, valid func() error) (after time.Duration, err error) {
	pod, ref, err := r.readPod(ctx, key, t.uid)
	if err != nil {
		return 0, err
	}
	v, n, _, err := r.confirm(ctx, t, pod, k)
	if err != nil || !v.evict {
		return soon, err
	}
	if now, err := r.p.Now(); err != nil || v.wait(now) > 0 {
		return v.wait(now), err
	}
	host := refOf(n)
	track := r.track(key, partTaints, ruleTaint, v.why(), &ref, host)
	writer := r.api.Writer(track.Options(r.writes))
	t.told = t.told || r.mark(ctx, key, track)
	if r.policy.EvictionMode == modeDelete {
		if ref, err = r.disrupt(ctx, writer, pod, ref, reasonTaint, messageTaint); err != nil {
			return 0, track.Err(err)
		}
	}
	writer = r.api.Writer(lastLook(track.Options(r.writes), func(ctx context.Context) (func() error, error) {
		v, _, fresh, err := r.confirm(ctx, t, pod, k)
		if now, clock := r.p.Now(); err == nil && (clock != nil || !v.evict || v.wait(now) > 0) {
			err = errors.Join(errSpared, clock)
		}
		return func() error { return errors.Join(valid(), fresh()) }, err
	}))
	if r.policy.EvictionMode == modeEvict {
		err = writer.Evict(ctx, ref)
	} else {
		err = writer.Delete(ctx, ref, nil)
	}
	if errors.Is(err, errSpared) {
		return soon, nil
	}
	if lapsed(err) {
		return atOnce, nil
	}
	if err := track.Err(err); err != nil {
		return 0, err
	}
	r.metrics.deleted(t.due, r.clusterTime())
	r.log.Info("pod is evicted", "pod", key, "uid", t.uid, "node", n.Name, "due", t.due, "why", v.why())
	t.rule = ""
	return 0, nil
}

// mark says that a pod is being deleted, before the first try and once; in shadow
// mode nothing is said, and it is still to be said afterwards.
func (r *reconciler) mark(ctx context.Context, key event.Key, track *sharedrole.Track) (said bool) {
	if track.Partition.Guard(ctx, key, controller.Evicting) != nil {
		return false
	}
	r.tell(ctx, key, "Marking for deletion Pod ")
	return true
}

// confirm judges a pod by its node as the server holds it now. evict is false where
// the node is gone or another one, too: that is not for taints to decide, or there is
// more to be heard of it.
func (r *reconciler) confirm(ctx context.Context, t *task, pod *corev1.Pod, k known) (v verdict, n *corev1.Node, fresh func() error, err error) {
	if pod.DeletionTimestamp != nil || pod.Spec.NodeName != t.node {
		return v, nil, nil, nil
	}
	n, fresh, err = r.host(ctx, t.node)
	if err != nil || n == nil || n.UID != k.uid {
		return v, n, fresh, err
	}
	now, err := r.p.Now()
	if err != nil {
		return v, n, fresh, err
	}
	return judge(pod, k.live(n, now), r.policy.TaintTolerationComparisonOperators), n, fresh, nil
}

// known is what is known of the node by which a pod is judged.
type known struct {
	uid   types.UID
	terms []term
}

// live are the terms of a node as it was read: those that are known, and what it
// bears besides from when it says, or from now. A taint that says another time than
// the one that is known has been away ⚠: the pod has its whole time before it.
func (k known) live(n *corev1.Node, now time.Time) (out []term) {
	for _, t := range executing(n) {
		at := stated(&t, now)
		if at.IsZero() {
			at = now
		}
		if i := slices.IndexFunc(k.terms, func(other term) bool { return continues(&other.taint, &t) }); i >= 0 {
			at = k.terms[i].since
		}
		out = append(out, term{t, at})
	}
	return out
}

// continues reports whether one taint is the other, or has taken its place in the row
// of not-ready and unreachable.
func continues(was, is *corev1.Taint) bool {
	if isSick(was) && isSick(is) && was.Key != is.Key {
		return true
	}
	return was.Key == is.Key && was.Value == is.Value && was.TimeAdded.Equal(is.TimeAdded)
}

// What is written of a pod that is deleted. Source: contract 2, A8 and B4, for the
// reasons; the messages are ours.
const (
	reasonTaint   = "DeletionByTaintManager"
	messageTaint  = "its node bears a NoExecute taint that it does not tolerate, or not any longer"
	reasonGarbage = "DeletionByPodGC"
	messageOrphan = "its node is gone"
)

// condition is a pod's condition as it is sent: what is left out stays as it is.
type condition struct {
	Type               string      `json:"type"`
	Status             string      `json:"status"`
	Reason             string      `json:"reason"`
	Message            string      `json:"message"`
	LastTransitionTime metav1.Time `json:"lastTransitionTime"`
	ObservedGeneration int64       `json:"observedGeneration,omitempty"`
}

// disruption is the condition by which a pod says why it is deleted; nil if it says
// so already. Its time is that of the change of its status.
func disruption(pod *corev1.Pod, reason, message string, now time.Time) *condition {
	out := &condition{
		Type: string(corev1.DisruptionTarget), Status: string(corev1.ConditionTrue), Reason: reason, Message: message,
		LastTransitionTime: metav1.NewTime(now), ObservedGeneration: pod.Generation,
	}
	for i := range pod.Status.Conditions {
		c := &pod.Status.Conditions[i]
		if c.Type != corev1.DisruptionTarget || c.Status != corev1.ConditionTrue {
			continue
		}
		if c.Reason == reason && c.Message == message {
			return nil
		}
		out.LastTransitionTime = c.LastTransitionTime
	}
	return out
}

// disrupt writes the condition, and returns the pod as it is then.
func (r *reconciler) disrupt(ctx context.Context, w *kube.Writer, pod *corev1.Pod, ref kube.Ref, reason, message string) (kube.Ref, error) {
	now, err := r.p.Now()
	if err != nil {
		return ref, err
	}
	c := disruption(pod, reason, message, now)
	if c == nil {
		return ref, nil
	}
	return w.PatchStatus(ctx, ref, map[string]any{"status": map[string]any{"conditions": []condition{*c}}})
}
