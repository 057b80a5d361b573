package podevictor

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// When a pod is to be evicted from its node. Nothing here reads a clock or writes.

// term is a NoExecute taint that a node bears, and since when.
type term struct {
	taint corev1.Taint
	since time.Time
}

// verdict is what the taints of a node mean for one pod on it.
type verdict struct {
	// evict: the pod must go, at due.
	evict bool
	due   time.Time
	// taint is by which, tolerated for how long; 0: not at all. One that is not
	// tolerated comes before those that are, whatever was due first.
	taint     corev1.Taint
	tolerated time.Duration
}

// longest is for how long a taint can be tolerated for some time; for longer is for
// ever, as far as anybody will see. Unit: time. Source: ours; a time.Duration ends
// at 292 years.
const longest = 100 * 365 * 24 * time.Hour

// judge is rule A6 of contract 2 with our deadlines: of each taint the first
// toleration that matches counts, and of all taints the earliest deadline. lenient:
// the operators Lt and Gt match too.
func judge(pod *corev1.Pod, terms []term, lenient bool) (v verdict) {
	bound := boundAt(pod)
	for _, t := range terms {
		tolerated, forever := toleration(pod.Spec.Tolerations, &t.taint, lenient)
		if forever {
			continue
		}
		due := later(t.since, bound).Add(tolerated)
		if !v.evict {
			v = verdict{evict: true, due: due, taint: t.taint, tolerated: tolerated}
			continue
		}
		if (tolerated == 0) == (v.tolerated == 0) && due.Before(v.due) || tolerated == 0 && v.tolerated > 0 {
			v.taint, v.tolerated = t.taint, tolerated
		}
		if due.Before(v.due) { // also of another taint than that: it has been due since then
			v.due = due
		}
	}
	return v
}

// wait returns for how long yet a pod that must go may stay: what is not tolerated
// is not waited for, whatever two clocks say.
func (v verdict) wait(now time.Time) time.Duration {
	if v.tolerated == 0 {
		return 0
	}
	return max(0, v.due.Sub(now))
}

// toleration returns for how long a taint is tolerated.
func toleration(tolerations []corev1.Toleration, taint *corev1.Taint, lenient bool) (d time.Duration, forever bool) {
	for i := range tolerations {
		t := &tolerations[i]
		if !tolerates(t, taint, lenient) {
			continue
		}
		switch s := t.TolerationSeconds; {
		case s == nil:
			return 0, true
		case *s <= 0:
			return 0, false
		default:
			return time.Duration(min(*s, int64(longest/time.Second))) * time.Second, false
		}
	}
	return 0, false
}

// boundAt is when a pod came to its node, as far as it tells ⚠: a pod that is bound
// to a node tainted long ago must have its whole time there.
func boundAt(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	for i := range pod.Status.Conditions {
		if c := &pod.Status.Conditions[i]; c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			at = later(at, c.LastTransitionTime.Time)
		}
	}
	return at
}

func later(a, b time.Time) time.Time {
	if a.Before(b) {
		return b
	}
	return a
}

// why says it for people.
func (v verdict) why() string {
	if v.tolerated == 0 {
		return fmt.Sprintf("taint %s, not tolerated", v.taint.ToString())
	}
	return fmt.Sprintf("taint %s, tolerated for %s", v.taint.ToString(), v.tolerated)
}

// isSick reports whether a taint is one of the two that follow a node's Ready
// condition. To a pod they are one taint: see sightings.
func isSick(t *corev1.Taint) bool {
	return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
}

// executing returns the NoExecute taints of a node.
func executing(n *corev1.Node) (out []corev1.Taint) {
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute {
			out = append(out, t)
		}
	}
	return out
}
