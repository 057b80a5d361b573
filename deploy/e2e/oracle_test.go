package e2e

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The oracle is written from the contract (endpoints.md, parts B, D3 and D4) and
// not from the library that the product uses.

// endpoint is one address of a service, with all that a reader may learn of it.
type endpoint struct {
	Address, Node, Zone, Hostname, Pod string
	UID                                types.UID
	Ready, Serving, Terminating        bool
	Ports                              string
}

// id is what must not occur twice among a service's slices.
func (e endpoint) id() string { return string(e.UID) + " " + e.Address }

// world is what the API server holds at one moment, by namespace/name.
type world struct {
	services map[string]*corev1.Service
	pods     map[string]*corev1.Pod
	slices   map[string]*discoveryv1.EndpointSlice
	nodes    map[string]*corev1.Node
}

func newWorld() world {
	return world{
		services: map[string]*corev1.Service{}, pods: map[string]*corev1.Pod{},
		slices: map[string]*discoveryv1.EndpointSlice{}, nodes: map[string]*corev1.Node{},
	}
}

// differences compares every service with its slices.
func (w world) differences(maxPerSlice int) (out []string) {
	byService := map[string][]*discoveryv1.EndpointSlice{}
	for _, s := range w.slices {
		key := s.Namespace + "/" + s.Labels[discoveryv1.LabelServiceName]
		byService[key] = append(byService[key], s)
	}
	byNamespace := map[string][]*corev1.Pod{}
	for _, p := range w.pods {
		byNamespace[p.Namespace] = append(byNamespace[p.Namespace], p)
	}
	for _, key := range slices.Sorted(maps.Keys(w.services)) {
		svc := w.services[key]
		if !hasSlices(svc) {
			continue
		}
		want := wanted(svc, byNamespace[svc.Namespace], w.nodes)
		got, problems := union(svc, byService[key], maxPerSlice)
		for _, p := range problems {
			out = append(out, key+": "+p)
		}
		for _, id := range slices.Sorted(maps.Keys(want)) {
			if g, ok := got[id]; !ok {
				out = append(out, fmt.Sprintf("%s: pod %s is missing", key, want[id].Pod))
			} else if g != want[id] {
				out = append(out, fmt.Sprintf("%s: pod %s is\n\t%+v, want\n\t%+v", key, g.Pod, g, want[id]))
			}
		}
		for _, id := range slices.Sorted(maps.Keys(got)) {
			if _, ok := want[id]; !ok {
				out = append(out, fmt.Sprintf("%s: pod %s (%s) should not be there", key, got[id].Pod, id))
			}
		}
	}
	return out
}

// hasSlices: D2.2. One that is being deleted gets no new ones.
func hasSlices(s *corev1.Service) bool {
	return s.Spec.Selector != nil && s.Spec.Type != corev1.ServiceTypeExternalName && s.DeletionTimestamp == nil
}

func selected(s *corev1.Service, p *corev1.Pod) bool {
	if s.Namespace != p.Namespace || s.Spec.Selector == nil {
		return false
	}
	for k, v := range s.Spec.Selector {
		if got, ok := p.Labels[k]; !ok || got != v {
			return false
		}
	}
	return true
}

// wanted is what the pods say.
func wanted(s *corev1.Service, pods []*corev1.Pod, nodes map[string]*corev1.Node) map[string]endpoint {
	out := map[string]endpoint{}
	for _, p := range pods {
		if !selected(s, p) {
			continue
		}
		for _, e := range endpointsOf(s, p, nodes) {
			out[e.id()] = e
		}
	}
	return out
}

// endpointsOf returns what a selected pod is to a service: B and D3.
func endpointsOf(s *corev1.Service, p *corev1.Pod, nodes map[string]*corev1.Node) (out []endpoint) {
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded {
		return nil
	}
	e := endpoint{
		Node: p.Spec.NodeName, Pod: p.Name, UID: p.UID,
		Serving: podReady(p), Terminating: p.DeletionTimestamp != nil, Ports: portsOf(s, p),
	}
	e.Ready = s.Spec.PublishNotReadyAddresses || e.Serving && !e.Terminating
	if p.Spec.Hostname != "" && p.Spec.Subdomain == s.Name {
		e.Hostname = p.Spec.Hostname
	}
	if p.Spec.NodeName != "" {
		node, known := nodes[p.Spec.NodeName]
		if known {
			e.Zone = node.Labels[corev1.LabelTopologyZone]
		} else if !s.Spec.PublishNotReadyAddresses {
			return nil
		}
	}
	for _, ip := range p.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil || !slices.Contains(s.Spec.IPFamilies, family(addr)) {
			continue
		}
		e.Address = addr.String()
		out = append(out, e)
	}
	return out
}

