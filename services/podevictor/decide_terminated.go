package podevictor

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Which of the pods that have ended go, of the whole cluster. Source: contract 2, B2,
// collection 1. Nothing here reads a clock or writes.

// finished reports whether a pod counts as one that has ended and is kept: any phase
// that is none of these, the empty one too.
func finished(pod *corev1.Pod) bool {
	switch pod.Status.Phase {
	case corev1.PodPending, corev1.PodRunning, corev1.PodUnknown:
		return false
	default:
		return true
	}
}

// excess returns those of the finished pods that are more than may be kept: what a
// kubelet evicted first, then the oldest. It orders pods.
func excess(pods []*corev1.Pod, keep int) []*corev1.Pod {
	slices.SortFunc(pods, func(a, b *corev1.Pod) int {
		if e, f := putOut(a), putOut(b); e != f {
			if e {
				return -1
			}
			return 1
		}
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		if c := strings.Compare(a.Name, b.Name); c != 0 {
			return c
		}
		return strings.Compare(a.Namespace, b.Namespace)
	})
	return pods[:max(0, len(pods)-keep)]
}

// putOut reports whether a kubelet has put a pod out for want of resources.
func putOut(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodFailed && pod.Status.Reason == "Evicted"
}
