package endpoints

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"pgregory.net/rapid"
)

// oracle is contract 3, B, D3, D4 and the half of D6 that we have, written down
// once more without a look at the library: what the slices of a service tell,
// in the words of told. failed: a pod was left out for its node. A family without
// endpoints has a slice without any; which ports that names is nothing to rely
// on: an empty slice of a group that is still wanted is left as it is.
func oracle(s *corev1.Service, all []*corev1.Pod, zones map[string]string) (lines []string, failed bool) {
	for _, family := range s.Spec.IPFamilies {
		for _, p := range all {
			line, missing := oracleEndpoint(s, p, zones, family)
			failed = failed || missing
			if line != "" {
				lines = append(lines, string(family)+" "+line)
			}
		}
	}
	slices.Sort(lines)
	return lines, failed
}

func oracleEndpoint(s *corev1.Service, p *corev1.Pod, zones map[string]string, family corev1.IPFamily) (line string, missing bool) {
	for k, v := range s.Spec.Selector {
		if p.Labels[k] != v {
			return "", false
		}
	}
	if p.Status.Phase == corev1.PodFailed || p.Status.Phase == corev1.PodSucceeded || len(p.Status.PodIPs) == 0 {
		return "", false
	}
	zone, known := zones[p.Spec.NodeName]
	if !known && !s.Spec.PublishNotReadyAddresses {
		return "", true
	}
	var addresses []string
	for _, ip := range p.Status.PodIPs {
		if netip.MustParseAddr(ip.IP).Is4() == (family == corev1.IPv4Protocol) {
			addresses = append(addresses, ip.IP)
		}
	}
	if len(addresses) == 0 {
		return "", false
	}
	serving, terminating := p.Status.Conditions[0].Status == corev1.ConditionTrue, p.DeletionTimestamp != nil
	ready := s.Spec.PublishNotReadyAddresses || serving && !terminating
	line = fmt.Sprintf("%s %s %s Pod/%s/%s node=%s", oraclePorts(s, p), strings.Join(addresses, ","), conditions(ready, serving, terminating), p.Name, p.UID, p.Spec.NodeName)
	if zone != "" {
		line += " zone=" + zone
	}
	if p.Spec.Hostname != "" && p.Spec.Subdomain == s.Name {
		line += " host=" + p.Spec.Hostname
	}
	if d := s.Spec.TrafficDistribution; d != nil && ready {
		if zone != "" {
			line += " forzone=" + zone
		}
		if *d == corev1.ServiceTrafficDistributionPreferSameNode {
			line += " fornode=" + p.Spec.NodeName
		}
	}
	return line, false
}

func oraclePorts(s *corev1.Service, p *corev1.Pod) string {
	var out []string
	for _, sp := range s.Spec.Ports {
		number := sp.TargetPort.IntVal
		if sp.TargetPort.Type == intstr.String {
			number = 0
			for _, cp := range p.Spec.Containers[0].Ports {
				if cp.Name == sp.TargetPort.StrVal && number == 0 {
					number = cp.ContainerPort
				}
			}
		}
		if number != 0 {
			out = append(out, fmt.Sprintf("%s/%s:%d", sp.Protocol, sp.Name, number))
		}
	}
	slices.Sort(out)
	return "[" + strings.Join(out, " ") + "]"
}

// drawService draws what a service may be; its families are kept over one
// history, for they cannot be taken back.
func (r *rig) drawService(t *rapid.T, name string) *corev1.Service {
	coin := func(what string) bool { return rapid.Bool().Draw(t, what) }
	return r.service(name, func(s *corev1.Service) {
		s.Spec.IPFamilies = rapid.SampledFrom([][]corev1.IPFamily{
			{corev1.IPv4Protocol}, {corev1.IPv4Protocol}, {corev1.IPv6Protocol}, {corev1.IPv6Protocol, corev1.IPv4Protocol},
		}).Draw(t, "families")
		s.Spec.PublishNotReadyAddresses = coin("publish")
		s.Spec.Ports = nil
		if coin("port") {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromInt32(8080)})
		}
		if coin("named") {
			s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: "web", Port: 81, Protocol: corev1.ProtocolTCP, TargetPort: intstr.FromString("web")})
		}
		if len(s.Spec.Ports) == 0 || coin("headless") {
			headless(s)
		}
		if coin("label") {
			labelled("tier", rapid.SampledFrom([]string{"a", "b"}).Draw(t, "tier"))(s)
		}
		if d := rapid.SampledFrom([]string{"", "", "PreferClose", "PreferSameZone", "PreferSameNode"}).Draw(t, "distribution"); d != "" {
			s.Spec.TrafficDistribution = &d
		}
	})
}

