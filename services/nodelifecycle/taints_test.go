package nodelifecycle

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// said writes taints as "key:effect", ours without their domain.
func said(taints []corev1.Taint) string {
	out := make([]string, 0, len(taints))
	for _, t := range taints {
		out = append(out, strings.TrimPrefix(t.Key, "node.kubernetes.io/")+":"+string(t.Effect))
	}
	return strings.Join(out, " ")
}

// Contract 1, section 3.1, every row, and section 10, "Taints by condition".
func TestNoScheduleTaintsByCondition(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node []nodeOption
		want string
	}{
		"Ready = False: not-ready":                                {[]nodeOption{sick}, "not-ready:NoSchedule"},
		"Ready = Unknown: unreachable":                            {[]nodeOption{unheard}, "unreachable:NoSchedule"},
		"Ready = True: none":                                      {[]nodeOption{ready}, ""},
		"Ready absent: none":                                      {nil, ""},
		"MemoryPressure = True: memory-pressure":                  {[]nodeOption{ready, says(corev1.NodeMemoryPressure, "True")}, "memory-pressure:NoSchedule"},
		"DiskPressure = True: disk-pressure":                      {[]nodeOption{ready, says(corev1.NodeDiskPressure, "True")}, "disk-pressure:NoSchedule"},
		"PIDPressure = True: pid-pressure":                        {[]nodeOption{ready, says(corev1.NodePIDPressure, "True")}, "pid-pressure:NoSchedule"},
		"NetworkUnavailable = True: network-unavailable":          {[]nodeOption{ready, says(corev1.NodeNetworkUnavailable, "True")}, "network-unavailable:NoSchedule"},
		"pressure without a Ready condition: it counts":           {[]nodeOption{says(corev1.NodeDiskPressure, "True")}, "disk-pressure:NoSchedule"},
		"spec.unschedulable: unschedulable":                       {[]nodeOption{ready, unschedulable}, "unschedulable:NoSchedule"},
		"unschedulable alongside: kept":                           {[]nodeOption{unheard, unschedulable, bears(cordoned, noSched)}, "unschedulable:NoSchedule unreachable:NoSchedule"},
		"condition cleared: taint removed":                        {[]nodeOption{ready, says(corev1.NodeMemoryPressure, "False"), bears("node.kubernetes.io/memory-pressure", noSched)}, ""},
		"uncordoned: taint removed":                               {[]nodeOption{ready, bears(cordoned, noSched)}, ""},
		"NetworkUnavailable + MemoryPressure together: both":      {[]nodeOption{ready, says(corev1.NodeNetworkUnavailable, "True"), says(corev1.NodeMemoryPressure, "True")}, "memory-pressure:NoSchedule network-unavailable:NoSchedule"},
		"not-ready becomes unreachable":                           {[]nodeOption{unheard, bears(notReady, noSched)}, "unreachable:NoSchedule"},
		"unreachable becomes not-ready":                           {[]nodeOption{sick, bears(unreachable, noSched)}, "not-ready:NoSchedule"},
		"Ready again: removed":                                    {[]nodeOption{ready, bears(unreachable, noSched), bears(notReady, noSched)}, ""},
		"one of the seven keys that a person added: removed":      {[]nodeOption{ready, withTaints(corev1.Taint{Key: "node.kubernetes.io/disk-pressure", Value: "by-hand", Effect: noSched})}, ""},
		"out-of-service: not touched":                             {[]nodeOption{ready, bears("node.kubernetes.io/out-of-service", noSched)}, "out-of-service:NoSchedule"},
		"node.cloudprovider.kubernetes.io/*: not touched":         {[]nodeOption{ready, bears("node.cloudprovider.kubernetes.io/uninitialized", noSched)}, "node.cloudprovider.kubernetes.io/uninitialized:NoSchedule"},
		"a foreign key: not touched":                              {[]nodeOption{unheard, bears("example.com/x", noSched)}, "example.com/x:NoSchedule unreachable:NoSchedule"},
		"same key, PreferNoSchedule: never touched here":          {[]nodeOption{ready, bears("node.kubernetes.io/disk-pressure", preferNo)}, "disk-pressure:PreferNoSchedule"},
		"same key, NoExecute: never touched here":                 {[]nodeOption{ready, bears(unreachable, noExec)}, "unreachable:NoExecute"},
		"same key with another effect is not the one that is due": {[]nodeOption{unheard, bears(unreachable, noExec)}, "unreachable:NoExecute unreachable:NoSchedule"},
	}
	for _, c := range []corev1.NodeConditionType{corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure, corev1.NodeNetworkUnavailable} {
		for _, status := range []corev1.ConditionStatus{"False", "Unknown"} {
			tests[string(c)+" = "+string(status)+": none"] = struct {
				node []nodeOption
				want string
			}{[]nodeOption{ready, says(c, status)}, ""}
		}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := node("n", tt.node...)
			got, changed := conditionTaints(n, later)
			if said(got) != tt.want {
				t.Errorf("taints %q, want %q", said(got), tt.want)
			}
			if want := said(n.Spec.Taints) != tt.want; changed != want {
				t.Errorf("changed = %v, want %v", changed, want)
			}
		})
	}
}

