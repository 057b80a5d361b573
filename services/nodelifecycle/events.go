package nodelifecycle

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// tell writes an event about a node.
func (r *reconciler) tell(name string, uid types.UID, reason, format string) {
	ref := &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: name, UID: uid}
	r.events.Eventf(ref, corev1.EventTypeNormal, reason, format, name)
}