func (r *rig) drawPod(t *rapid.T, app string, i int) *corev1.Pod {
	oneIn := func(n int, what string) bool { return rapid.IntRange(1, n).Draw(t, what) == 1 }
	return r.pod(app, i, func(p *corev1.Pod) {
		four, six := fmt.Sprintf("10.1.0.%d", rapid.IntRange(1, 20).Draw(t, "v4")), fmt.Sprintf("fd00::%d", i+1)
		p.Status.PodIPs = rapid.SampledFrom([][]corev1.PodIP{
			{{IP: four}}, {{IP: four}}, {{IP: four}, {IP: six}}, {{IP: six}, {IP: four}}, {{IP: six}}, {},
		}).Draw(t, "ips")
		p.Spec.NodeName = rapid.SampledFrom([]string{"n1", "za", "zb", "za", "zb"}).Draw(t, "node")
		if oneIn(12, "unknown node") {
			p.Spec.NodeName = "unknown"
		}
		if oneIn(4, "unready") {
			unready(p)
		}
		if oneIn(6, "deleting") {
			deleting(p)
		}
		if oneIn(8, "stranger") {
			p.Labels = nil
		}
		if oneIn(5, "hostname") {
			p.Spec.Hostname, p.Spec.Subdomain = "h", rapid.SampledFrom([]string{app, "x"}).Draw(t, "subdomain")
		}
		if n := rapid.SampledFrom([]int32{0, 9090, 9091}).Draw(t, "container port"); n != 0 {
			port("web", n)(p)
		}
		p.Status.Phase = rapid.SampledFrom([]corev1.PodPhase{"Running", "Running", "Running", "Pending", "Succeeded", "Failed"}).Draw(t, "phase")
		if oneIn(4, "made anew") {
			p.UID = types.UID(fmt.Sprint(p.UID, "-", rapid.IntRange(1, 3).Draw(t, "uid")))
		}
	})
}

// drawSlice stores a slice that nobody asked for.
func (r *rig) drawSlice(t *rapid.T, name string, s *corev1.Service, pods []*corev1.Pod) {
	var named []*corev1.Pod
	for _, p := range pods {
		if len(p.Status.PodIPs) > 0 && netip.MustParseAddr(p.Status.PodIPs[0].IP).Is4() && len(named) < 3 && rapid.Bool().Draw(t, "names") {
			named = append(named, p)
		}
	}
	r.make(r.slice(name, s, named, rapid.SampledFrom([]func(*discoveryv1.EndpointSlice){
		func(*discoveryv1.EndpointSlice) {},
		func(s *discoveryv1.EndpointSlice) { s.Ports = nil },
		func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = "y" },
		func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "before" },
		func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil },
		func(s *discoveryv1.EndpointSlice) { s.AddressType = discoveryv1.AddressTypeFQDN; s.Endpoints = nil },
		managedByMe,
	}).Draw(t, "kind of slice")))
}

// rest reconciles until nothing is written any more, as the frame would; the
// first time on what the cache holds, then on what has come of it.
func (r *rig) rest(t *rapid.T, service string, failed bool) {
	const enough = 8
	for try := range enough {
		r.wire.Take()
		err := r.reconcile(service)
		wrote := r.writes() != ""
		r.echo()
		if try == 0 || wrote || err != nil && !failed {
			continue
		}
		if failed != (err != nil) {
			t.Fatalf("Reconcile() = %v; a pod on an unknown node: %t", err, failed)
		}
		return
	}
	t.Fatalf("still not at rest after %d reconciles", enough)
}

