package endpoints

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/metrics/legacyregistry"
	librarymetrics "k8s.io/endpointslice/metrics"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// dry is a rig without an API server, for what only maps.
func dry(t testing.TB) *rig {
	r := &rig{TB: t, ns: "shop"}
	r.role = &endpointSlices{nodes: &nodeLister{}}
	r.claim()
	return r
}

// Parts A and D1: which change wakes which service. The world: services web and
// all (selects app=web too), other, bare (no selector) and alias (ExternalName,
// selects app=web); pod web-000 on n1; slice web-s names pod web-001 as well,
// which is no more.
func TestWhatWakes(t *testing.T) {
	selectsWeb := func(s *corev1.Service) { s.Spec.Selector = map[string]string{"app": "web"} }
	zoned := func(zone string) *corev1.Node { return node("n1", zone) }
	tests := map[string]struct {
		change func(r *rig)
		want   string
	}{
		"A1, A4: a new pod: the services that match, ExternalName too": {func(r *rig) { r.put(r.pod("web", 7)) }, "alias all web"},
		"A1: a pod that goes: those that matched":                      {func(r *rig) { r.drop(r.pod("web", 0)) }, "alias all web"},
		"A2: a pod as it was: none":                                    {func(r *rig) { r.put(r.pod("web", 0)) }, ""},
		"A2: an annotation: none": {func(r *rig) {
			r.put(r.pod("web", 0, func(p *corev1.Pod) { p.Annotations = map[string]string{"a": "b"} }))
		}, ""},
		"A3: readiness: those that match":     {func(r *rig) { r.put(r.pod("web", 0, unready)) }, "alias all web"},
		"A3: labels: old and new":             {func(r *rig) { r.put(r.pod("web", 0, func(p *corev1.Pod) { p.Labels["app"] = "other" })) }, "alias all other web"},
		"A3: labels and readiness: the union": {func(r *rig) { r.put(r.pod("web", 0, unready, func(p *corev1.Pod) { p.Labels["app"] = "other" })) }, "alias all other web"},
		"A4: an empty selector arrives as none": {func(r *rig) {
			r.put(r.service("empty", func(s *corev1.Service) { s.Spec.Selector = map[string]string{} }))
			r.changes = nil
			r.put(r.pod("web", 7))
		}, "alias all web"},
		"A4: a pod of another namespace: none":                      {func(r *rig) { r.put(r.pod("web", 7, func(p *corev1.Pod) { p.Namespace = "elsewhere" })) }, ""},
		"A4: a pod nobody matches: none":                            {func(r *rig) { r.put(r.pod("lonely", 7)) }, ""},
		"frame 4: a pod that a slice names and nobody matches: its": {func(r *rig) { r.put(r.pod("web", 1, func(p *corev1.Pod) { p.Labels = nil })) }, "web"},
		"frame 4: its tombstone too, though nobody saw the pod":     {func(r *rig) { r.hide(r.pod("web", 1)); r.changes = nil; r.drop(r.pod("web", 1)) }, "web"},
		"frame 3: another pod of the name":                          {func(r *rig) { r.put(r.pod("web", 0, func(p *corev1.Pod) { p.UID = "again" })) }, "alias all web"},
		"a pod that cannot be read any more":                        {func(r *rig) { r.hide(r.pod("web", 0)) }, "alias all web"},
		"a pod that can be read again":                              {func(r *rig) { r.hide(r.pod("web", 0)); r.changes = nil; r.put(r.pod("web", 0)) }, "alias all web"},

		"D1: a new service":       {func(r *rig) { r.put(r.service("new")) }, "new"},
		"D1: a service that goes": {func(r *rig) { r.drop(r.service("web")) }, "web"},
		"D1: its spec":            {func(r *rig) { r.put(r.service("web", func(s *corev1.Service) { s.Generation = 2 })) }, "web"},
		"D1: its spec, of an old API server": {func(r *rig) {
			r.put(r.service("web", func(s *corev1.Service) { s.Generation = 0; s.Spec.Ports = nil }))
		}, "web"},
		"D1: its labels": {func(r *rig) { r.put(r.service("web", func(s *corev1.Service) { labelled("a", "b")(s) })) }, "web"},
		"D6: its annotations": {func(r *rig) {
			r.put(r.service("web", func(s *corev1.Service) { s.Annotations = map[string]string{"a": "b"} }))
		}, "web"},
		"D5.7: its deletion": {func(r *rig) { r.put(r.service("web", deletingService)) }, "web"},
		"beyond D1: not its status": {func(r *rig) {
			r.put(r.service("web", func(s *corev1.Service) { s.Status.LoadBalancer.Ingress = make([]corev1.LoadBalancerIngress, 1) }))
		}, ""},
		"another service of the name":            {func(r *rig) { r.put(r.service("web", func(s *corev1.Service) { s.UID = "again" })) }, "web"},
		"a service without selector is one too":  {func(r *rig) { r.put(r.service("bare", func(s *corev1.Service) { s.Generation = 2 })) }, "bare"},
		"a service that cannot be read any more": {func(r *rig) { r.hide(r.service("web")) }, "web"},

		"D1: a new slice of ours":            {func(r *rig) { r.put(r.slice("s2", r.service("other"), nil)) }, "other"},
		"D1: a slice that goes":              {func(r *rig) { r.drop(r.slice("web-s", r.service("web"), nil)) }, "web"},
		"D1: a new slice of others":          {func(r *rig) { r.put(r.slice("s2", r.service("other"), nil, managedByMe)) }, ""},
		"D1: its service-name changes: both": {func(r *rig) { r.put(r.slice("web-s", r.service("other"), nil)) }, "other web"},
		"D1: it becomes others'":             {func(r *rig) { r.put(r.slice("web-s", r.service("web"), nil, managedByMe)) }, "web"},
		"D1: it becomes ours": {func(r *rig) {
			r.put(r.slice("s3", r.service("web"), nil, managedByMe))
			r.changes = nil
			r.put(r.slice("s3", r.service("web"), nil))
		}, "web"},
		"beyond D1: its labels": {func(r *rig) {
			r.put(r.slice("web-s", r.service("web"), nil, func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = "y" }))
		}, "web"},
		"a slice that cannot be read any more":       {func(r *rig) { r.hide(r.slice("web-s", r.service("web"), nil)) }, "web"},
		"a slice whose service is no more is mapped": {func(r *rig) { r.put(r.slice("s2", r.service("gone"), nil)) }, "gone"},

		"beyond D1: the zone of a node: the services of its pods": {func(r *rig) { r.put(zoned("b")) }, "alias all web"},
		"D3: a node that goes":                            {func(r *rig) { r.drop(zoned("")) }, "alias all web"},
		"a node that cannot be read any more":             {func(r *rig) { r.hide(zoned("")) }, "alias all web"},
		"D1: a node's readiness: none without CPU shares": {func(r *rig) { n := zoned(""); n.Status.Conditions = make([]corev1.NodeCondition, 1); r.put(n) }, ""},
		"a node without pods: none":                       {func(r *rig) { r.put(node("n9", "z")) }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := dry(t)
			r.put(r.service("web"), r.service("all", selectsWeb), r.service("other"), r.service("bare", withoutSelector))
			r.put(r.service("alias", selectsWeb, func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }))
			web := []*corev1.Pod{r.pod("web", 0), r.pod("web", 1)}
			r.put(web[0], r.slice("web-s", r.service("web"), web))
			r.changes = nil
			tt.change(r)
			if got := r.woken(); got != tt.want {
				t.Errorf("woke %q, want %q", got, tt.want)
			}
		})
	}
}

