package endpoints

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

const (
	pods      event.Kind = "pods"
	services  event.Kind = "services"
	nodes     event.Kind = "nodes"
	sliceKind event.Kind = "endpointslices.discovery.k8s.io"

	// projection is the oldest projection that carries what this role reads.
	projection = 1

	byNode    = "node"    // pods by spec.nodeName
	byPod     = "pod"     // slices by the names of the pods they point to
	byService = "service" // slices by the service they belong to
	bySelects = "selects" // services by one pair of their selector: see pair
)

// partitionInputs are the kinds of which a holder reads its partition.
func partitionInputs() []cache.Input {
	return []cache.Input{
		{
			Kind: services, Projection: projection, Decode: decode[corev1.Service],
			Indexes: map[string]func(any) []string{bySelects: pairOfService},
		},
		{
			Kind: pods, Projection: projection, Decode: decode[corev1.Pod],
			Indexes: map[string]func(any) []string{byNode: nodeOfPod},
		},
		{
			Kind: sliceKind, Projection: projection, Decode: decode[discoveryv1.EndpointSlice],
			Indexes: map[string]func(any) []string{byPod: podsOfSlice, byService: serviceOfSlice},
		},
	}
}

// wideInputs are the kinds that every member reads whole.
func wideInputs() []cache.Input {
	return []cache.Input{{Kind: nodes, Projection: projection, Decode: decode[corev1.Node]}}
}

// inputAge is how old an input may be. Unit: time. Source: ours; bookmarks come
// once a second, so two are missing.
//
// A slice joins a service with its pods, and each kind comes by a watch that
// breaks and comes back by itself ⚠. A service's new selector beside the pods of
// before, which did not match it yet, would take out those it was changed for.
const inputAge = 3 * time.Second

// ages says so of every input.
func ages() map[event.Kind]controller.Ages {
	out := make(map[event.Kind]controller.Ages)
	for _, in := range slices.Concat(partitionInputs(), wideInputs()) {
		out[in.Kind] = controller.Ages{Harmless: inputAge}
	}
	return out
}

// decode is kube.FromMessage, for a cache.
func decode[T any, P interface {
	*T
	metav1.Object
}](m event.Message) (any, error) {
	o, err := kube.FromMessage[T, P](m)
	if err != nil {
		return nil, err
	}
	return o, nil
}

func nodeOfPod(obj any) []string {
	if p := as[corev1.Pod](obj); p.Spec.NodeName != "" {
		return []string{p.Spec.NodeName}
	}
	return nil
}

// pairOfService returns the one place at which the pods that a service selects
// look for it: all of its pairs must match, so one of them is enough to find it.
// It is the longest, in the hope that it is the rarest; app=shop-checkout says
// more than env=prod. An empty selector, which would select every pod, does not
// travel: it arrives as none. Source: contract 3, A4.
func pairOfService(obj any) []string {
	s := as[corev1.Service](obj)
	if len(s.Spec.Selector) == 0 {
		return nil
	}
	var best string
	for k, v := range s.Spec.Selector {
		if p := pair(s.Namespace, k, v); len(p) > len(best) || len(p) == len(best) && p < best {
			best = p
		}
	}
	return []string{best}
}

func pair(namespace, key, value string) string { return namespace + "/" + key + "=" + value }

func serviceOfSlice(obj any) []string {
	slice := as[discoveryv1.EndpointSlice](obj)
	if name := slice.Labels[discoveryv1.LabelServiceName]; name != "" {
		return []string{event.Key{Namespace: slice.Namespace, Name: name}.String()}
	}
	return nil
}

func podsOfSlice(obj any) []string {
	s := as[discoveryv1.EndpointSlice](obj)
	if _, ok := ours(s); !ok {
		return nil
	}
	out := make([]string, 0, len(s.Endpoints))
	for i := range s.Endpoints {
		if ref := s.Endpoints[i].TargetRef; ref != nil && ref.Kind == "Pod" {
			out = append(out, event.Key{Namespace: s.Namespace, Name: ref.Name}.String())
		}
	}
	return out
}
