package podevictor

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-helpers/node/topology"

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

// wideInputs are the kinds that every member reads whole: a pod's node may be
// anybody's.
func wideInputs() []cache.Input {
	return []cache.Input{{Kind: nodes, Projection: projection, Decode: decodeNode}}
}

func nodeOfPod(obj any) []string {
	if p, ok := obj.(*corev1.Pod); ok && p.Spec.NodeName != "" {
		return []string{p.Spec.NodeName}
	}
	return nil
}

func decodePod(m event.Message) (any, error) {
	p, err := kube.FromMessage[corev1.Pod](m)
	if err != nil {
		return nil, err
	}
	return trimPod(p), nil
}

// trimPod keeps what decisions read.
func trimPod(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{
		ObjectMeta: trimMeta(p.ObjectMeta),
		Spec:       corev1.PodSpec{NodeName: p.Spec.NodeName, Tolerations: p.Spec.Tolerations},
		Status:     corev1.PodStatus{Phase: p.Status.Phase, Reason: p.Status.Reason},
	}
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == corev1.PodScheduled || c.Type == corev1.DisruptionTarget {
			out.Status.Conditions = append(out.Status.Conditions, *c)
		}
	}
	return out
}

func trimMeta(m metav1.ObjectMeta) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Namespace: m.Namespace, Name: m.Name, UID: m.UID, ResourceVersion: m.ResourceVersion, Generation: m.Generation,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
	}
}

// zoneLabels are the labels of a node that name its zone.
var zoneLabels = []string{
	corev1.LabelTopologyZone, corev1.LabelTopologyRegion,
	corev1.LabelFailureDomainBetaZone, corev1.LabelFailureDomainBetaRegion,
}

func decodeNode(m event.Message) (any, error) {
	n, err := kube.FromMessage[corev1.Node](m)
	if err != nil {
		return nil, err
	}
	return trimNode(n), nil
}

// trimNode keeps what decisions read: every member holds every node, and there may
// be 100 000. Most bear no taint that matters.
func trimNode(n *corev1.Node) *corev1.Node {
	out := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, UID: n.UID, ResourceVersion: n.ResourceVersion}}
	for _, t := range n.Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute || t.Key == corev1.TaintNodeOutOfService {
			out.Spec.Taints = append(out.Spec.Taints, t)
		}
	}
	if len(out.Spec.Taints) == 0 {
		return out
	}
	for _, name := range zoneLabels {
		if value, has := n.Labels[name]; has {
			if out.Labels == nil {
				out.Labels = make(map[string]string, len(zoneLabels))
			}
			out.Labels[name] = value
		}
	}
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
			out.Status.Conditions = []corev1.NodeCondition{{Type: c.Type, Status: c.Status}}
		}
	}
	return out
}

// zoneOf names the zone of a node; empty is a zone too.
func zoneOf(n *corev1.Node) string { return topology.GetZoneKey(n) }