func managedByMe(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "me" }

// Frame, 6.2: every key of the partition, of inputs and of outputs.
func TestAllKeys(t *testing.T) {
	r := dry(t)
	r.put(r.service("web"), r.service("bare", withoutSelector), r.slice("s1", r.service("web"), nil))
	r.put(r.slice("s2", r.service("gone"), nil), r.slice("s3", r.service("theirs"), nil, managedByMe))
	r.hide(r.service("hidden"))
	var got []string
	for _, key := range all(r.p) {
		got = append(got, key.Name)
	}
	slices.Sort(got)
	if want := "bare gone hidden web"; strings.Join(got, " ") != want {
		t.Errorf("all() = %v, want %s", got, want)
	}
}

// D1: own writes come back and wake nobody; whatever else happens to a slice
// does.
func TestOwnWritesWakeNobody(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	pods := r.fleet("web", 0, 2)
	r.put(r.service("web"))
	expect := func(what, want string) {
		t.Helper()
		if got := r.woken(); got != want {
			t.Errorf("%s woke %q, want %q", what, got, want)
		}
	}
	r.woken()
	r.sync("web")
	expect("the own creation", "")
	r.put(r.pod("web", 0, unready))
	expect("the pod", "web")
	r.sync("web")
	expect("the own update", "")
	r.echo()
	expect("the same again", "")
	name := r.slicesOf("web")[0].Name
	edit := func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = s.ResourceVersion }
	r.edit(name, edit)
	r.echo()
	expect("an edit by hand", "web")
	r.sync("web")
	expect("the own repair", "")

	t.Log("an edit on top of an own write that never came by itself")
	r.put(r.pod("web", 0))
	r.woken()
	if err := r.reconcile("web"); err != nil {
		t.Fatal(err)
	}
	r.edit(name, edit)
	r.echo()
	expect("the edit", "web")

	t.Log("an own write that fails is none")
	r.drop(pods[1])
	r.woken()
	r.wire.Answer(http.MethodPut, http.StatusInternalServerError)
	if err := r.reconcile("web"); err == nil {
		t.Fatal("Reconcile() = nil, want an error")
	}
	r.wire.Answer("", 0)
	r.edit(name, edit)
	r.echo()
	expect("the edit", "web")
	r.sync("web")
	expect("the own update", "")

	t.Log("a slice deleted by hand, and made anew by hand")
	old := r.slicesOf("web")[0]
	if err := r.admin.DiscoveryV1().EndpointSlices(r.ns).Delete(t.Context(), old.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.echo()
	expect("the deletion", "web")
	old.UID, old.ResourceVersion = "", ""
	r.make(old)
	r.echo()
	expect("the creation", "web")

	t.Log("what was noted is forgotten when it has come")
	r.sync("web")
	if n := len(r.role.ownOf(r.p).versions); n != 0 {
		t.Errorf("%d own writes are remembered, want none", n)
	}
}

