package nodelifecycle

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// What is written of a node that has fallen silent, and of its pods.

// judgedConditions become Unknown with a silent node. NetworkUnavailable is
// another's to say. Source: contract 1, section 4.3.
var judgedConditions = []corev1.NodeConditionType{
	corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure,
}

// Reasons of conditions. Source: upstream v1.37.
const (
	reasonSilent = "NodeStatusUnknown"
	reasonNever  = "NodeStatusNeverUpdated"
)

// condition is what a patch says of one condition: lists of conditions merge by
// type, and what is left out stays.
type condition struct {
	Type               string       `json:"type"`
	Status             string       `json:"status"`
	Reason             string       `json:"reason,omitempty"`
	Message            string       `json:"message,omitempty"`
	LastHeartbeatTime  *metav1.Time `json:"lastHeartbeatTime,omitempty"`
	LastTransitionTime metav1.Time  `json:"lastTransitionTime"`
}

// silentConditions returns what is to be written of a silent node; nil if its
// Ready condition is Unknown already, which alone decides. The time of the last
// heartbeat is left as it is.
func silentConditions(n *corev1.Node, now time.Time) []condition {
	if ready, _ := statusOf(n, corev1.NodeReady); ready == corev1.ConditionUnknown {
		return nil
	}
	var out []condition
	for _, t := range judgedConditions {
		status, present := statusOf(n, t)
		c := condition{Type: string(t), Status: string(corev1.ConditionUnknown), LastTransitionTime: metav1.NewTime(now)}
		switch {
		case !present:
			created := n.CreationTimestamp
			c.Reason, c.Message, c.LastHeartbeatTime = reasonNever, "the kubelet has never reported this", &created
		case status == corev1.ConditionUnknown:
			continue
		default:
			c.Reason, c.Message = reasonSilent, "the kubelet has stopped reporting"
		}
		out = append(out, c)
	}
	return out
}

// unready returns what is to be written of a pod whose node is gone silent; false
// if it is not Ready as it is, or says nothing about that. Reason and message
// stay. Source: contract 1, section 4.6.
func unready(p *corev1.Pod, now time.Time) (condition, bool) {
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			return condition{
				Type: string(corev1.PodReady), Status: string(corev1.ConditionFalse), LastTransitionTime: metav1.NewTime(now),
			}, c.Status != corev1.ConditionFalse
		}
	}
	return condition{}, false
}
