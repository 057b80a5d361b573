package watcher

import (
	corev1 "k8s.io/api/core/v1"
)

// projectPod keeps what node lifecycle, eviction, garbage collection, endpoints
// and quota read. Source: order 1.1, part 4, and the contracts.
func projectPod(p *corev1.Pod) *corev1.Pod {
	s, st := &p.Spec, &p.Status
	return &corev1.Pod{
		ObjectMeta: readMeta(p.ObjectMeta),
		Spec: corev1.PodSpec{
			NodeName:              s.NodeName,
			Hostname:              s.Hostname,
			Subdomain:             s.Subdomain,
			Tolerations:           s.Tolerations,
			PriorityClassName:     s.PriorityClassName,
			ActiveDeadlineSeconds: s.ActiveDeadlineSeconds,
			Overhead:              s.Overhead,
			Resources:             s.Resources,
			Affinity:              projectAffinity(s.Affinity),
			Containers:            projectContainers(s.Containers),
			InitContainers:        projectContainers(s.InitContainers),
			EphemeralContainers:   projectEphemeral(s.EphemeralContainers),
		},
		Status: corev1.PodStatus{
			Phase:                       st.Phase,
			Reason:                      st.Reason,
			QOSClass:                    st.QOSClass,
			PodIP:                       st.PodIP,
			PodIPs:                      st.PodIPs,
			Conditions:                  projectPodConditions(st.Conditions),
			ContainerStatuses:           projectStatuses(st.ContainerStatuses),
			InitContainerStatuses:       projectStatuses(st.InitContainerStatuses),
			EphemeralContainerStatuses:  projectStatuses(st.EphemeralContainerStatuses),
			AllocatedResources:          st.AllocatedResources,
			Resources:                   st.Resources,
			ExtendedResourceClaimStatus: st.ExtendedResourceClaimStatus,
		},
	}
}

func projectContainers(in []corev1.Container) []corev1.Container {
	if len(in) == 0 {
		return nil
	}
	out := make([]corev1.Container, len(in))
	for i := range in {
		c := &in[i]
		out[i] = corev1.Container{Name: c.Name, Ports: c.Ports, Resources: c.Resources, RestartPolicy: c.RestartPolicy}
	}
	return out
}

func projectEphemeral(in []corev1.EphemeralContainer) []corev1.EphemeralContainer {
	if len(in) == 0 {
		return nil
	}
	out := make([]corev1.EphemeralContainer, len(in))
	for i := range in {
		c := &in[i]
		out[i].EphemeralContainerCommon = corev1.EphemeralContainerCommon{
			Name: c.Name, Ports: c.Ports, Resources: c.Resources, RestartPolicy: c.RestartPolicy,
		}
	}
	return out
}

// projectStatuses keeps the resources; container states come and go with every
// restart, and who needs to know reads the pod's conditions.
func projectStatuses(in []corev1.ContainerStatus) []corev1.ContainerStatus {
	if len(in) == 0 {
		return nil
	}
	out := make([]corev1.ContainerStatus, len(in))
	for i := range in {
		c := &in[i]
		out[i] = corev1.ContainerStatus{Name: c.Name, AllocatedResources: c.AllocatedResources, Resources: c.Resources}
	}
	return out
}

// projectPodConditions leaves out only the time of the last probe.
func projectPodConditions(in []corev1.PodCondition) []corev1.PodCondition {
	if len(in) == 0 {
		return nil
	}
	out := make([]corev1.PodCondition, len(in))
	for i := range in {
		out[i] = in[i]
		out[i].LastProbeTime.Reset()
	}
	return out
}

// projectAffinity keeps the terms that reach into other namespaces, and of them
// only that, for the quota scope CrossNamespacePodAffinity.
func projectAffinity(a *corev1.Affinity) *corev1.Affinity {
	if a == nil {
		return nil
	}
	var out corev1.Affinity
	if p := a.PodAffinity; p != nil {
		required := crossing(p.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred := crossingWeighted(p.PreferredDuringSchedulingIgnoredDuringExecution)
		if required != nil || preferred != nil {
			out.PodAffinity = &corev1.PodAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution:  required,
				PreferredDuringSchedulingIgnoredDuringExecution: preferred,
			}
		}
	}
	if p := a.PodAntiAffinity; p != nil {
		required := crossing(p.RequiredDuringSchedulingIgnoredDuringExecution)
		preferred := crossingWeighted(p.PreferredDuringSchedulingIgnoredDuringExecution)
		if required != nil || preferred != nil {
			out.PodAntiAffinity = &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution:  required,
				PreferredDuringSchedulingIgnoredDuringExecution: preferred,
			}
		}
	}
	if out.PodAffinity == nil && out.PodAntiAffinity == nil {
		return nil
	}
	return &out
}

func crossing(terms []corev1.PodAffinityTerm) (out []corev1.PodAffinityTerm) {
	for i := range terms {
		if t := &terms[i]; len(t.Namespaces) > 0 || t.NamespaceSelector != nil {
			out = append(out, corev1.PodAffinityTerm{Namespaces: t.Namespaces, NamespaceSelector: t.NamespaceSelector})
		}
	}
	return out
}

func crossingWeighted(terms []corev1.WeightedPodAffinityTerm) (out []corev1.WeightedPodAffinityTerm) {
	for i := range terms {
		if t := &terms[i].PodAffinityTerm; len(t.Namespaces) > 0 || t.NamespaceSelector != nil {
			out = append(out, corev1.WeightedPodAffinityTerm{PodAffinityTerm: corev1.PodAffinityTerm{
				Namespaces: t.Namespaces, NamespaceSelector: t.NamespaceSelector,
			}})
		}
	}
	return out
}
