package nodelifecycle

import (
	"os"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }

// The names of contract 1, section 3.1, and the effects.
const (
	notReady    = "node.kubernetes.io/not-ready"
	unreachable = "node.kubernetes.io/unreachable"
	cordoned    = "node.kubernetes.io/unschedulable"

	noSched  = corev1.TaintEffectNoSchedule
	noExec   = corev1.TaintEffectNoExecute
	preferNo = corev1.TaintEffectPreferNoSchedule
)

// then and later are two moments, in whole seconds as the API keeps them.
var (
	then  = time.Date(2015, 7, 21, 10, 0, 0, 0, time.UTC)
	later = then.Add(time.Hour)
)

type nodeOption func(n *corev1.Node)

// node makes a node; without options it has said nothing at all.
func node(name string, options ...nodeOption) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-of-" + name)}}
	for _, o := range options {
		o(n)
	}
	return n
}

// says gives a node a condition.
func says(t corev1.NodeConditionType, status corev1.ConditionStatus) nodeOption {
	return func(n *corev1.Node) {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: t, Status: status, Reason: "KubeletSays", Message: "so", LastHeartbeatTime: metav1.NewTime(then), LastTransitionTime: metav1.NewTime(then),
		})
	}
}

// The three things a node can say of itself, and what is said of a silent one.
var (
	ready   = says(corev1.NodeReady, corev1.ConditionTrue)
	sick    = says(corev1.NodeReady, corev1.ConditionFalse)
	unheard = says(corev1.NodeReady, corev1.ConditionUnknown)
)

func unschedulable(n *corev1.Node) { n.Spec.Unschedulable = true }

// bears gives a node a taint, set at the moment then.
func bears(key string, effect corev1.TaintEffect) nodeOption {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taintAt(key, effect, then)) }
}

func withTaints(taints ...corev1.Taint) nodeOption {
	return func(n *corev1.Node) { n.Spec.Taints = append(n.Spec.Taints, taints...) }
}

func taintAt(key string, effect corev1.TaintEffect, at time.Time) corev1.Taint {
	t := metav1.NewTime(at)
	return corev1.Taint{Key: key, Effect: effect, TimeAdded: &t}
}

// labelled gives a node labels: key, value, key, value…
func labelled(pairs ...string) nodeOption {
	return func(n *corev1.Node) {
		if n.Labels == nil {
			n.Labels = map[string]string{}
		}
		for i := 0; i < len(pairs); i += 2 {
			n.Labels[pairs[i]] = pairs[i+1]
		}
	}
}

// in puts a node into a zone.
func in(zone string) nodeOption { return labelled(corev1.LabelTopologyZone, zone) }

// defaults are upstream's defaults: contract 1, section 2.
func defaults() policy {
	return policy{
		NodeMonitorPeriod: 5 * time.Second, NodeMonitorGracePeriod: 50 * time.Second, NodeStartupGracePeriod: time.Minute,
		NodeEvictionRate: 0.1, SecondaryNodeEvictionRate: 0.01, LargeClusterSizeThreshold: 50, UnhealthyZoneThreshold: 0.55,
		DeadZoneEvictionRate: -1,
	}
}
