package nodelifecycle

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"pgregory.net/rapid"
)

// patched applies what would be sent as the API server does.
func patched[T any](t complain, object T, conditions []condition) T {
	t.Helper()
	if conditions == nil { // nothing is sent
		return object
	}
	before, err := json.Marshal(object)
	if err != nil {
		t.Errorf("%v", err)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": conditions}})
	if err != nil {
		t.Errorf("%v", err)
	}
	var out T
	after, err := strategicpatch.StrategicMergePatch(before, patch, out)
	if err != nil {
		t.Errorf("%v", err)
	}
	if err := json.Unmarshal(after, &out); err != nil {
		t.Errorf("%v", err)
	}
	return out
}

// condition of a node after the write; the times as seconds.
func conditionOf(n corev1.Node, t corev1.NodeConditionType) *corev1.NodeCondition {
	for i := range n.Status.Conditions {
		if c := &n.Status.Conditions[i]; c.Type == t {
			c.Message = "" // its text is ours to choose
			return c
		}
	}
	return nil
}

// Contract 1, section 4.3 (2), (3) and (4), for each of the four conditions, and
// that no others are touched.
func TestConditionsOfASilentNode(t *testing.T) {
	t.Parallel()
	never := func(c corev1.NodeConditionType) *corev1.NodeCondition {
		return &corev1.NodeCondition{
			Type: c, Status: "Unknown", Reason: "NodeStatusNeverUpdated",
			LastHeartbeatTime: metav1.NewTime(then.Add(-time.Minute)), LastTransitionTime: metav1.NewTime(later),
		}
	}
	lost := func(c corev1.NodeConditionType) *corev1.NodeCondition {
		return &corev1.NodeCondition{
			Type: c, Status: "Unknown", Reason: "NodeStatusUnknown",
			LastHeartbeatTime: metav1.NewTime(then), LastTransitionTime: metav1.NewTime(later),
		}
	}
	same := func(c corev1.NodeConditionType, status corev1.ConditionStatus) *corev1.NodeCondition {
		return &corev1.NodeCondition{
			Type: c, Status: status, Reason: "KubeletSays",
			LastHeartbeatTime: metav1.NewTime(then), LastTransitionTime: metav1.NewTime(then),
		}
	}
	const network = corev1.NodeNetworkUnavailable
	type conditions = map[corev1.NodeConditionType]*corev1.NodeCondition
	tests := map[string]struct {
		node []nodeOption
		want conditions // nil: nothing is written
	}{
		"absent: appended, NodeStatusNeverUpdated, heartbeat = creation, transition = now": {
			nil, conditions{
				"Ready": never("Ready"), "MemoryPressure": never("MemoryPressure"),
				"DiskPressure": never("DiskPressure"), "PIDPressure": never("PIDPressure"), network: nil,
			},
		},
		"present and not Unknown: NodeStatusUnknown, transition = now, heartbeat untouched": {
			[]nodeOption{ready, says("MemoryPressure", "False"), says("DiskPressure", "True"), says("PIDPressure", "False")},
			conditions{"Ready": lost("Ready"), "MemoryPressure": lost("MemoryPressure"), "DiskPressure": lost("DiskPressure"), "PIDPressure": lost("PIDPressure")},
		},
		"Ready = False is silent too": {
			[]nodeOption{sick, says("MemoryPressure", "False"), says("DiskPressure", "False"), says("PIDPressure", "False")},
			conditions{"Ready": lost("Ready"), "MemoryPressure": lost("MemoryPressure"), "DiskPressure": lost("DiskPressure"), "PIDPressure": lost("PIDPressure")},
		},
		"already Unknown: untouched": {
			[]nodeOption{ready, says("MemoryPressure", "Unknown"), says("DiskPressure", "False"), says("PIDPressure", "Unknown")},
			conditions{"Ready": lost("Ready"), "MemoryPressure": same("MemoryPressure", "Unknown"), "DiskPressure": lost("DiskPressure"), "PIDPressure": same("PIDPressure", "Unknown")},
		},
		"some absent: each by its own rule": {
			[]nodeOption{ready, says("DiskPressure", "False")},
			conditions{"Ready": lost("Ready"), "DiskPressure": lost("DiskPressure"), "MemoryPressure": never("MemoryPressure"), "PIDPressure": never("PIDPressure")},
		},
		"not NetworkUnavailable, nor a foreign condition": {
			[]nodeOption{ready, says(network, "False"), says("example.com/Frosty", "True")},
			conditions{"Ready": lost("Ready"), network: same(network, "False"), "example.com/Frosty": same("example.com/Frosty", "True")},
		},
		"only Ready decides whether to write: pressure conditions alone do not": {
			[]nodeOption{unheard, says("MemoryPressure", "False"), says("DiskPressure", "True")}, nil,
		},
		"Ready is Unknown and the others are absent: no write": {[]nodeOption{unheard}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := node("n", tt.node...)
			n.CreationTimestamp = metav1.NewTime(then.Add(-time.Minute))
			write := silentConditions(n, later)
			if (write == nil) != (tt.want == nil) {
				t.Fatalf("writes %v", write)
			}
			after := patched(t, *n, write)
			for c, want := range tt.want {
				if diff := cmp.Diff(want, conditionOf(after, c)); diff != "" {
					t.Errorf("%s, -want +got:\n%s", c, diff)
				}
			}
		})
	}
}

