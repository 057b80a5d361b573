package endpoints

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

type (
	services_ = []func(*corev1.Service)
	pods_     = []func(*corev1.Pod)
)

// One pod, web-000 with address 10.1.0.1 on node n1 without zone; want is what
// slices tell, without "IPv4 [TCP/http:8080] ".
func TestOnePod(t *testing.T) {
	t.Parallel()
	const usual = "IPv4 [TCP/http:8080] "
	const nobody = "IPv4 [] nobody"
	sidecar := func(p *corev1.Pod) {
		p.Spec.InitContainers = append(p.Spec.InitContainers, corev1.Container{
			Name: "side", RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
			Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 7001, Protocol: corev1.ProtocolTCP}},
		})
	}
	initContainer := func(p *corev1.Pod) { sidecar(p); p.Spec.InitContainers[0].RestartPolicy = nil }
	udp := func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: 9, Protocol: corev1.ProtocolUDP}}
	}
	host := func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "web" }
	noCondition := func(p *corev1.Pod) { p.Status.Conditions = nil }
	distribution := func(d string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Spec.TrafficDistribution = &d }
	}
	annotated := func(k, v string) func(*corev1.Service) {
		return func(s *corev1.Service) { s.Annotations = map[string]string{k: v} }
	}
	at := func(line string) string { return usual + "10.1.0.1 " + line + " Pod/web-000/uid-web-000 node=n1" }
	tests := map[string]struct {
		service services_
		pod     pods_
		want    []string
	}{
		"F2: ready":                                    {nil, nil, []string{at("TTF")}},
		"F2: not ready":                                {nil, pods_{unready}, []string{at("FFF")}},
		"F2: ready and deleting":                       {nil, pods_{deleting}, []string{at("FTT")}},
		"F2: not ready and deleting":                   {nil, pods_{unready, deleting}, []string{at("FFT")}},
		"F2: published: ready":                         {services_{publishNotReady}, nil, []string{at("TTF")}},
		"F2: published: not ready":                     {services_{publishNotReady}, pods_{unready}, []string{at("TFF")}},
		"F2: published: ready and deleting":            {services_{publishNotReady}, pods_{deleting}, []string{at("TTT")}},
		"F2: published: not ready and deleting":        {services_{publishNotReady}, pods_{unready, deleting}, []string{at("TFT")}},
		"F2: succeeded":                                {nil, pods_{phase(corev1.PodSucceeded)}, []string{nobody}},
		"F2: failed":                                   {nil, pods_{phase(corev1.PodFailed)}, []string{nobody}},
		"F2: failed and published":                     {services_{publishNotReady}, pods_{phase(corev1.PodFailed)}, []string{nobody}},
		"F2: without IP":                               {nil, pods_{ips()}, []string{nobody}},
		"F2: node unknown, published: without zone":    {services_{publishNotReady}, pods_{on("gone")}, []string{usual + "10.1.0.1 TTF Pod/web-000/uid-web-000 node=gone"}},
		"B: the phase is not consulted":                {nil, pods_{phase(corev1.PodPending)}, []string{at("TTF")}},
		"B: an unknown phase neither":                  {nil, pods_{phase(corev1.PodUnknown)}, []string{at("TTF")}},
		"B: no Ready condition is not ready":           {nil, pods_{noCondition}, []string{at("FFF")}},
		"B: an address is printed anew":                {nil, pods_{ips("10.01.0.001")}, []string{at("TTF")}},
		"B: podIP alone, no podIPs: nobody":            {nil, pods_{ips(), func(p *corev1.Pod) { p.Status.PodIP = "10.1.0.1" }}, []string{nobody}},
		"B: hostname with the service as subdomain":    {nil, pods_{host}, []string{at("TTF") + " host=h"}},
		"B: hostname with another subdomain":           {nil, pods_{host, func(p *corev1.Pod) { p.Spec.Subdomain = "x" }}, []string{at("TTF")}},
		"B: subdomain without hostname":                {nil, pods_{host, func(p *corev1.Pod) { p.Spec.Hostname = "" }}, []string{at("TTF")}},
		"B: a named port":                              {services_{named}, pods_{port("web", 9090)}, []string{"IPv4 [TCP/http:9090] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"B: a named port of a sidecar":                 {services_{named}, pods_{sidecar}, []string{"IPv4 [TCP/http:7001] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"B: containers go before sidecars":             {services_{named}, pods_{sidecar, port("web", 9090)}, []string{"IPv4 [TCP/http:9090] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"B: not of an init container":                  {services_{named}, pods_{initContainer}, []string{"IPv4 [] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"B: not of another protocol":                   {services_{named}, pods_{udp}, []string{"IPv4 [] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"D3: a name that resolves nowhere: no ports":   {services_{named}, nil, []string{"IPv4 [] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"B: headless without ports":                    {services_{headless, withoutPorts}, nil, []string{"IPv4 [] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"B: the application's protocol travels":        {services_{func(s *corev1.Service) { s.Spec.Ports[0].AppProtocol = new("h2c") }}, nil, []string{"IPv4 [TCP/http:8080=h2c] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"D3: the zone of the node":                     {nil, pods_{on("za")}, []string{usual + "10.1.0.1 TTF Pod/web-000/uid-web-000 node=za zone=a"}},
		"D4: IPv6 service, dual-stack pod":             {services_{onlyIPv6}, pods_{ips("10.1.0.1", "fd00::1")}, []string{"IPv6 [TCP/http:8080] fd00::1 TTF Pod/web-000/uid-web-000 node=n1"}},
		"D4: IPv6 service, IPv4 pod":                   {services_{onlyIPv6}, nil, []string{"IPv6 [] nobody"}},
		"D4: IPv4 service, dual-stack pod, IPv6 first": {nil, pods_{ips("fd00::1", "10.1.0.1")}, []string{at("TTF")}},
		"F2: dual-stack service: one set per family": {services_{dualStack}, pods_{ips("10.1.0.1", "fd00::1")}, []string{
			at("TTF"), "IPv6 [TCP/http:8080] fd00::1 TTF Pod/web-000/uid-web-000 node=n1",
		}},
		"D4: dual-stack service, IPv4 pod: IPv6 has a placeholder": {services_{dualStack}, nil, []string{at("TTF"), "IPv6 [] nobody"}},
		"D4: no families: that of the clusterIP":                   {services_{func(s *corev1.Service) { s.Spec.IPFamilies = nil }}, pods_{ips("10.1.0.1", "fd00::1")}, []string{at("TTF")}},
		"D4: headless without families: both": {services_{headless, func(s *corev1.Service) { s.Spec.IPFamilies = nil }}, pods_{ips("10.1.0.1", "fd00::1")}, []string{
			at("TTF"), "IPv6 [TCP/http:8080] fd00::1 TTF Pod/web-000/uid-web-000 node=n1",
		}},
		"A4: a pod that is not selected": {nil, pods_{func(p *corev1.Pod) { p.Labels = nil }}, []string{nobody}},
		"D6: PreferClose: the zone":      {services_{distribution("PreferClose")}, pods_{on("za")}, []string{usual + "10.1.0.1 TTF Pod/web-000/uid-web-000 node=za zone=a forzone=a"}},
		"D6: PreferSameZone: the zone":   {services_{distribution("PreferSameZone")}, pods_{on("za")}, []string{usual + "10.1.0.1 TTF Pod/web-000/uid-web-000 node=za zone=a forzone=a"}},
		"D6: PreferSameNode: both":       {services_{distribution("PreferSameNode")}, pods_{on("za")}, []string{usual + "10.1.0.1 TTF Pod/web-000/uid-web-000 node=za zone=a forzone=a fornode=za"}},
		"D6: no zone, no zone hint":      {services_{distribution("PreferClose")}, nil, []string{at("TTF")}},
		"D6: not ready, no hint":         {services_{distribution("PreferSameNode")}, pods_{on("za"), unready}, []string{usual + "10.1.0.1 FFF Pod/web-000/uid-web-000 node=za zone=a"}},
		"D6: topology-mode Auto beats trafficDistribution, and gives no hints yet": {
			services_{distribution("PreferClose"), annotated(corev1.AnnotationTopologyMode, "Auto")}, pods_{on("za")},
			[]string{usual + "10.1.0.1 TTF Pod/web-000/uid-web-000 node=za zone=a"},
		},
		"D6: another topology-mode does not": {
			services_{distribution("PreferClose"), annotated(corev1.AnnotationTopologyMode, "AUTO")}, pods_{on("za")},
			[]string{usual + "10.1.0.1 TTF Pod/web-000/uid-web-000 node=za zone=a forzone=a"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			r.put(node("za", "a"), r.pod("web", 0, tt.pod...), r.service("web", tt.service...))
			r.sync("web")
			if diff := cmp.Diff(tt.want, told(r.slicesOf("web"))); diff != "" {
				t.Errorf("slices tell (-want +got):\n%s", diff)
			}
			r.wire.Take()
			r.sync("web")
			if got := r.writes(); got != "" {
				t.Errorf("the second reconcile wrote %s", got)
			}
		})
	}
}

func TestManyPods(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		service services_
		pods    func(r *rig) []*corev1.Pod
		want    []string
	}{
		"F: a completed pod with the IP of a ready one: only the ready one": {
			nil,
			func(r *rig) []*corev1.Pod {
				return []*corev1.Pod{r.pod("web", 0, phase(corev1.PodSucceeded)), r.pod("web", 1, ips("10.1.0.1"))}
			},
			[]string{"IPv4 [TCP/http:8080] 10.1.0.1 TTF Pod/web-001/uid-web-001 node=n1"},
		},
		"F: two ready pods with the same IP: both": {
			nil,
			func(r *rig) []*corev1.Pod {
				return []*corev1.Pod{r.pod("web", 0), r.pod("web", 1, ips("10.1.0.1"))}
			},
			[]string{
				"IPv4 [TCP/http:8080] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1",
				"IPv4 [TCP/http:8080] 10.1.0.1 TTF Pod/web-001/uid-web-001 node=n1",
			},
		},
		"F2: a named port missing in one of two: it is in a slice without ports": {
			services_{named},
			func(r *rig) []*corev1.Pod {
				return []*corev1.Pod{r.pod("web", 0, port("web", 9090)), r.pod("web", 1)}
			},
			[]string{
				"IPv4 [TCP/http:9090] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1",
				"IPv4 [] 10.1.0.2 TTF Pod/web-001/uid-web-001 node=n1",
			},
		},
		"D3: one of two names missing: a slice with the other port alone": {
			services_{named, func(s *corev1.Service) {
				s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "admin", Port: 81, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("admin")})
			}},
			func(r *rig) []*corev1.Pod {
				return []*corev1.Pod{r.pod("web", 0, port("web", 9090), port("admin", 9091)), r.pod("web", 1, port("web", 9090))}
			},
			[]string{
				"IPv4 [TCP/admin:9091 TCP/http:9090] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1",
				"IPv4 [TCP/http:9090] 10.1.0.2 TTF Pod/web-001/uid-web-001 node=n1",
			},
		},
		"A4: only pods that match, of this namespace": {
			nil,
			func(r *rig) []*corev1.Pod {
				return []*corev1.Pod{r.pod("web", 0), r.pod("other", 1), r.pod("web", 2, func(p *corev1.Pod) { p.Namespace = "elsewhere" })}
			},
			[]string{"IPv4 [TCP/http:8080] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			for _, p := range tt.pods(r) {
				r.put(p)
			}
			r.put(r.service("web", tt.service...))
			r.sync("web")
			slices.Sort(tt.want)
			if diff := cmp.Diff(tt.want, told(r.slicesOf("web"))); diff != "" {
				t.Errorf("slices tell (-want +got):\n%s", diff)
			}
		})
	}
}

// A pod may change in every way that a slice shows; its slice follows with one
// update, and its place stays.
func TestAChangedPodIsChangedInPlace(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change pods_
		want   string
	}{
		"D4: readiness":                       {pods_{unready}, "10.1.0.1 FFF Pod/web-000/uid-web-000 node=n1"},
		"D4: deletion":                        {pods_{deleting}, "10.1.0.1 FTT Pod/web-000/uid-web-000 node=n1"},
		"D4: the node":                        {pods_{on("za")}, "10.1.0.1 TTF Pod/web-000/uid-web-000 node=za zone=a"},
		"D4: another pod of the name, by UID": {pods_{func(p *corev1.Pod) { p.UID = types.UID("again") }}, "10.1.0.1 TTF Pod/web-000/again node=n1"},
		"D4: the address":                     {pods_{ips("10.9.0.1")}, "10.9.0.1 TTF Pod/web-000/uid-web-000 node=n1"},
		"D4: the hostname":                    {pods_{func(p *corev1.Pod) { p.Spec.Hostname, p.Spec.Subdomain = "h", "web" }}, "10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1 host=h"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			r.put(node("za", "a"), r.service("web"), r.pod("web", 0), r.pod("web", 1))
			r.sync("web")
			slice := r.slicesOf("web")[0].Name
			r.put(r.pod("web", 0, tt.change...))
			r.wire.Take()
			r.sync("web")
			if got := r.writes(); got != "1 update" {
				t.Errorf("wrote %q, want 1 update", got)
			}
			all := r.slicesOf("web")
			want := []string{"IPv4 [TCP/http:8080] " + tt.want, "IPv4 [TCP/http:8080] 10.1.0.2 TTF Pod/web-001/uid-web-001 node=n1"}
			slices.Sort(want)
			if diff := cmp.Diff(want, told(all)); diff != "" {
				t.Errorf("slices tell (-want +got):\n%s", diff)
			}
			if len(all) != 1 || all[0].Name != slice {
				t.Errorf("%d slices, the first %s, want %s alone", len(all), all[0].Name, slice)
			}
		})
	}
}

// Part F, missing node.
func TestUnknownNode(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	s := r.service("web")
	r.put(s, r.pod("web", 0), r.pod("web", 1, on("later")))

	t.Log("D3: a pod on an unknown node is left out, the others are written, and the sync fails")
	err := r.reconcile("web")
	if err == nil || !strings.Contains(err.Error(), "later") {
		t.Fatalf("Reconcile() = %v, want an error that names the node", err)
	}
	one := []string{"IPv4 [TCP/http:8080] 10.1.0.1 TTF Pod/web-000/uid-web-000 node=n1"}
	if diff := cmp.Diff(one, told(r.slicesOf("web"))); diff != "" {
		t.Errorf("slices tell (-want +got):\n%s", diff)
	}
	if got := r.heard(); len(got) != 1 || !strings.HasPrefix(got[0], "Warning FailedToUpdateEndpointSlices Error updating Endpoint Slices for Service "+r.ns+"/web: ") {
		t.Errorf("events %q, want one FailedToUpdateEndpointSlices", got)
	}

	t.Log("D3: it fails again, writes nothing, and the node wakes it")
	r.echo()
	r.woken()
	r.wire.Take()
	if err := r.reconcile("web"); err == nil {
		t.Error("the second reconcile succeeded")
	}
	if got := r.writes(); got != "" {
		t.Errorf("the second reconcile wrote %s", got)
	}
	r.put(node("later", "b"))
	if got := r.woken(); got != "web" {
		t.Errorf("the node woke %q, want web", got)
	}
	r.sync("web")
	two := append(slices.Clone(one), "IPv4 [TCP/http:8080] 10.1.0.2 TTF Pod/web-001/uid-web-001 node=later zone=b")
	if diff := cmp.Diff(two, told(r.slicesOf("web"))); diff != "" {
		t.Errorf("slices tell (-want +got):\n%s", diff)
	}

	t.Log("beyond D1: its zone changes, and the slice follows")
	r.woken()
	r.put(node("later", "c"))
	if got := r.woken(); got != "web" {
		t.Errorf("the zone woke %q, want web", got)
	}
	r.sync("web")
	if got := told(r.slicesOf("web"))[1]; !strings.HasSuffix(got, " zone=c") {
		t.Errorf("slice tells %q, want zone c", got)
	}

	t.Log("D3: the node goes, and the pod with it")
	r.drop(node("later", ""))
	if got := r.woken(); got != "web" {
		t.Errorf("the node's end woke %q, want web", got)
	}
	if err := r.reconcile("web"); err == nil {
		t.Error("Reconcile() = nil, want an error")
	}
	if diff := cmp.Diff(one, told(r.slicesOf("web"))); diff != "" {
		t.Errorf("slices tell (-want +got):\n%s", diff)
	}
}

// F: nil and empty port lists are one group.
func TestHeadlessWithoutPortsDoesNotChurn(t *testing.T) {
	t.Parallel()
	for name, ports := range map[string][]discoveryv1.EndpointPort{"nil": nil, "empty": {}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			s := r.service("web", headless, withoutPorts)
			pods := r.fleet("web", 0, 2)
			r.make(r.slice("web-old", s, pods, func(s *discoveryv1.EndpointSlice) {
				s.Ports = ports
				s.Labels[corev1.IsHeadlessService] = ""
			}))
			r.echo()
			r.put(s)
			r.sync("web")
			if got := r.writes(); got != "" {
				t.Errorf("wrote %s", got)
			}
		})
	}
}

