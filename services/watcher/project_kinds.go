package watcher

import (
	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
)

// projectNode keeps what node lifecycle, eviction and endpoints read. Heartbeat
// times are left out: they change every five minutes and say nothing that a
// digest of beats does not say better.
func projectNode(n *corev1.Node) *corev1.Node {
	out := &corev1.Node{
		ObjectMeta: readMeta(n.ObjectMeta),
		Spec:       corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable, Taints: n.Spec.Taints},
		Status: corev1.NodeStatus{
			Capacity:    n.Status.Capacity,
			Allocatable: n.Status.Allocatable,
			NodeInfo: corev1.NodeSystemInfo{
				OperatingSystem: n.Status.NodeInfo.OperatingSystem,
				Architecture:    n.Status.NodeInfo.Architecture,
			},
		},
	}
	if len(n.Status.Conditions) > 0 {
		out.Status.Conditions = make([]corev1.NodeCondition, len(n.Status.Conditions))
		for i := range n.Status.Conditions {
			out.Status.Conditions[i] = n.Status.Conditions[i]
			out.Status.Conditions[i].LastHeartbeatTime.Reset()
		}
	}
	return out
}

// projectClaim keeps what quota charges a claim by. Source: contract 4, 7.4.
func projectClaim(c *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	out := &corev1.PersistentVolumeClaim{
		ObjectMeta: readMeta(c.ObjectMeta),
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName:          c.Spec.StorageClassName,
			VolumeAttributesClassName: c.Spec.VolumeAttributesClassName,
			Resources:                 c.Spec.Resources,
		},
		Status: corev1.PersistentVolumeClaimStatus{
			AllocatedResources:               c.Status.AllocatedResources,
			CurrentVolumeAttributesClassName: c.Status.CurrentVolumeAttributesClassName,
		},
	}
	if m := c.Status.ModifyVolumeStatus; m != nil {
		out.Status.ModifyVolumeStatus = &corev1.ModifyVolumeStatus{
			TargetVolumeAttributesClassName: m.TargetVolumeAttributesClassName,
		}
	}
	return out
}

// projectNamespace keeps whether a namespace is ending, and what holds it.
func projectNamespace(n *corev1.Namespace) *corev1.Namespace {
	return &corev1.Namespace{
		ObjectMeta: readMeta(n.ObjectMeta),
		Spec:       corev1.NamespaceSpec{Finalizers: n.Spec.Finalizers},
		Status:     corev1.NamespaceStatus{Phase: n.Status.Phase},
	}
}

// projectResourceClaim keeps what quota charges a claim by. Source: contract 4,
// 7.5.
func projectResourceClaim(c *resourcev1.ResourceClaim) *resourcev1.ResourceClaim {
	out := &resourcev1.ResourceClaim{ObjectMeta: readMeta(c.ObjectMeta)}
	for i := range c.Spec.Devices.Requests {
		out.Spec.Devices.Requests = append(out.Spec.Devices.Requests, projectRequest(&c.Spec.Devices.Requests[i]))
	}
	return out
}

func projectRequest(r *resourcev1.DeviceRequest) resourcev1.DeviceRequest {
	out := resourcev1.DeviceRequest{Name: r.Name}
	if e := r.Exactly; e != nil {
		out.Exactly = &resourcev1.ExactDeviceRequest{
			DeviceClassName: e.DeviceClassName, AllocationMode: e.AllocationMode, Count: e.Count, AdminAccess: e.AdminAccess,
		}
	}
	for i := range r.FirstAvailable {
		s := &r.FirstAvailable[i]
		out.FirstAvailable = append(out.FirstAvailable, resourcev1.DeviceSubRequest{
			Name: s.Name, DeviceClassName: s.DeviceClassName, AllocationMode: s.AllocationMode, Count: s.Count,
		})
	}
	return out
}

// projectDeviceClass keeps the name that pods may ask for the class by.
func projectDeviceClass(c *resourcev1.DeviceClass) *resourcev1.DeviceClass {
	return &resourcev1.DeviceClass{
		ObjectMeta: readMeta(c.ObjectMeta),
		Spec:       resourcev1.DeviceClassSpec{ExtendedResourceName: c.Spec.ExtendedResourceName},
	}
}
