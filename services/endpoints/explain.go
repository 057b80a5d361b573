package endpoints

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// ruleSlices is the one rule there is, as records name it: the slices of a
// service name its pods.
const ruleSlices = "slices"

// inputs returns what a decision about a service rests on: the object whose
// change asked for it, the service, then its pods.
func (r *reconciler) inputs(key event.Key, s snapshot) []controller.Ref {
	out := make([]controller.Ref, 0, len(s.Pods)+1)
	out = append(out, refTo(services, s.Service))
	for _, pod := range s.Pods {
		out = append(out, refTo(pods, pod))
	}
	cause, ok := r.p.Changed(key)
	if !ok {
		return out
	}
	of := func(ref controller.Ref) bool { return ref.Kind == cause.Message.Kind && ref.Key == cause.Message.Key }
	if i := slices.IndexFunc(out, of); i > 0 {
		cause := out[i]
		copy(out[1:], out[:i])
		out[0] = cause
	}
	return out
}

func refTo(kind event.Kind, o metav1.Object) controller.Ref {
	return controller.Ref(kube.RefTo(kind, o))
}

// concerned returns the services that an object concerns as things stand.
func concerned(p view, kind event.Kind, key event.Key) (out []event.Key) {
	p.View(func(r cache.Reader) {
		switch kind {
		case pods:
			pod, _ := cache.Get[*corev1.Pod](r, pods, key)
			out = ofPod(r, key, nil, pod)
		case sliceKind:
			slice, _ := cache.Get[*discoveryv1.EndpointSlice](r, sliceKind, key)
			if slice == nil {
				return
			}
			if service, ok := ours(slice); ok {
				out = append(out, service)
			}
		}
	})
	return out
}
