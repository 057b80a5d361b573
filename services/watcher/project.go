package watcher

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millrace-io/millrace/shared/event"
)

// projection is the version of what project keeps. It grows with every release
// that keeps a field more, because a controller that reads the field must not
// take an older watcher's word. Its copies are in testdata.
const projection = 1

// withBody lists the kinds that travel with a body of their own. Any other kind
// travels as metadata only, Secrets and ConfigMaps for ever.
var withBody = map[event.Kind]bool{
	"pods":                            true,
	"nodes":                           true,
	"services":                        true,
	"endpoints":                       true,
	"endpointslices.discovery.k8s.io": true,
	"resourcequotas":                  true,
	"persistentvolumeclaims":          true,
	"resourceclaims.resource.k8s.io":  true,
	"deviceclasses.resource.k8s.io":   true,
	"namespaces":                      true,
}

// project returns the copy of an object that travels: what some role reads, and
// neither managedFields nor what a container runs or is told. The result shares
// memory with o, which is not changed, and is a fixed point: projecting it again
// changes nothing.
//
// resourceVersion is left out everywhere, because it would make every update a
// different body; it travels in a header, and readers put it back.
func project(o runtime.Object) runtime.Object {
	switch o := o.(type) {
	case *corev1.Pod:
		return projectPod(o)
	case *corev1.Node:
		return projectNode(o)
	case *corev1.Service:
		out := *o
		out.ObjectMeta = wholeMeta(o.ObjectMeta)
		return &out
	case *corev1.Endpoints:
		out := *o
		out.ObjectMeta = wholeMeta(o.ObjectMeta)
		return &out
	case *discoveryv1.EndpointSlice:
		out := *o
		out.ObjectMeta = wholeMeta(o.ObjectMeta)
		return &out
	case *corev1.ResourceQuota:
		return &corev1.ResourceQuota{ObjectMeta: readMeta(o.ObjectMeta), Spec: o.Spec, Status: o.Status}
	case *corev1.PersistentVolumeClaim:
		return projectClaim(o)
	case *corev1.Namespace:
		return projectNamespace(o)
	case *resourcev1.ResourceClaim:
		return projectResourceClaim(o)
	case *resourcev1.DeviceClass:
		return projectDeviceClass(o)
	case metav1.Object:
		return projectMetadata(o)
	default:
		return nil
	}
}

// wholeMeta is the metadata of a kind that travels whole: it is written by PUT,
// so what is left out here would be erased there.
func wholeMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	m.ManagedFields, m.ResourceVersion = nil, ""
	return m
}

// readMeta is the metadata that controllers read.
func readMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name:                       m.Name,
		Namespace:                  m.Namespace,
		UID:                        m.UID,
		Generation:                 m.Generation,
		CreationTimestamp:          m.CreationTimestamp,
		DeletionTimestamp:          m.DeletionTimestamp,
		DeletionGracePeriodSeconds: m.DeletionGracePeriodSeconds,
		Labels:                     m.Labels,
		Annotations:                withoutApplied(m.Annotations),
		OwnerReferences:            m.OwnerReferences,
	}
}

// withoutApplied drops kubectl's copy of the whole object, which would carry
// everything that the projection leaves out.
func withoutApplied(annotations map[string]string) map[string]string {
	if _, has := annotations[corev1.LastAppliedConfigAnnotation]; !has {
		return annotations
	}
	out := make(map[string]string, len(annotations)-1)
	for k, v := range annotations {
		if k != corev1.LastAppliedConfigAnnotation {
			out[k] = v
		}
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// projectMetadata is what a kind that is only counted consists of. No
// annotations: nobody reads them, and people put anything there, secrets too.
func projectMetadata(o metav1.Object) *metav1.PartialObjectMetadata {
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Name:                       o.GetName(),
		Namespace:                  o.GetNamespace(),
		UID:                        o.GetUID(),
		Generation:                 o.GetGeneration(),
		CreationTimestamp:          o.GetCreationTimestamp(),
		DeletionTimestamp:          o.GetDeletionTimestamp(),
		DeletionGracePeriodSeconds: o.GetDeletionGracePeriodSeconds(),
		Labels:                     o.GetLabels(),
		OwnerReferences:            o.GetOwnerReferences(),
	}}
}

// committed is the best that an object tells of when the API server committed
// its newest change: the newest time written into it by the server or by who
// changed it. Resolution: a second, cut off. Deletion times lie in the future
// and say nothing.
func committed(o metav1.Object) time.Time {
	newest := o.GetCreationTimestamp().Time
	later := func(t time.Time) {
		if t.After(newest) {
			newest = t
		}
	}
	for _, f := range o.GetManagedFields() {
		if f.Time != nil {
			later(f.Time.Time)
		}
	}
	switch o := o.(type) {
	case *corev1.Pod:
		for i := range o.Status.Conditions {
			later(o.Status.Conditions[i].LastTransitionTime.Time)
		}
	case *corev1.Node:
		for i := range o.Status.Conditions {
			later(o.Status.Conditions[i].LastTransitionTime.Time)
		}
	}
	return newest
}