// Section 3.1: "Match is by key and effect only; value and timeAdded are ignored,
// so an existing taint with a value is left alone"; "all added taints get
// timeAdded = now".
//
// Upstream overwrites the time of a taint that is there when it adds another
// (a quirk of its helper). We do not: the contract says so.
func TestAnExistingTaintKeepsItsValueAndTime(t *testing.T) {
	t.Parallel()
	mine := taintAt(unreachable, noSched, then)
	mine.Value = "by-hand"
	untimed := corev1.Taint{Key: "node.kubernetes.io/disk-pressure", Effect: noSched}
	n := node("n", unheard, says(corev1.NodeDiskPressure, "True"), says(corev1.NodeMemoryPressure, "True"), withTaints(mine, untimed))
	got, changed := conditionTaints(n, later)
	want := []corev1.Taint{mine, untimed, taintAt("node.kubernetes.io/memory-pressure", noSched, later)}
	if diff := cmp.Diff(want, got); diff != "" || !changed {
		t.Errorf("changed = %v, -want +got:\n%s", changed, diff)
	}
}

// Contract 1, section 5.1, every row. That a sick node waits for a token is the
// business of who asks: "enqueue" is add here.
func TestNoExecuteByReady(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		node []nodeOption
		want noExecute
	}{
		"False, unreachable:NoExecute: at once":                                       {[]nodeOption{sick, bears(unreachable, noExec)}, swap},
		"False, otherwise: enqueue":                                                   {[]nodeOption{sick}, add},
		"False, not-ready:NoExecute: nothing left to do":                              {[]nodeOption{sick, bears(notReady, noExec)}, leave},
		"False, both: the other one goes at once":                                     {[]nodeOption{sick, bears(notReady, noExec), bears(unreachable, noExec)}, swap},
		"Unknown, not-ready:NoExecute: at once":                                       {[]nodeOption{unheard, bears(notReady, noExec)}, swap},
		"Unknown, otherwise: enqueue":                                                 {[]nodeOption{unheard}, add},
		"Unknown, unreachable:NoExecute: nothing left to do":                          {[]nodeOption{unheard, bears(unreachable, noExec)}, leave},
		"Unknown, both: the other one goes at once":                                   {[]nodeOption{unheard, bears(notReady, noExec), bears(unreachable, noExec)}, swap},
		"True, unreachable: remove":                                                   {[]nodeOption{ready, bears(unreachable, noExec)}, remove},
		"True, not-ready: remove":                                                     {[]nodeOption{ready, bears(notReady, noExec)}, remove},
		"True, both: remove":                                                          {[]nodeOption{ready, bears(notReady, noExec), bears(unreachable, noExec)}, remove},
		"True, none: each skipped when absent":                                        {[]nodeOption{ready}, leave},
		"True, somebody else's: nothing":                                              {[]nodeOption{ready, bears("example.com/x", noExec)}, leave},
		"absent, any: nothing":                                                        {[]nodeOption{bears(notReady, noExec), bears(unreachable, noExec)}, leave},
		"absent, none: nothing":                                                       {nil, leave},
		"the same key as NoSchedule is not the taint":                                 {[]nodeOption{unheard, bears(unreachable, noSched)}, add},
		"the other key as NoSchedule is nothing to swap":                              {[]nodeOption{unheard, bears(notReady, noSched)}, add},
		"the same key as PreferNoSchedule, which a person set, is not the taint":      {[]nodeOption{sick, bears(notReady, preferNo)}, add},
		"a pressure condition alone asks for none (the table has none for NoExecute)": {[]nodeOption{ready, says(corev1.NodeDiskPressure, "True")}, leave},
		"unschedulable alone asks for none":                                           {[]nodeOption{ready, unschedulable}, leave},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := wantedNoExecute(node("n", tt.node...)); got != tt.want {
				t.Errorf("wantedNoExecute() = %d, want %d", got, tt.want)
			}
		})
	}
}