// For any node: foreign conditions are never changed (I12), and writing again
// writes nothing (I7).
func TestConditionsOfAnySilentNode(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		n := anyNode.Draw(t, "node")
		write := silentConditions(n, later)
		after := patched(t, *n, write)
		for _, c := range []corev1.NodeConditionType{corev1.NodeNetworkUnavailable, "example.com/Frosty"} {
			if diff := cmp.Diff(conditionOf(*n, c), conditionOf(after, c)); diff != "" {
				t.Errorf("%s, -before +after:\n%s", c, diff)
			}
		}
		if again := silentConditions(&after, later); again != nil {
			t.Errorf("again: %v", again)
		}
		seen := *n.DeepCopy()
		apply(&seen, write)
		for _, c := range judgedConditions {
			was, _ := statusOf(&seen, c)
			if is, _ := statusOf(&after, c); was != is {
				t.Errorf("%s is taken for %q after the write, it is %q", c, was, is)
			}
		}
	})
}

// podSays makes a pod with conditions: type, status, type, status…
func podSays(pairs ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p"}, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	for i := 0; i < len(pairs); i += 2 {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{
			Type: corev1.PodConditionType(pairs[i]), Status: corev1.ConditionStatus(pairs[i+1]), Reason: "ItsReason", Message: "its message",
			LastProbeTime: metav1.NewTime(then), LastTransitionTime: metav1.NewTime(then),
		})
	}
	return p
}

// Contract 1, section 4.6, for the pod alone.
func TestAPodOfASilentNode(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"Ready = True: False":                           {podSays("Ready", "True", "ContainersReady", "True"), true},
		"Ready = Unknown is not already False":          {podSays("Ready", "Unknown", "ContainersReady", "True"), true},
		"already False: nothing":                        {podSays("Ready", "False", "ContainersReady", "True"), false},
		"pods without a Ready condition are skipped":    {podSays("ContainersReady", "True", "PodScheduled", "True"), false},
		"pods without any condition are skipped":        {podSays(), false},
		"the order of the conditions does not matter":   {podSays("PodScheduled", "True", "Initialized", "True", "Ready", "True"), true},
		"a condition of another type is no Ready":       {podSays("example.com/Ready", "True"), false},
		"terminal pods are not excluded: Failed":        {terminal(corev1.PodFailed), true},
		"terminal pods are not excluded: Succeeded too": {terminal(corev1.PodSucceeded), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, write := unready(tt.pod, later)
			if write != tt.want {
				t.Fatalf("writes %v, want %v", write, tt.want)
			}
			if !write {
				return
			}
			want := tt.pod.DeepCopy()
			for i := range want.Status.Conditions {
				if c := &want.Status.Conditions[i]; c.Type == corev1.PodReady {
					c.Status, c.LastTransitionTime = "False", metav1.NewTime(later) // reason and message kept
				}
			}
			after := patched(t, *tt.pod, []condition{c})
			if diff := cmp.Diff(byType(want), byType(&after)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if after.Status.Phase != want.Status.Phase {
				t.Errorf("phase %s, want %s", after.Status.Phase, want.Status.Phase)
			}
		})
	}
}

func terminal(phase corev1.PodPhase) *corev1.Pod {
	p := podSays("Ready", "True", "ContainersReady", "True")
	p.Status.Phase = phase
	return p
}

func byType(p *corev1.Pod) map[corev1.PodConditionType]corev1.PodCondition {
	out := map[corev1.PodConditionType]corev1.PodCondition{}
	for _, c := range p.Status.Conditions {
		c.LastTransitionTime, c.LastProbeTime = metav1.NewTime(c.LastTransitionTime.UTC()), metav1.NewTime(c.LastProbeTime.UTC())
		out[c.Type] = c
	}
	return out
}