// F2: what becomes of slices when the service stops being one of ours.
func TestAServiceThatStopsSelecting(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Service){
		"F2: ExternalName: old slices stay":  func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName },
		"F2: selector gone: old slices stay": withoutSelector,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			r.put(r.service("web"), r.pod("web", 0))
			r.sync("web")
			before := told(r.slicesOf("web"))
			r.woken()
			r.put(r.service("web", change, func(s *corev1.Service) { s.Generation = 2 }))
			if got := r.woken(); got != "web" {
				t.Errorf("woke %q, want web", got)
			}
			r.drop(r.pod("web", 0))
			r.wire.Take()
			r.sync("web")
			if diff := cmp.Diff(before, told(r.slicesOf("web"))); diff != "" {
				t.Errorf("slices tell (-want +got):\n%s", diff)
			}
			r.put(r.service("web", func(s *corev1.Service) { s.Generation = 3 }))
			r.sync("web")
			if got := r.sizes("web"); got != "0" {
				t.Errorf("back again: slices of %s, want a placeholder", got)
			}
		})
	}
}

// A service deleted and made anew under its name must not inherit slices.
func TestAServiceMadeAnew(t *testing.T) {
	t.Parallel()
	r := newRig(t, 100)
	r.put(r.service("web"), r.pod("web", 0))
	r.sync("web")
	again := r.service("web", func(s *corev1.Service) { s.UID = "again"; s.CreationTimestamp = metav1.NewTime(at(1000)) })
	r.drop(r.service("web"))
	r.put(again)
	r.wire.Take()
	r.sync("web")
	if got := r.writes(); got != "1 create 1 delete" {
		t.Errorf("wrote %q, want 1 create 1 delete", got)
	}
	all := r.slicesOf("web")
	if len(all) != 1 || all[0].OwnerReferences[0].UID != "again" {
		t.Errorf("%d slices, owners %v", len(all), all[0].OwnerReferences)
	}
}
