package kube

import (
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

func TestLiveBeat(t *testing.T) {
	t.Parallel()
	api, _ := dial(t)
	name, client := "beat-of-one", kubetest.Shared(t).Client()
	want := func(what string, b beat.Beat) {
		t.Helper()
		b.Node = name
		if got, _, err := api.LiveBeat(t.Context(), name); err != nil || got != b {
			t.Errorf("%s: %+v, %v; want %+v", what, got, err, b)
		}
	}
	want("neither node nor Lease", beat.Beat{})
	node, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Unix(1_790_000_000, 0)},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want("a node without a Lease", beat.Beat{UID: string(node.UID), Heartbeat: 1_790_000_000})
	at := metav1.NewMicroTime(time.UnixMicro(1_790_000_000_123_456))
	lease := &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{Namespace: corev1.NamespaceNodeLease, Name: name},
		Spec:       coordinationv1.LeaseSpec{RenewTime: &at},
	}
	if _, err := client.CoordinationV1().Leases(lease.Namespace).Create(t.Context(), lease, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want("both", beat.Beat{UID: string(node.UID), Heartbeat: 1_790_000_000, Renewed: 1_790_000_000_123_456})
	if err := client.CoreV1().Nodes().Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	want("a Lease without a node", beat.Beat{Renewed: 1_790_000_000_123_456})
}

// A condition that was put where a kubelet has never reported is no beat: it would
// make the node that it calls dead look alive for another grace period.
func TestAConditionOfNoKubeletIsNoBeat(t *testing.T) {
	node := func(reason string) *corev1.Node {
		return &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: reason, LastHeartbeatTime: metav1.Unix(1_790_000_000, 0)},
		}}}
	}
	for reason, want := range map[string]int64{"NodeStatusNeverUpdated": 0, "NodeStatusUnknown": 1_790_000_000} {
		if got := Heartbeat(node(reason)); got != want {
			t.Errorf("with reason %s: %d, want %d", reason, got, want)
		}
	}
}
