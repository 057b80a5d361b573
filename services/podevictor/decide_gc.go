package podevictor

import (
	corev1 "k8s.io/api/core/v1"
)

// Which pods are garbage. Source: contract 2, B2. Nothing here reads a clock or
// writes.

// The rules, as records of decisions and upstream's metric name them.
const (
	ruleTaint        = "taint-eviction"
	ruleOrphaned     = "orphaned"
	ruleOutOfService = "out-of-service"
	ruleUnscheduled  = "unscheduled"
	ruleTerminated   = "terminated"
)

// garbage returns the rule by which a pod is to be deleted by force; empty: by none.
// n is its node, nil where there is none of that name.
func garbage(pod *corev1.Pod, n *corev1.Node) string {
	switch {
	case pod.Spec.NodeName == "" && pod.DeletionTimestamp != nil:
		return ruleUnscheduled
	case pod.Spec.NodeName == "":
		return ""
	case n == nil:
		return ruleOrphaned
	case pod.DeletionTimestamp != nil && outOfService(n) && !isReady(n):
		return ruleOutOfService
	default:
		return ""
	}
}

// outOfService reports whether somebody has said that a node is switched off.
func outOfService(n *corev1.Node) bool {
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Key == corev1.TaintNodeOutOfService {
			return true
		}
	}
	return false
}

func isReady(n *corev1.Node) bool {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// ended reports whether what a pod runs has ended.
func ended(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}

// asked reports whether a pod has been deleted by force already and stays only for
// its finalizers: to ask again changes nothing. Without one it stays where the API
// server came to no end of it, and must be asked again. It takes a pod as it was read
// live: finalizers do not travel.
func asked(pod *corev1.Pod) bool {
	forced := pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
	return forced && len(pod.Finalizers) > 0
}