// clear takes all slices away, so that one history costs as much as the next.
func (r *rig) clear() {
	err := r.admin.DiscoveryV1().EndpointSlices(r.ns).DeleteCollection(r.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	r.echo()
	r.changes = nil
}

// Any history of pods, of the service, of slices that others made or touched,
// and of caches that had not heard of them, comes to rest where the contract
// says; then nothing more is written, whatever the order in which pods and
// slices are looked at (the cache's is random).
func TestAnyHistoryEndsWhereTheContractSays(t *testing.T) {
	t.Parallel()
	const maximum = 3
	r := newRig(t, maximum)
	zones := map[string]string{"n1": "", "za": "a", "zb": "b"}
	for name, zone := range zones {
		r.put(node(name, zone))
	}
	history := 0
	rapid.Check(t, func(t *rapid.T) {
		history++
		app := fmt.Sprint("app", history)
		var world []*corev1.Pod
		defer func() {
			for _, p := range world {
				r.drop(p)
			}
			r.drop(r.service(app))
			r.clear()
		}()
		service := r.drawService(t, app)
		for step := range rapid.IntRange(1, 3).Draw(t, "steps") {
			for _, p := range world {
				r.drop(p)
			}
			world = nil
			for i := range rapid.IntRange(0, 12).Draw(t, "pods") {
				world = append(world, r.drawPod(t, app, i))
				r.put(world[i])
			}
			families := service.Spec.IPFamilies
			service = r.drawService(t, app)
			service.Generation = int64(step + 1)
			if rapid.Bool().Draw(t, "keep families") {
				service.Spec.IPFamilies = families
			}
			r.put(service)
			for i := range rapid.IntRange(0, 2).Draw(t, "slices of nobody") {
				r.drawSlice(t, fmt.Sprintf("%s-junk-%d-%d", app, step, i), service, world)
			}
			if all := r.slicesOf(app); len(all) > 0 && rapid.Bool().Draw(t, "edit") {
				r.edit(all[rapid.IntRange(0, len(all)-1).Draw(t, "which")].Name, func(s *discoveryv1.EndpointSlice) {
					s.Labels["edited"] = "by-hand"
					if len(s.Endpoints) > 0 {
						s.Endpoints = s.Endpoints[1:]
					}
				})
			}
			if rapid.Bool().Draw(t, "the cache has heard") {
				r.echo()
			} else {
				r.p.live[r.key(app)] = rapid.Bool().Draw(t, "live first")
			}
			want, failed := oracle(service, world, zones)
			r.rest(t, app, failed)

			if complaint := r.judge(app, service.Spec.IPFamilies, want, maximum); complaint != "" {
				t.Fatal(complaint)
			}
		}
	})
}

// judge compares what the slices of a service tell with what they should.
func (r *rig) judge(service string, families []corev1.IPFamily, want []string, maximum int) string {
	r.Helper()
	all := r.slicesOf(service)
	found := map[corev1.IPFamily]bool{}
	for _, s := range all {
		found[corev1.IPFamily(s.AddressType)] = true
		if len(s.Endpoints) > maximum {
			return fmt.Sprintf("slice %s holds %d endpoints, more than %d", s.Name, len(s.Endpoints), maximum)
		}
	}
	for _, family := range families {
		if !found[family] {
			return fmt.Sprintf("no slice of %s", family)
		}
	}
	if len(found) != len(families) {
		return fmt.Sprintf("slices of %v, want %v", found, families)
	}
	got := slices.DeleteFunc(told(all), func(line string) bool { return strings.HasSuffix(line, " nobody") })
	if diff := cmp.Diff(want, got, cmpopts.EquateEmpty()); diff != "" {
		return "slices tell (-want +got):\n" + diff
	}
	return ""
}

// The order in which objects arrive is nothing: any two arrivals of one world
// end in the same union. With one service the oracle says so; here neither the
// node nor the service comes first, and the sync runs at any moment.
func TestTheOrderOfArrivalIsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3)
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		app := fmt.Sprint("order", n)
		service := r.service(app)
		world := []object{service, node("late-"+app, "z")}
		var fleet []*corev1.Pod
		for i := range 5 {
			fleet = append(fleet, r.pod(app, i, on("late-"+app)))
			world = append(world, fleet[i])
		}
		for _, obj := range rapid.Permutation(world).Draw(rt, "order") {
			r.put(obj)
			if rapid.Bool().Draw(rt, "sync") {
				_ = r.reconcile(app) // it may lack the node yet
				if rapid.Bool().Draw(rt, "echo") {
					r.echo()
				}
			}
		}
		defer r.clear()
		want, _ := oracle(service, fleet, map[string]string{"late-" + app: "z"})
		r.rest(rt, app, false)
		if complaint := r.judge(app, service.Spec.IPFamilies, want, 3); complaint != "" {
			rt.Fatal(complaint)
		}
	})
}