// A deletion of ours wakes its service once, which then does nothing, and leaves
// no memory.
func TestOwnDeletionsWakeOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	pods := r.fleet("web", 0, 4)
	r.put(r.service("web"))
	r.sync("web")
	r.drop(pods[0], pods[1], pods[2], pods[3])
	r.put(r.pod("web", 4))
	r.woken()
	r.sync("web")
	if got := r.woken(); got != "web" {
		t.Errorf("woke %q, want web", got)
	}
	r.wire.Take()
	r.sync("web")
	if got := r.writes(); got != "" {
		t.Errorf("wrote %s", got)
	}
	if n := len(r.role.ownOf(r.p).versions); n != 0 {
		t.Errorf("%d own writes are remembered, want none", n)
	}
}

// The tombstone may come before the deletion returns: nothing would ever take
// back what was noted then.
func TestOwnDeletionsAreNotNoted(t *testing.T) {
	var own ownWrites
	own.note(kube.Write{Verb: kube.VerbDelete, Ref: kube.Ref{Key: event.Key{Name: "s"}, Version: 7}})
	if len(own.versions) != 0 {
		t.Errorf("noted %v", own.versions)
	}
}

// served reads one of the library's gauges and counters as it is served.
func served(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "endpoint_slice_controller_"+name {
			continue
		}
		for _, m := range f.GetMetric() {
			var got []string
			for _, l := range m.GetLabel() {
				got = append(got, l.GetValue())
			}
			if slices.Equal(got, labels) {
				return m.GetGauge().GetValue() + m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// D8 and part H: no two replicas count one service. Not parallel: the library's
// gauges are the process's.
func TestALostPartitionIsForgotten(t *testing.T) {
	librarymetrics.RegisterMetrics()
	r := newRig(t, 2)
	r.fleet("web", 0, 5)
	r.put(r.service("web"), r.service("other"))
	r.sync("web")
	r.sync("other")
	expect := func(when string, slices, endpoints float64) {
		t.Helper()
		if n, e := served(t, "num_endpoint_slices"), served(t, "endpoints_desired"); n != slices || e != endpoints {
			t.Errorf("%s: %g slices and %g endpoints, want %g and %g", when, n, e, slices, endpoints)
		}
	}
	expect("D8: both services", 4, 5)
	r.drop(r.service("other"))
	r.sync("other")
	expect("D2.1: one is gone", 3, 5)

	first := r.rec
	if err := first.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	expect("the partition is lost", 0, 0)
	if _, held := r.role.own.Load(r.p); held {
		t.Error("own writes of the lost partition are remembered")
	}
	if n := len(r.role.triggers.ServiceStates); n != 0 {
		t.Errorf("trigger times of %d services are remembered", n)
	}
	r.claim()
	r.fleet("web", 0, 5)
	r.put(r.service("web"))
	r.echo()
	r.sync("web")
	expect("and claimed again", 3, 5)
	if err := r.rec.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
}

// The library's tracker is not asked by anybody here; it must not grow.
func TestTheLibrarysTrackerIsEmpty(t *testing.T) {
	t.Parallel()
	r := newRig(t, 2)
	pods := r.fleet("web", 0, 6)
	r.put(r.service("web"))
	r.sync("web")
	made := r.slicesOf("web")
	for _, p := range pods[1:] {
		r.drop(p)
	}
	r.sync("web")
	for _, s := range made {
		if r.role.tracker.Has(s) {
			t.Errorf("slice %s is tracked", s.Name)
		}
	}
}

// D8: syncs by result. Not parallel, as the gauges.
func TestSyncsAreCounted(t *testing.T) {
	librarymetrics.RegisterMetrics()
	r := newRig(t, 100)
	r.put(r.service("web"), r.pod("web", 0))
	steps := []struct {
		name, want string
		do         func()
	}{
		{"D8: a sync", "success", func() {}},
		{"D8: one that the API server refuses", "error", func() {
			r.put(r.pod("web", 1))
			r.wire.Answer(http.MethodPut, http.StatusInternalServerError)
		}},
		{"D8: one on an old cache", "stale", func() {
			r.wire.Answer("", 0)
			r.edit(r.slicesOf("web")[0].Name, func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = "y" })
		}},
		{"D8: one that must wait", "stale", func() { r.hide(r.pod("web", 2)) }},
		{"D8: of a service that is gone", "success", func() { r.drop(r.service("web")) }},
	}
	for _, step := range steps {
		step.do()
		before := map[string]float64{}
		for _, result := range []string{"success", "stale", "error"} {
			before[result] = served(t, "syncs", result)
		}
		err := r.reconcile("web")
		for result, was := range before {
			want := 0.0
			if result == step.want {
				want = 1
			}
			if got := served(t, "syncs", result) - was; got != want {
				t.Errorf("%s: %q grew by %g, want %g (%v)", step.name, result, got, want, err)
			}
		}
		if step.want == "success" {
			r.echo()
		}
	}
}

// hotNamespace is one of n services, each with 10 pods of its own.
func hotNamespace(b *testing.B, n int) *rig {
	b.Helper()
	r := dry(b)
	for i := range n {
		s := r.service(fmt.Sprint("s", i))
		r.put(s)
		r.put(r.slice(s.Name+"-x", s, r.fleet(s.Name, 0, 10, ips(fmt.Sprintf("10.2.%d.%d", i/250, i%250+1)))))
	}
	r.changes = nil
	return r
}

// What one event costs in a namespace of 1 000 services and 10 000 pods.
func BenchmarkMapping(b *testing.B) {
	for _, n := range []int{10, 1000} {
		r := hotNamespace(b, n)
		before, after := r.pod("s7", 3), r.pod("s7", 3, unready)
		event := func(kind event.Kind, name string, before, after any) cache.Change {
			key := r.key(name)
			if kind == nodes {
				key.Namespace = ""
			}
			return cache.Change{Kind: kind, Key: key, Old: before, New: after}
		}
		for name, change := range map[string]cache.Change{
			"pod":            event(pods, before.Name, before, after),
			"pod, no matter": event(pods, before.Name, before, before),
			"node":           event(nodes, "n1", node("n1", ""), node("n1", "z")),
		} {
			b.Run(fmt.Sprintf("%d services/%s", n, name), func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					keys(r.p, change, &ownWrites{})
				}
			})
		}
		b.Run(fmt.Sprintf("%d services/gather", n), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				gather(r.p, r.key("s7"))
			}
		})
	}
}

