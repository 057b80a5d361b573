package endpoints

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/event"
)

// managedBy marks the slices that are ours to write. Source: contract 3, table
// of controllers.
const managedBy = "endpointslice-controller.k8s.io"

// wanted reports whether the service gets slices from us: it selects pods and
// is not a mere alias. Source: contract 3, D2.
func wanted(s *corev1.Service) bool {
	return s.Spec.Type != corev1.ServiceTypeExternalName && s.Spec.Selector != nil
}

// selects reports whether the service's selector matches the labels.
func selects(s *corev1.Service, labels map[string]string) bool {
	if s.Spec.Selector == nil {
		return false
	}
	for k, v := range s.Spec.Selector {
		if got, ok := labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// ours reports whether a slice is written by this controller, and for which
// service.
func ours(s *discoveryv1.EndpointSlice) (service event.Key, ok bool) {
	name := s.Labels[discoveryv1.LabelServiceName]
	if name == "" || s.Labels[discoveryv1.LabelManagedBy] != managedBy {
		return event.Key{}, false
	}
	return event.Key{Namespace: s.Namespace, Name: name}, true
}

// podMatters reports whether a change of a pod can change a slice. before is
// nil when the pod is new, after when it is gone. Source: contract 3, A2; phase
// and node are looked at besides, which upstream misses until the next event.
func podMatters(before, after *corev1.Pod) bool {
	if before == nil || after == nil {
		return true
	}
	return before.UID != after.UID ||
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		before.Spec.NodeName != after.Spec.NodeName ||
		before.Spec.Hostname != after.Spec.Hostname ||
		before.Spec.Subdomain != after.Spec.Subdomain ||
		terminal(before) != terminal(after) ||
		ready(before) != ready(after) ||
		!slices.Equal(before.Status.PodIPs, after.Status.PodIPs) ||
		!sameLabels(before.Labels, after.Labels)
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded
}

// ready reports whether the pod's Ready condition is True; its phase is not
// asked. Source: contract 3, part B.
func ready(p *corev1.Pod) bool {
	_, ok := readySince(p)
	return ok
}

// readySince returns the time of the Ready condition, and whether it is True.
func readySince(p *corev1.Pod) (time.Time, bool) {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return c.LastTransitionTime.Time, c.Status == corev1.ConditionTrue
		}
	}
	return time.Time{}, false
}

// nodeMatters reports whether a change of a node can change a slice: it came,
// it went, or its zone did.
func nodeMatters(before, after *corev1.Node) bool {
	if before == nil || after == nil {
		return true
	}
	return before.Labels[corev1.LabelTopologyZone] != after.Labels[corev1.LabelTopologyZone]
}

func sameLabels(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if got, ok := b[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// serviceMatters reports whether a change of a service can change its slices:
// its status cannot.
func serviceMatters(before, after *corev1.Service) bool {
	return before == nil || after == nil || before.UID != after.UID ||
		before.Generation != after.Generation || after.Generation == 0 ||
		(before.DeletionTimestamp == nil) != (after.DeletionTimestamp == nil) ||
		!sameLabels(before.Labels, after.Labels) || !sameLabels(before.Annotations, after.Annotations)
}

// triggerTime is what slices that are written now say about since when they were
// out of date; zero: nothing. The library's memory begins with this holder, so
// for a service that has slices already, they are asked. Source: contract 3, D7
// and part H.
func triggerTime(since outdated, s snapshot) time.Time {
	own := func(slice *discoveryv1.EndpointSlice) bool { return metav1.IsControlledBy(slice, s.Service) }
	if !since.synced && slices.ContainsFunc(s.Slices, own) {
		return resumedTrigger(s.Slices, s.Pods)
	}
	return since.trigger
}

// resumedTrigger is the trigger time of the first sync after a claim of a
// service that already has slices: the earliest change of a pod that the slices
// do not know of yet. Zero means that nothing is newer, and that the annotation
// goes. Upstream writes the service's creation time instead, which is years
// wrong after a fail-over. Source: contract 3, D7 and part H.
func resumedTrigger(existing []*discoveryv1.EndpointSlice, pods []*corev1.Pod) time.Time {
	var known time.Time
	for _, s := range existing {
		if t, err := time.Parse(time.RFC3339Nano, s.Annotations[corev1.EndpointsLastChangeTriggerTime]); err == nil && t.After(known) {
			known = t
		}
	}
	if known.IsZero() {
		return known
	}
	var trigger time.Time
	for _, p := range pods {
		if at, _ := readySince(p); at.After(known) {
			trigger = earliest(trigger, at)
		}
	}
	return trigger
}

// earliest returns the earlier of two times, of which zero is none.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