// What follows from section 5.1 for the list. Architecture 9: the swap is one
// list, and carries the time over; upstream starts all timers anew.
func TestExecuted(t *testing.T) {
	t.Parallel()
	foreign := taintAt("example.com/x", noExec, then)
	valued := taintAt(unreachable, noExec, then)
	valued.Value = "by-hand"
	tests := map[string]struct {
		node []nodeOption
		want []corev1.Taint
	}{
		"Unknown: unreachable, as of now":                           {[]nodeOption{unheard}, []corev1.Taint{taintAt(unreachable, noExec, later)}},
		"False: not-ready, as of now":                               {[]nodeOption{sick}, []corev1.Taint{taintAt(notReady, noExec, later)}},
		"foreign ones stay, and stay first":                         {[]nodeOption{sick, withTaints(foreign)}, []corev1.Taint{foreign, taintAt(notReady, noExec, later)}},
		"⚠ not-ready becomes unreachable and keeps its time":        {[]nodeOption{unheard, bears(notReady, noExec), withTaints(foreign)}, []corev1.Taint{foreign, taintAt(unreachable, noExec, then)}},
		"⚠ unreachable becomes not-ready and keeps its time":        {[]nodeOption{sick, withTaints(foreign), bears(unreachable, noExec)}, []corev1.Taint{foreign, taintAt(notReady, noExec, then)}},
		"of both the wanted one stays as it is":                     {[]nodeOption{unheard, bears(notReady, noExec), withTaints(valued)}, []corev1.Taint{valued}},
		"the NoSchedule taints of the same keys are none of it":     {[]nodeOption{sick, bears(unreachable, noSched), bears(notReady, noSched)}, []corev1.Taint{taintAt(unreachable, noSched, then), taintAt(notReady, noSched, then), taintAt(notReady, noExec, later)}},
		"⚠ a time that is there is never rewritten by asking again": {[]nodeOption{unheard, bears(unreachable, noExec)}, []corev1.Taint{taintAt(unreachable, noExec, then)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tt.want, executed(node("n", tt.node...), later)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// Contract 1, section 3.2, and section 10, "Labels".
func TestMirroredLabels(t *testing.T) {
	t.Parallel()
	const betaOS, betaArch = "beta.kubernetes.io/os", "beta.kubernetes.io/arch"
	tests := map[string]struct{ labels, want map[string]string }{
		"both consistent: none": {map[string]string{corev1.LabelOSStable: "linux", betaOS: "linux", corev1.LabelArchStable: "arm64", betaArch: "arm64"}, nil},
		"beta differs: fixed":   {map[string]string{corev1.LabelOSStable: "linux", betaOS: "plan9"}, map[string]string{betaOS: "linux"}},
		"beta absent: added": {
			map[string]string{corev1.LabelOSStable: "linux", corev1.LabelArchStable: "arm64"},
			map[string]string{betaOS: "linux", betaArch: "arm64"},
		},
		"stable absent: untouched":                        {map[string]string{betaOS: "plan9", betaArch: "mips"}, nil},
		"one of them is written, the other is consistent": {map[string]string{corev1.LabelOSStable: "linux", betaOS: "linux", corev1.LabelArchStable: "arm64"}, map[string]string{betaArch: "arm64"}},
		"stable empty is a value":                         {map[string]string{corev1.LabelOSStable: "", betaOS: "linux"}, map[string]string{betaOS: ""}},
		"no labels at all: skip":                          {nil, nil},
		"other labels: nothing":                           {map[string]string{"example.com/os": "linux"}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := len(tt.labels)
			if diff := cmp.Diff(tt.want, mirrored(tt.labels)); diff != "" || len(tt.labels) != before {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// One PATCH holds all that harms nobody (upstream sends two for taints and one
// for labels), and nothing else; decision records name what mattered most.
func TestPlanned(t *testing.T) {
	t.Parallel()
	os := labelled(corev1.LabelOSStable, "linux")
	tests := map[string]struct {
		node   []nodeOption
		down   bool
		rule   string
		taints string
		labels bool
	}{
		"nothing":                                  {node: []nodeOption{ready}},
		"labels alone":                             {node: []nodeOption{ready, os}, rule: ruleLabels, labels: true},
		"a taint by condition":                     {node: []nodeOption{unheard}, rule: ruleCondition, taints: "unreachable:NoSchedule"},
		"both in one":                              {node: []nodeOption{unheard, os}, rule: ruleCondition, taints: "unreachable:NoSchedule", labels: true},
		"Ready: both effects go in one list":       {node: []nodeOption{ready, bears(unreachable, noSched), bears("x", noExec), bears(unreachable, noExec)}, rule: ruleRemoval, taints: "x:NoExecute"},
		"all zones down: NoExecute goes":           {node: []nodeOption{unheard, bears(unreachable, noSched), bears(unreachable, noExec)}, down: true, rule: ruleRemoval, taints: "unreachable:NoSchedule"},
		"all zones down: both NoExecute go":        {node: []nodeOption{sick, bears(notReady, noSched), bears(unreachable, noExec), bears(notReady, noExec)}, down: true, rule: ruleRemoval, taints: "not-ready:NoSchedule"},
		"all zones down: others' NoExecute stays":  {node: []nodeOption{unheard, bears(unreachable, noSched), bears("x", noExec)}, down: true},
		"a node without Ready keeps its NoExecute": {node: []nodeOption{bears(unreachable, noExec)}},
		"a sick one keeps its NoExecute":           {node: []nodeOption{unheard, bears(unreachable, noSched), bears(unreachable, noExec)}},
		"no NoExecute is added here, by anybody":   {node: []nodeOption{unheard, bears(unreachable, noSched)}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := planned(node("n", tt.node...), tt.down, later)
			if p.rule != tt.rule || p.needed() != (tt.rule != "") {
				t.Errorf("rule %q, want %q", p.rule, tt.rule)
			}
			patch := p.patch()
			spec, hasSpec := patch["spec"].(map[string]any)
			if want := tt.rule == ruleCondition || tt.rule == ruleRemoval; hasSpec != want {
				t.Errorf("the patch has a spec: %v, want %v", hasSpec, want)
			}
			if hasSpec {
				if got, _ := spec["taints"].([]corev1.Taint); said(got) != tt.taints {
					t.Errorf("taints %q, want %q", said(got), tt.taints)
				}
			}
			if _, has := patch["metadata"]; has != tt.labels {
				t.Errorf("the patch has labels: %v, want %v", has, tt.labels)
			}
		})
	}
}

// A list that has been emptied must travel as an empty list: null, or nothing,
// would leave the taints where they are or depend on the patch's kind.
func TestTheLastTaintTravelsAsAnEmptyList(t *testing.T) {
	t.Parallel()
	for _, effect := range []corev1.TaintEffect{noSched, noExec} {
		p := planned(node("n", ready, bears(unreachable, effect)), false, later)
		if p.taints == nil || len(p.taints) != 0 {
			t.Errorf("%s: taints %#v, want an empty list", effect, p.taints)
		}
	}
}

// keysOf returns keys that count as ours under an effect, for other tests.
func keysOf(taints []corev1.Taint, effect corev1.TaintEffect) (keys []string) {
	for _, t := range taints {
		if t.Effect == effect && noSchedule[t.Key] {
			keys = append(keys, t.Key)
		}
	}
	slices.Sort(keys)
	return keys
}