func family(a netip.Addr) corev1.IPFamily {
	if a.Is4() {
		return corev1.IPv4Protocol
	}
	return corev1.IPv6Protocol
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func portsOf(s *corev1.Service, p *corev1.Pod) string {
	var out []string
	for _, sp := range s.Spec.Ports {
		if n, ok := portNumber(sp, p); ok {
			out = append(out, port(sp.Name, sp.Protocol, n))
		}
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

func port(name string, protocol corev1.Protocol, number int32) string {
	return fmt.Sprintf("%s:%s:%d", name, cmp.Or(protocol, corev1.ProtocolTCP), number)
}

// portNumber: a number is taken as it is, a name is looked for in containers,
// then in restartable init containers.
func portNumber(sp corev1.ServicePort, p *corev1.Pod) (int32, bool) {
	if sp.TargetPort.Type == intstr.Int {
		return sp.TargetPort.IntVal, true
	}
	containers := slices.Clone(p.Spec.Containers)
	for _, c := range p.Spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, cp := range c.Ports {
			if cp.Name == sp.TargetPort.StrVal && cmp.Or(cp.Protocol, corev1.ProtocolTCP) == cmp.Or(sp.Protocol, corev1.ProtocolTCP) {
				return cp.ContainerPort, true
			}
		}
	}
	return 0, false
}

const ourManager = "endpointslice-controller.k8s.io"

// belongs reports whether a slice counts for a service: ours, alive, its own.
func belongs(s *corev1.Service, slice *discoveryv1.EndpointSlice) bool {
	owner := metav1.GetControllerOf(slice)
	return slice.Labels[discoveryv1.LabelManagedBy] == ourManager && slice.DeletionTimestamp == nil &&
		owner != nil && owner.UID == s.UID
}

// union is what the slices of a service say, and what is wrong with them.
func union(s *corev1.Service, all []*discoveryv1.EndpointSlice, maxPerSlice int) (out map[string]endpoint, problems []string) {
	out = map[string]endpoint{}
	count := 0
	for _, slice := range all {
		if slice.Labels[discoveryv1.LabelManagedBy] != ourManager || slice.DeletionTimestamp != nil {
			continue
		}
		if !belongs(s, slice) {
			problems = append(problems, fmt.Sprintf("slice %s is of a service that is gone", slice.Name))
			continue
		}
		count++
		if len(slice.Endpoints) > maxPerSlice {
			problems = append(problems, fmt.Sprintf("slice %s has %d endpoints", slice.Name, len(slice.Endpoints)))
		}
		for _, e := range endpointsIn(slice) {
			if _, twice := out[e.id()]; twice {
				problems = append(problems, fmt.Sprintf("pod %s is there twice, again in %s", e.Pod, slice.Name))
			}
			out[e.id()] = e
		}
	}
	if count == 0 {
		problems = append(problems, "there is no slice")
	}
	return out, problems
}

func endpointsIn(slice *discoveryv1.EndpointSlice) (out []endpoint) {
	var ports []string
	for _, p := range slice.Ports {
		ports = append(ports, port(*p.Name, *p.Protocol, *p.Port))
	}
	slices.Sort(ports)
	for i := range slice.Endpoints {
		from := &slice.Endpoints[i]
		e := endpoint{
			Address: strings.Join(from.Addresses, ","), Ports: strings.Join(ports, ","),
			Ready: isTrue(from.Conditions.Ready), Serving: isTrue(from.Conditions.Serving), Terminating: isTrue(from.Conditions.Terminating),
			Node: deref(from.NodeName), Zone: deref(from.Zone), Hostname: deref(from.Hostname),
		}
		if from.TargetRef != nil && from.TargetRef.Kind == "Pod" {
			e.Pod, e.UID = from.TargetRef.Name, from.TargetRef.UID
		}
		out = append(out, e)
	}
	return out
}

func isTrue(b *bool) bool { return b != nil && *b }

func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

// The oracle itself, on the contract's worked examples (F2).
func TestOracleKnowsTheWorkedExamples(t *testing.T) {
	now := metav1.Now()
	nodes := map[string]*corev1.Node{"n": {ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{corev1.LabelTopologyZone: "z"}}}}
	pod := func(ready, deleting bool) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "ns", UID: "u", Labels: map[string]string{"app": "a"}},
			Spec: corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{
				Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}},
			}}},
			Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: "10.0.0.1"}, {IP: "fd00::1"}}},
		}
		if ready {
			p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		if deleting {
			p.DeletionTimestamp = &now
		}
		return p
	}
	with := func(p *corev1.Pod, change func(p *corev1.Pod)) *corev1.Pod { change(p); return p }
	base := endpoint{Address: "10.0.0.1", Node: "n", Zone: "z", Pod: "p", UID: "u", Ports: ":TCP:8080"}
	is := func(ready, serving, terminating bool) []endpoint {
		e := base
		e.Ready, e.Serving, e.Terminating = ready, serving, terminating
		return []endpoint{e}
	}
	noPorts := is(true, true, false)
	noPorts[0].Ports = ""
	tests := map[string]struct {
		pod        *corev1.Pod
		publishAll bool
		want       []endpoint
	}{
		"ready":                             {pod(true, false), false, is(true, true, false)},
		"not ready":                         {pod(false, false), false, is(false, false, false)},
		"ready and deleting":                {pod(true, true), false, is(false, true, true)},
		"not ready and deleting":            {pod(false, true), false, is(false, false, true)},
		"not ready, published all the same": {pod(false, false), true, is(true, false, false)},
		"deleting, published all the same":  {pod(true, true), true, is(true, true, true)},
		"succeeded":                         {with(pod(true, false), func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }), false, nil},
		"no address":                        {with(pod(true, false), func(p *corev1.Pod) { p.Status.PodIPs = nil }), false, nil},
		"no such port":                      {with(pod(true, false), func(p *corev1.Pod) { p.Spec.Containers[0].Ports = nil }), false, noPorts},
		"node unknown":                      {with(pod(true, false), func(p *corev1.Pod) { p.Spec.NodeName = "m" }), false, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s", Namespace: "ns"}, Spec: corev1.ServiceSpec{
				Selector: map[string]string{"app": "a"}, IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol}, PublishNotReadyAddresses: tt.publishAll,
				Ports: []corev1.ServicePort{{Port: 80, TargetPort: intstr.FromString("http")}},
			}}
			if got := endpointsOf(s, tt.pod, nodes); !slices.Equal(got, tt.want) {
				t.Errorf("endpointsOf() = %+v, want %+v", got, tt.want)
			}
		})
	}
}
