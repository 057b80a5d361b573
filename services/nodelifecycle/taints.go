package nodelifecycle

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Which taints a node should have, by what its conditions say. Nothing here
// reads a clock or writes.

// byCondition is the table of contract 1, section 3.1, for all but Ready.
var byCondition = []struct {
	condition corev1.NodeConditionType
	taint     string
}{
	{corev1.NodeMemoryPressure, corev1.TaintNodeMemoryPressure},
	{corev1.NodeDiskPressure, corev1.TaintNodeDiskPressure},
	{corev1.NodePIDPressure, corev1.TaintNodePIDPressure},
	{corev1.NodeNetworkUnavailable, corev1.TaintNodeNetworkUnavailable},
}

// noSchedule are the taints with that effect which are ours to set and to take
// away, whoever set them.
var noSchedule = map[string]bool{
	corev1.TaintNodeNotReady: true, corev1.TaintNodeUnreachable: true, corev1.TaintNodeUnschedulable: true,
	corev1.TaintNodeMemoryPressure: true, corev1.TaintNodeDiskPressure: true, corev1.TaintNodePIDPressure: true,
	corev1.TaintNodeNetworkUnavailable: true,
}

// statusOf returns the status of a condition; false if the node has none such.
func statusOf(n *corev1.Node, t corev1.NodeConditionType) (corev1.ConditionStatus, bool) {
	for i := range n.Status.Conditions {
		if n.Status.Conditions[i].Type == t {
			return n.Status.Conditions[i].Status, true
		}
	}
	return "", false
}

// sickness returns the key that a node's Ready condition asks for; empty for a
// node that is Ready or has said nothing.
func sickness(n *corev1.Node) string {
	switch status, _ := statusOf(n, corev1.NodeReady); status {
	case corev1.ConditionFalse:
		return corev1.TaintNodeNotReady
	case corev1.ConditionUnknown:
		return corev1.TaintNodeUnreachable
	default:
		return ""
	}
}

// wantedNoSchedule returns the keys with effect NoSchedule that a node should
// have, in a fixed order.
func wantedNoSchedule(n *corev1.Node) []string {
	var keys []string
	if key := sickness(n); key != "" {
		keys = append(keys, key)
	}
	for _, row := range byCondition {
		if status, _ := statusOf(n, row.condition); status == corev1.ConditionTrue {
			keys = append(keys, row.taint)
		}
	}
	if n.Spec.Unschedulable {
		keys = append(keys, corev1.TaintNodeUnschedulable)
	}
	return keys
}

// conditionTaints returns the whole list of taints as it should be regarding
// NoSchedule, and whether that differs. A taint matches by key and effect: its
// value and time are left alone, and so is every taint that is not ours.
func conditionTaints(n *corev1.Node, now time.Time) (taints []corev1.Taint, changed bool) {
	wanted := wantedNoSchedule(n)
	taints = keep(n, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectNoSchedule || !noSchedule[t.Key] || slices.Contains(wanted, t.Key)
	})
	changed = len(taints) != len(n.Spec.Taints)
	for _, key := range wanted {
		if !has(n, key, corev1.TaintEffectNoSchedule) {
			taints, changed = append(taints, taint(key, corev1.TaintEffectNoSchedule, now)), true
		}
	}
	return taints, changed
}

// noExecute is what is to be done about a node's NoExecute taints.
type noExecute uint8

const (
	leave  noExecute = iota
	add              // under the zone's bucket
	swap             // it bears the other one: at once
	remove           // it is Ready again: at once
)

// other returns the other one of the two keys.
func other(key string) string {
	if key == corev1.TaintNodeUnreachable {
		return corev1.TaintNodeNotReady
	}
	return corev1.TaintNodeUnreachable
}

// wantedNoExecute is the table of contract 1, section 5.1.
func wantedNoExecute(n *corev1.Node) noExecute {
	status, present := statusOf(n, corev1.NodeReady)
	key := sickness(n)
	switch {
	case !present:
		return leave
	case status == corev1.ConditionTrue && isTainted(n):
		return remove
	case key == "":
		return leave
	case has(n, other(key), corev1.TaintEffectNoExecute):
		return swap
	case has(n, key, corev1.TaintEffectNoExecute):
		return leave
	default:
		return add
	}
}

// isTainted reports whether a node bears one of the two taints.
func isTainted(n *corev1.Node) bool {
	return has(n, corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute) ||
		has(n, corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
}

// executed returns the taints of a node with the one that its sickness asks for
// and without the other, whose time it takes over ⚠: to the pods it is one taint,
// and their timers go on.
func executed(n *corev1.Node, now time.Time) []corev1.Taint {
	key := sickness(n)
	if has(n, key, corev1.TaintEffectNoExecute) {
		return withoutNoExecute(n, other(key))
	}
	since := now
	for _, t := range n.Spec.Taints {
		if t.Key == other(key) && t.Effect == corev1.TaintEffectNoExecute && t.TimeAdded != nil {
			since = t.TimeAdded.Time
		}
	}
	return append(withoutNoExecute(n, other(key)), taint(key, corev1.TaintEffectNoExecute, since))
}

// withoutNoExecute returns the taints of a node without some.
func withoutNoExecute(n *corev1.Node, keys ...string) []corev1.Taint {
	return keep(n, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectNoExecute || !slices.Contains(keys, t.Key)
	})
}

func keep(n *corev1.Node, wanted func(corev1.Taint) bool) []corev1.Taint {
	out := make([]corev1.Taint, 0, len(n.Spec.Taints)+1)
	for _, t := range n.Spec.Taints {
		if wanted(t) {
			out = append(out, t)
		}
	}
	return out
}

func has(n *corev1.Node, key string, effect corev1.TaintEffect) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key && t.Effect == effect })
}

func taint(key string, effect corev1.TaintEffect, now time.Time) corev1.Taint {
	at := metav1.NewTime(now)
	return corev1.Taint{Key: key, Effect: effect, TimeAdded: &at}
}

// betaLabels maps what is copied to what it is copied from. Source: contract 1,
// section 3.2.
var betaLabels = map[string]string{
	"beta.kubernetes.io/os":   corev1.LabelOSStable,
	"beta.kubernetes.io/arch": corev1.LabelArchStable,
}

// mirrored returns the labels that have to be written; nil for none.
func mirrored(labels map[string]string) map[string]string {
	var out map[string]string
	for beta, stable := range betaLabels {
		want, has := labels[stable]
		if was, had := labels[beta]; !has || had && was == want {
			continue
		}
		if out == nil {
			out = make(map[string]string, len(betaLabels))
		}
		out[beta] = want
	}
	return out
}
