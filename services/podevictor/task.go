package podevictor

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// task is what there is still to do about one pod, as it was last seen.
type task struct {
	uid string
	// rule is by which, why says it for people, due is when; an empty rule: nothing
	// is to be done.
	rule, why, node string
	due             time.Time
	// waiting is for what, as controller.Pending has it.
	waiting string
	// armed: the pod was told, or will be, if it is spared. told: it has been said of
	// the pod that it is being deleted.
	armed, told bool
}

// What a task may wait for. Source: controller.Pending.
const (
	waitsTime       = "time"
	waitsRate       = "rate"
	waitsFreshness  = "freshness"
	waitsPause      = "pause"
	waitsShadow     = "shadow"
	waitsQuarantine = "quarantine"
	waitsRetry      = "retry"
)

// task returns what is remembered of a pod; of another one under its name, nothing.
func (r *reconciler) task(key event.Key, pod *corev1.Pod) *task {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t := r.tasks[key]; t != nil && t.uid == string(pod.UID) {
		copied := *t
		return &copied
	}
	return &task{uid: string(pod.UID), node: pod.Spec.NodeName}
}

// keep remembers a task, or forgets one that is done.
func (r *reconciler) keep(key event.Key, t *task) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if t.rule == "" {
		delete(r.tasks, key)
		return
	}
	r.tasks[key] = t
}

// settle ends a run: it says what the task waits for now.
func (r *reconciler) settle(key event.Key, t *task, after time.Duration, err error) (controller.Result, error) {
	switch {
	case err == nil:
	case errors.Is(err, controller.ErrShadow):
		t.waiting = waitsShadow
	case errors.Is(err, controller.ErrPaused):
		t.waiting = waitsPause
	case errors.Is(err, controller.ErrStale), errors.Is(err, controller.ErrNotSynced), errors.Is(err, controller.ErrClock):
		t.waiting = waitsFreshness
	case classify(err) == controller.Gone:
		t.rule = ""
	default:
		t.waiting = waitsRetry + ": " + err.Error()
	}
	r.keep(key, t)
	return controller.Result{After: after}, err
}

// lost takes the end of a pod.
func (r *reconciler) lost(ctx context.Context, key event.Key) {
	r.mu.Lock()
	t := r.tasks[key]
	r.mu.Unlock()
	if t != nil {
		r.cancel(ctx, key, t)
	}
}

// cancel ends the task of a pod that is not to be deleted any more, and says so.
func (r *reconciler) cancel(ctx context.Context, key event.Key, t *task) {
	r.line.forget(r.p, key)
	if t.armed && !t.told {
		r.tell(ctx, key, "Cancelling deletion of Pod ")
	}
	r.keep(key, &task{})
}

// tell writes an event about a pod, if this member may write at all. Source: contract
// 2, A10, for the shape of the text and the reference without a UID.
func (r *reconciler) tell(ctx context.Context, key event.Key, text string) {
	if sharedrole.May(ctx, sharedrole.OfPart(r.p, partTaints), key, controller.Harmless) != nil {
		return
	}
	ref := &corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: key.Namespace, Name: key.Name}
	r.events.Event(ref, corev1.EventTypeNormal, "TaintManagerEviction", text+key.String())
}

// remembered are the pods of a partition that there is something to do about.
func (s *podEvictor) remembered(p view) (out []event.Key) {
	s.mu.Lock()
	r := s.held[p]
	s.mu.Unlock()
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for key := range r.tasks {
		out = append(out, key)
	}
	return out
}

// pending is what this member has still to do.
func (s *podEvictor) pending() (out []controller.Pending) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.held {
		r.mu.Lock()
		for key, t := range r.tasks {
			out = append(out, controller.Pending{
				Object: controller.Ref{Kind: pods, Key: key, UID: t.uid}, Node: t.node, Why: t.why, Due: t.due, Waiting: t.waiting,
			})
		}
		r.mu.Unlock()
	}
	slices.SortFunc(out, func(a, b controller.Pending) int { return a.Due.Compare(b.Due) })
	return out
}

// kindOfWait is a wait without what is particular to one pod.
func kindOfWait(waiting string) string {
	kind, _, _ := strings.Cut(waiting, ":")
	return kind
}

// refOf names a node as it was read; nil for none.
func refOf(n *corev1.Node) *kube.Ref {
	if n == nil {
		return nil
	}
	ref := kube.RefTo(nodes, n)
	return &ref
}
