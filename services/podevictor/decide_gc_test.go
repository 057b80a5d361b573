package podevictor

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// Contract 2, B2, rows 2 to 4, and the tables of B6 for "unscheduled" and
// "terminating". Row 1 is over the whole cluster.
func TestGarbage(t *testing.T) {
	t.Parallel()
	off := corev1.Taint{Key: corev1.TaintNodeOutOfService, Value: "nodeshutdown", Effect: "NoExecute"}
	says := func(status corev1.ConditionStatus, taints ...corev1.Taint) *corev1.Node {
		n := nodeOf("n", taints...)
		if status != "" {
			n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeMemoryPressure, Status: "True"}, {Type: corev1.NodeReady, Status: status}}
		}
		return n
	}
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = new(metaTime(then)) }
	unbound := func(p *corev1.Pod) { p.Spec.NodeName = "" }
	tests := map[string]struct {
		pod  []podOption
		node *corev1.Node
		want string
	}{
		"on a node that is there":                        {nil, says("True"), ""},
		"on a node that is gone":                         {nil, nil, ruleOrphaned},
		"terminating, on a node that is gone":            {[]podOption{ending}, nil, ruleOrphaned},
		"unscheduled":                                    {[]podOption{unbound}, nil, ""},
		"unscheduled and terminating":                    {[]podOption{unbound, ending}, nil, ruleUnscheduled},
		"terminating, node not ready without taint":      {[]podOption{ending}, says("False"), ""},
		"terminating, node not ready with the taint":     {[]podOption{ending}, says("False", off), ruleOutOfService},
		"terminating, node unknown with the taint":       {[]podOption{ending}, says("Unknown", off), ruleOutOfService},
		"terminating, node that says nothing, tainted":   {[]podOption{ending}, says("", off), ruleOutOfService},
		"terminating, node ready with the taint":         {[]podOption{ending}, says("True", off), ""},
		"not terminating, node not ready with the taint": {nil, says("False", off), ""},
		"the taint with another effect and value":        {[]podOption{ending}, says("False", corev1.Taint{Key: off.Key, Effect: "NoSchedule"}), ruleOutOfService},
		"terminating, not ready with another taint":      {[]podOption{ending}, says("False", untimed(notReady)), ""},
	}
	for name, tt := range tests {
		for _, is := range []corev1.PodPhase{"", corev1.PodPending, corev1.PodRunning, corev1.PodSucceeded, corev1.PodFailed, corev1.PodUnknown} {
			if got := garbage(podOf(append(tt.pod, phase(is))...), tt.node); got != tt.want {
				t.Errorf("%s, phase %q: %q, want %q", name, is, got, tt.want)
			}
			if tt.node != nil {
				if got := garbage(podOf(append(tt.pod, phase(is))...), trimNode(tt.node)); got != tt.want {
					t.Errorf("%s, as it is kept: %q, want %q", name, got, tt.want)
				}
			}
		}
	}
}

func TestAsked(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		at    bool
		grace *int64
		held  bool // by a finalizer
		want  bool
	}{
		"not deleted": {false, nil, true, false}, "deleted with grace": {true, new(int64(30)), true, false},
		"deleted by force": {true, new(int64(0)), true, true}, "deleted, and it says no grace": {true, nil, true, false},
		"deleted by force, and nothing holds it": {true, new(int64(0)), false, false},
	} {
		p := podOf()
		if tt.held {
			p.Finalizers = []string{"example.com/held"}
		}
		if tt.at {
			p.DeletionTimestamp, p.DeletionGracePeriodSeconds = new(metaTime(then)), tt.grace
		}
		if got := asked(p); got != tt.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}
