package nodelifecycle

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
)

// may asks whether this member may do something of that danger, or say something
// about a node, once it has read live.
func (r *reconciler) may(ctx context.Context, key event.Key, d controller.Danger) error {
	err := r.p.Guard(ctx, key, d)
	if errors.Is(err, controller.ErrLiveFirst) {
		return nil
	}
	return err
}

// allowed asks before a live look whether a write of that danger could follow: what
// waits for fresh inputs or for the end of a pause asks nobody meanwhile.
func (r *reconciler) allowed(ctx context.Context, key event.Key, d controller.Danger) error {
	err := r.may(ctx, key, d)
	if errors.Is(err, controller.ErrShadow) {
		return nil
	}
	return err
}

// tell writes an event about a node.
func (r *reconciler) tell(name string, uid types.UID, reason, format string) {
	ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: uid}
	r.events.Eventf(ref, corev1.EventTypeNormal, reason, format, name)
}
