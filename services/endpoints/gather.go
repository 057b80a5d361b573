package endpoints

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// snapshot is all that one decision about a service looks at.
type snapshot struct {
	Service *corev1.Service
	Pods    []*corev1.Pod
	// Slices are ours of this service, without those already being deleted.
	Slices []*discoveryv1.EndpointSlice
	// Foreign bear the service's name and are not ours to change, or are being
	// deleted: their names are taken.
	Foreign []*discoveryv1.EndpointSlice
	// Opaque: an input of this decision exists and could not be carried.
	Opaque bool
	// Live: Slices and Foreign were read from the API server, and the rest has
	// caught up with that.
	Live bool
}

// gather reads the cache. Of a service that is none of ours nothing else is
// read, so that nothing else can make it wait.
func gather(p view, key event.Key) (s snapshot) {
	p.View(func(r cache.Reader) {
		s.Opaque = r.Opaque(services, key)
		s.Service, _ = cache.Get[*corev1.Service](r, services, key)
		if s.Service == nil || !wanted(s.Service) {
			return
		}
		for _, pod := range cache.List[*corev1.Pod](r, pods, key.Namespace) {
			if selects(s.Service, pod.Labels) {
				s.Pods = append(s.Pods, pod)
			}
		}
		s.sort(cache.ByIndex[*discoveryv1.EndpointSlice](r, sliceKind, byService, key.String()))
		s.Opaque = opaque(r, key.Namespace, s.Pods)
	})
	return s
}

// opaque reports whether the decision about a service of a namespace reads
// something that could not be carried: any pod or slice, which might be its, or
// the node of one of its pods, whose absence would take the pod out.
func opaque(r cache.Reader, namespace string, selected []*corev1.Pod) bool {
	return len(r.Opaques(pods, namespace)) > 0 || len(r.Opaques(sliceKind, namespace)) > 0 ||
		slices.ContainsFunc(selected, func(p *corev1.Pod) bool { return r.Opaque(nodes, event.Key{Name: p.Spec.NodeName}) })
}

// sort puts the slices that bear the service's name where they belong.
func (s *snapshot) sort(all []*discoveryv1.EndpointSlice) {
	s.Slices, s.Foreign = nil, nil
	for _, slice := range all {
		if _, ok := ours(slice); ok && slice.DeletionTimestamp == nil {
			s.Slices = append(s.Slices, slice)
		} else {
			s.Foreign = append(s.Foreign, slice)
		}
	}
}

// readLive replaces the slices of a snapshot by what the API server holds now:
// a predecessor's last writes may not have come through the stream yet.
func readLive(ctx context.Context, client kubernetes.Interface, s snapshot) (snapshot, error) {
	list, err := client.DiscoveryV1().EndpointSlices(s.Service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: s.Service.Name}.String(),
	})
	if err != nil {
		return s, fmt.Errorf("listing slices of service %s/%s: %w", s.Service.Namespace, s.Service.Name, kube.Sort(err))
	}
	live := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		live[i] = &list.Items[i]
	}
	s.sort(live)
	return s, nil
}
