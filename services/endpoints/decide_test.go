package endpoints

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/event"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func at(d time.Duration) time.Time { return start.Add(d) }

func podWith(change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "u1", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: "n1"},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}},
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at(0))}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func TestPodMatters(t *testing.T) {
	deleted := metav1.NewTime(at(time.Minute))
	tests := map[string]struct {
		change func(*corev1.Pod)
		want   bool
	}{
		"A2: equal copies do not":               {func(*corev1.Pod) {}, false},
		"A2: an annotation does not":            {func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }, false},
		"A2: resources do not":                  {func(p *corev1.Pod) { p.Spec.Overhead = corev1.ResourceList{} }, false},
		"A2: another condition does not":        {func(p *corev1.Pod) { p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "X"}) }, false},
		"A2: readiness does":                    {func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse }, true},
		"A2: deletion does":                     {func(p *corev1.Pod) { p.DeletionTimestamp = &deleted }, true},
		"A2: an address does":                   {func(p *corev1.Pod) { p.Status.PodIPs = []corev1.PodIP{{IP: "10.0.0.2"}} }, true},
		"A2: one more address does":             {func(p *corev1.Pod) { p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: "fd00::1"}) }, true},
		"A2: a label does":                      {func(p *corev1.Pod) { p.Labels = map[string]string{"app": "other"} }, true},
		"A2: a label more does":                 {func(p *corev1.Pod) { p.Labels = map[string]string{"app": "web", "x": "y"} }, true},
		"A2: hostname does":                     {func(p *corev1.Pod) { p.Spec.Hostname = "h" }, true},
		"A2: subdomain does":                    {func(p *corev1.Pod) { p.Spec.Subdomain = "s" }, true},
		"a terminal phase does, beyond A2":      {func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }, true},
		"a phase that is not terminal does not": {func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }, false},
		"a node does, beyond A2":                {func(p *corev1.Pod) { p.Spec.NodeName = "n2" }, true},
		"another pod under the name does":       {func(p *corev1.Pod) { p.UID = "u2" }, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := podMatters(podWith(), podWith(tt.change)); got != tt.want {
				t.Errorf("podMatters() = %t, want %t", got, tt.want)
			}
		})
	}
	t.Run("A1: a new pod and a gone pod do", func(t *testing.T) {
		if !podMatters(nil, podWith()) || !podMatters(podWith(), nil) {
			t.Error("podMatters() = false, want true")
		}
	})
}

