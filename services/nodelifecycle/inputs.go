package nodelifecycle

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

const (
	pods  event.Kind = "pods"
	nodes event.Kind = "nodes"

	// projection is the oldest projection that carries what this role reads.
	projection = 1

	byNode = "node" // pods by spec.nodeName
)

// partitionInputs are the kinds of which a holder reads its partition.
func partitionInputs() []cache.Input {
	return []cache.Input{{
		Kind: pods, Projection: projection, Decode: decodePod,
		Indexes: map[string]func(any) []string{byNode: nodeOfPod},
	}}
}

// wideInputs are the kinds that every member reads whole: a zone is judged by all
// of its nodes.
func wideInputs() []cache.Input {
	return []cache.Input{{Kind: nodes, Projection: projection, Decode: decodeNode}}
}

func nodeOfPod(obj any) []string {
	if p, ok := obj.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		return []string{p.Spec.NodeName}
	}
	return nil
}

// decodePod keeps where a pod runs and whether it is Ready.
func decodePod(m event.Message) (any, error) {
	p, err := kube.FromMessage[corev1.Pod](m)
	if err != nil {
		return nil, err
	}
	return trimPod(p), nil
}

func trimPod(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: trimMeta(p.ObjectMeta), Spec: corev1.PodSpec{NodeName: p.Spec.NodeName}}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodReady {
			out.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return out
}

func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp,
	}
}

// readLabels are the labels of a node that a decision reads.
var readLabels = []string{
	labelExclude,
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
	corev1.LabelOSStable, corev1.LabelArchStable, "beta.kubernetes.io/os", "beta.kubernetes.io/arch",
}

func decodeNode(m event.Message) (any, error) {
	n, err := kube.FromMessage[corev1.Node](m)
	if err != nil {
		return nil, err
	}
	return trimNode(n), nil
}

// trimNode keeps what decisions read: every member holds every node, and there
// may be 100 000.
func trimNode(n *corev1.Node) *corev1.Node {
	out := &corev1.Node{
		ObjectMeta: trimMeta(n.ObjectMeta),
		Spec:       corev1.NodeSpec{Unschedulable: n.Spec.Unschedulable, Taints: n.Spec.Taints},
	}
	for _, name := range readLabels {
		if value, has := n.Labels[name]; has {
			if out.Labels == nil {
				out.Labels = make(map[string]string, len(readLabels))
			}
			out.Labels[name] = value
		}
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; isRead(c.Type) {
			out.Status.Conditions = append(out.Status.Conditions, corev1.NodeCondition{
				Type: c.Type, Status: c.Status, LastTransitionTime: c.LastTransitionTime,
			})
		}
	}
	return out
}

func isRead(t corev1.NodeConditionType) bool {
	if t == corev1.NodeReady {
		return true
	}
	for _, row := range byCondition {
		if row.condition == t {
			return true
		}
	}
	return false
}
