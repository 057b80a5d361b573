package endpoints

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// service makes a ClusterIP service that selects app=<name> and maps port 80 to
// 8080.
func (r *rig) service(name string, change ...func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.ns, Name: name, UID: types.UID("uid-" + name), Generation: 1,
			CreationTimestamp: metav1.NewTime(at(0)),
		},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: "10.96.0.10", IPFamilies: []corev1.IPFamily{corev1.IPv4Protocol},
			Selector: map[string]string{"app": name},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)}},
		},
	}
	for _, c := range change {
		c(s)
	}
	return s
}

func headless(s *corev1.Service)        { s.Spec.ClusterIP = corev1.ClusterIPNone }
func publishNotReady(s *corev1.Service) { s.Spec.PublishNotReadyAddresses = true }
func dualStack(s *corev1.Service) {
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol, corev1.IPv6Protocol}
}
func onlyIPv6(s *corev1.Service)        { s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv6Protocol} }
func withoutSelector(s *corev1.Service) { s.Spec.Selector = nil }
func named(s *corev1.Service)           { s.Spec.Ports[0].TargetPort = intstr.FromString("web") }
func deletingService(s *corev1.Service) { t := metav1.NewTime(at(0)); s.DeletionTimestamp = &t }
func withoutPorts(s *corev1.Service)    { s.Spec.Ports = nil }
func labelled(k, v string) func(metav1.Object) {
	return func(o metav1.Object) {
		labels := map[string]string{k: v}
		for k, v := range o.GetLabels() {
			if _, ok := labels[k]; !ok {
				labels[k] = v
			}
		}
		o.SetLabels(labels)
	}
}

// pod makes the i-th pod of app=<app>: ready, on node n1.
func (r *rig) pod(app string, i int, change ...func(*corev1.Pod)) *corev1.Pod {
	name := fmt.Sprintf("%s-%03d", app, i)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c"}}},
		Status: corev1.PodStatus{
			Phase:  corev1.PodRunning,
			PodIPs: []corev1.PodIP{{IP: fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)}},
			Conditions: []corev1.PodCondition{{
				Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(at(0)),
			}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func unready(p *corev1.Pod)  { p.Status.Conditions[0].Status = corev1.ConditionFalse }
func deleting(p *corev1.Pod) { t := metav1.NewTime(at(0)); p.DeletionTimestamp = &t }
func on(node string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeName = node }
}
func phase(ph corev1.PodPhase) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Phase = ph }
}
func ips(addresses ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Status.PodIPs = nil
		for _, a := range addresses {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
		}
	}
}
func port(name string, number int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports,
			corev1.ContainerPort{Name: name, ContainerPort: number, Protocol: corev1.ProtocolTCP})
	}
}
func readyAt(when metav1.Time) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Status.Conditions[0].LastTransitionTime = when }
}

// fleet makes the pods from..to-1 of an app and puts them.
func (r *rig) fleet(app string, from, to int, change ...func(*corev1.Pod)) []*corev1.Pod {
	r.Helper()
	var out []*corev1.Pod
	for i := from; i < to; i++ {
		out = append(out, r.pod(app, i, change...))
		r.put(out[len(out)-1])
	}
	return out
}

func node(name, zone string) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name)}}
	if zone != "" {
		n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	}
	return n
}

// slice is a slice as this controller, whoever ran it, has left it for ready
// pods on n1 without zone.
func (r *rig) slice(name string, s *corev1.Service, pods []*corev1.Pod, change ...func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.ns, Name: name,
			Labels:          map[string]string{discoveryv1.LabelServiceName: s.Name, discoveryv1.LabelManagedBy: managedBy},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(s, corev1.SchemeGroupVersion.WithKind("Service"))},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: new("http"), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}},
	}
	for _, p := range pods {
		out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{p.Status.PodIPs[0].IP},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   &p.Spec.NodeName,
			TargetRef:  &corev1.ObjectReference{Kind: "Pod", Namespace: p.Namespace, Name: p.Name, UID: p.UID},
		})
	}
	for _, c := range change {
		c(out)
	}
	return out
}

// told renders what slices tell, one line per endpoint in order: where, under
// which ports, and as what. Slices without endpoints are lines too.
func told(all []*discoveryv1.EndpointSlice) []string {
	var out []string
	for _, s := range all {
		at := fmt.Sprintf("%s %s", s.AddressType, portsOf(s.Ports))
		if len(s.Endpoints) == 0 {
			out = append(out, at+" nobody")
		}
		for i := range s.Endpoints {
			out = append(out, at+" "+endpointOf(&s.Endpoints[i]))
		}
	}
	slices.Sort(out)
	return out
}

func portsOf(ports []discoveryv1.EndpointPort) string {
	var out []string
	for _, p := range ports {
		line := fmt.Sprintf("%s/%s:%d", *p.Protocol, *p.Name, *p.Port)
		if p.AppProtocol != nil {
			line += "=" + *p.AppProtocol
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return "[" + strings.Join(out, " ") + "]"
}

func endpointOf(e *discoveryv1.Endpoint) string {
	line := []string{strings.Join(e.Addresses, ","), conditions(*e.Conditions.Ready, *e.Conditions.Serving, *e.Conditions.Terminating)}
	add := func(what string, v *string) {
		if v != nil {
			line = append(line, what+"="+*v)
		}
	}
	if e.TargetRef != nil {
		line = append(line, fmt.Sprintf("%s/%s/%s", e.TargetRef.Kind, e.TargetRef.Name, e.TargetRef.UID))
	}
	add("node", e.NodeName)
	add("zone", e.Zone)
	add("host", e.Hostname)
	if e.Hints != nil {
		for _, z := range e.Hints.ForZones {
			line = append(line, "forzone="+z.Name)
		}
		for _, n := range e.Hints.ForNodes {
			line = append(line, "fornode="+n.Name)
		}
	}
	return strings.Join(line, " ")
}

// conditions renders ready, serving, terminating as contract 3, F2 does.
func conditions(all ...bool) string {
	letters := map[bool]string{true: "T", false: "F"}
	return letters[all[0]] + letters[all[1]] + letters[all[2]]
}