func TestNodeMatters(t *testing.T) {
	node := func(zone string) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{corev1.LabelTopologyZone: zone}}}
	}
	tests := map[string]struct {
		before, after *corev1.Node
		want          bool
	}{
		"a new node does":           {nil, node("a"), true},
		"a node that went does":     {node("a"), nil, true},
		"a zone does":               {node("a"), node("b"), true},
		"anything else of a node":   {node("a"), node("a"), false},
		"a zone label that goes so": {node("a"), &corev1.Node{}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := nodeMatters(tt.before, tt.after); got != tt.want {
				t.Errorf("nodeMatters() = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestWanted(t *testing.T) {
	some := map[string]string{"app": "web"}
	tests := map[string]struct {
		spec corev1.ServiceSpec
		want bool
	}{
		"D2: a selector":                       {corev1.ServiceSpec{Selector: some}, true},
		"D2: an empty selector is one":         {corev1.ServiceSpec{Selector: map[string]string{}}, true},
		"D2: no selector":                      {corev1.ServiceSpec{}, false},
		"D2: ExternalName with selector":       {corev1.ServiceSpec{Selector: some, Type: corev1.ServiceTypeExternalName}, false},
		"D2: ExternalName without selector":    {corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName}, false},
		"D2: headless with selector":           {corev1.ServiceSpec{Selector: some, ClusterIP: corev1.ClusterIPNone}, true},
		"D2: LoadBalancer with selector, also": {corev1.ServiceSpec{Selector: some, Type: corev1.ServiceTypeLoadBalancer}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := wanted(&corev1.Service{Spec: tt.spec}); got != tt.want {
				t.Errorf("wanted() = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestSelects(t *testing.T) {
	tests := map[string]struct {
		selector, labels map[string]string
		want             bool
	}{
		"A4: all of several labels":                 {map[string]string{"a": "1", "b": "2"}, map[string]string{"a": "1", "b": "2", "c": "3"}, true},
		"A4: one of two is not enough":              {map[string]string{"a": "1", "b": "2"}, map[string]string{"a": "1"}, false},
		"A4: another value":                         {map[string]string{"a": "1"}, map[string]string{"a": "2"}, false},
		"A4: an empty value is not a missing label": {map[string]string{"a": ""}, map[string]string{}, false},
		"A4: an empty selector selects all":         {map[string]string{}, map[string]string{"a": "1"}, true},
		"A4: no selector selects none":              {nil, map[string]string{"a": "1"}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := &corev1.Service{Spec: corev1.ServiceSpec{Selector: tt.selector}}
			if got := selects(s, tt.labels); got != tt.want {
				t.Errorf("selects() = %t, want %t", got, tt.want)
			}
		})
	}
}

func TestOurs(t *testing.T) {
	slice := func(labels map[string]string) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Labels: labels}}
	}
	web := event.Key{Namespace: "shop", Name: "web"}
	tests := map[string]struct {
		slice *discoveryv1.EndpointSlice
		want  event.Key
		ours  bool
	}{
		"D2: both labels":             {slice(map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: managedBy}), web, true},
		"D2: managed by others":       {slice(map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: "mine"}), event.Key{}, false},
		"D2: managed by nobody":       {slice(map[string]string{discoveryv1.LabelServiceName: "web"}), event.Key{}, false},
		"D2: of no service":           {slice(map[string]string{discoveryv1.LabelManagedBy: managedBy}), event.Key{}, false},
		"D2: of a service named \"\"": {slice(map[string]string{discoveryv1.LabelServiceName: "", discoveryv1.LabelManagedBy: managedBy}), event.Key{}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got, ok := ours(tt.slice); got != tt.want || ok != tt.ours {
				t.Errorf("ours() = %v, %t, want %v, %t", got, ok, tt.want, tt.ours)
			}
		})
	}
}

func TestResumedTrigger(t *testing.T) {
	written := func(d time.Duration) *discoveryv1.EndpointSlice {
		return &discoveryv1.EndpointSlice{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
			corev1.EndpointsLastChangeTriggerTime: at(d).Format(time.RFC3339Nano),
		}}}
	}
	since := func(d time.Duration) *corev1.Pod {
		return podWith(func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = metav1.NewTime(at(d)) })
	}
	tests := map[string]struct {
		slices []*discoveryv1.EndpointSlice
		pods   []*corev1.Pod
		want   time.Time
	}{
		"nothing is newer than the slices":           {[]*discoveryv1.EndpointSlice{written(time.Minute)}, []*corev1.Pod{since(time.Second)}, time.Time{}},
		"the earliest that is newer":                 {[]*discoveryv1.EndpointSlice{written(time.Minute)}, []*corev1.Pod{since(3 * time.Minute), since(2 * time.Minute), since(0)}, at(2 * time.Minute)},
		"the newest slice says how far it came":      {[]*discoveryv1.EndpointSlice{written(time.Minute), written(2 * time.Minute)}, []*corev1.Pod{since(90 * time.Second)}, time.Time{}},
		"slices without the annotation say nothing":  {[]*discoveryv1.EndpointSlice{{}}, []*corev1.Pod{since(time.Minute)}, time.Time{}},
		"an annotation that is no time says nothing": {[]*discoveryv1.EndpointSlice{{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: "soon"}}}}, []*corev1.Pod{since(time.Minute)}, time.Time{}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := resumedTrigger(tt.slices, tt.pods); !got.Equal(tt.want) {
				t.Errorf("resumedTrigger() = %s, want %s", got, tt.want)
			}
		})
	}
}

func BenchmarkPodMatters(b *testing.B) {
	before, after := podWith(), podWith(func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} })
	b.ReportAllocs()
	for b.Loop() {
		podMatters(before, after)
	}
}