// FuzzMapping: whatever the labels, mapping a pod names exactly the services
// that select it, by a rule written down once more.
func FuzzMapping(f *testing.F) {
	f.Add("app", "web", "app", "web", "tier", "")
	f.Add("", "", "", "", "", "")
	f.Add("a", "1", "b", "2", "a", "1")
	f.Fuzz(func(t *testing.T, selectKey, selectValue, key1, value1, key2, value2 string) {
		r := dry(t)
		labels := map[string]string{key1: value1, key2: value2}
		s := r.service("web", func(s *corev1.Service) { s.Spec.Selector = map[string]string{selectKey: selectValue} })
		p := r.pod("x", 0, func(p *corev1.Pod) { p.Labels = labels })
		r.put(s)
		got := keys(r.p, cache.Change{Kind: pods, Key: r.key(p.Name), New: p}, &ownWrites{})
		want := labels[selectKey] == selectValue && (selectKey == key1 || selectKey == key2)
		if (len(got) == 1) != want {
			t.Errorf("selector %q=%q, labels %q: woke %v, want %t", selectKey, selectValue, labels, got, want)
		}
	})
}

// The delay of a change is that of its cause.
func TestTheDelayOfAChangeIsObserved(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.put(r.service("web"))
	r.p.cause = causeOf(time.Now().Add(-2 * time.Second))
	r.sync("web")
	r.p.cause = causeOf(time.Time{})
	r.sync("web")
	r.p.cause = nil
	r.sync("web")
	if n, sum := r.delays(); n != 1 || sum < 2 || sum > 60 {
		t.Errorf("%d delays of %gs in all, want one of some 2s", n, sum)
	}
}
