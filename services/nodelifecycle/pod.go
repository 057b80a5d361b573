package nodelifecycle

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// pod makes a pod not Ready whose node has fallen silent: whenever it is seen
// Ready there, whoever has said so.
func (r *reconciler) pod(ctx context.Context, key event.Key) (controller.Result, error) {
	pod, n, err := r.lookPod(key)
	if err != nil || pod == nil || n == nil || !r.marksPods(n) {
		return controller.Result{}, err
	}
	if _, ready := unready(pod, time.Time{}); !ready {
		return controller.Result{}, nil
	}
	live, err := r.hostOf(ctx, n.Name)
	if err != nil {
		return controller.Result{}, err
	}
	if live.UID != n.UID || !r.marksPods(live) {
		return controller.Result{After: soon}, nil // the cache will say so
	}
	if r.p.LiveFirst(key) {
		if pod, err = r.readPod(ctx, key, pod); err != nil {
			return controller.Result{}, err
		}
	}
	return controller.Result{}, r.mark(ctx, key, pod, live)
}

// lookPod reads a pod and its node from the cache; nil for what is not there.
func (r *reconciler) lookPod(key event.Key) (pod *corev1.Pod, n *corev1.Node, err error) {
	r.p.View(func(reader controller.Reader) {
		pod, _ = cache.Get[*corev1.Pod](reader, pods, key)
		if pod == nil || pod.Spec.NodeName == "" {
			return
		}
		at := event.Key{Name: pod.Spec.NodeName}
		if reader.Opaque(nodes, at) {
			err = fmt.Errorf("reading node %s: %w", at, controller.ErrOpaque)
		}
		n, _ = cache.Get[*corev1.Node](reader, nodes, at)
	})
	return pod, n, err
}

// readPod reads a pod straight through.
func (r *reconciler) readPod(ctx context.Context, key event.Key, was *corev1.Pod) (*corev1.Pod, error) {
	object, err := r.api.GetOne(ctx, pods, key)
	if err != nil {
		return nil, err
	}
	live, ok := object.Raw.(*corev1.Pod)
	if !ok || live.UID != was.UID {
		return nil, fmt.Errorf("pod %s is another one now: %w", key, kube.ErrGone)
	}
	r.p.ReadLive(key)
	return trimPod(live), nil
}

// mark writes a pod not Ready.
func (r *reconciler) mark(ctx context.Context, key event.Key, pod *corev1.Pod, n *corev1.Node) error {
	now, err := r.p.Now()
	if err != nil {
		return err
	}
	c, ready := unready(pod, now)
	if !ready {
		return nil
	}
	track := &sharedrole.Track{
		Partition: r.p, Key: key, Rule: rulePod, Danger: controller.Destructive,
		Inputs: func() []controller.Ref { return []controller.Ref{refTo(nodes, n), refTo(pods, pod)} },
	}
	ref := kube.RefTo(pods, pod)
	_, failed := r.api.Writer(track.Options(r.writes)).PatchStatus(ctx, ref, map[string]any{"status": map[string]any{"conditions": []condition{c}}})
	if err := track.Err(failed); err != nil {
		return err
	}
	r.events.Event(pod, corev1.EventTypeWarning, "NodeNotReady", "Node is not ready")
	return nil
}

func refTo(kind event.Kind, o metav1.Object) controller.Ref {
	return controller.Ref(kube.RefTo(kind, o))
}

// sharedRead is how old a read of a node may be that several pods of it are judged
// by. Unit: time. Source: architecture section 10.
const sharedRead = 100 * time.Millisecond

// hostOf reads the node of some pods straight through, for all of them at once.
func (r *reconciler) hostOf(ctx context.Context, name string) (*corev1.Node, error) {
	object, _, err := r.reads.Get(ctx, event.Key{Name: name})
	if err != nil {
		return nil, err
	}
	n, ok := object.Raw.(*corev1.Node)
	if !ok {
		return nil, fmt.Errorf("reading node %s: it is a %T", name, object.Raw)
	}
	return trimNode(n), nil
}
