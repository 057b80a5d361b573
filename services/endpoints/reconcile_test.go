package endpoints

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// The numbers are those of contract 3, part F: they pin D5, which decides how
// few writes a change costs.
func TestPacking(t *testing.T) {
	t.Parallel()
	// existing makes slices of the given sizes over the first pods of a fleet.
	existing := func(r *rig, s *corev1.Service, pods []*corev1.Pod, sizes ...int) {
		for i, n := range sizes {
			r.make(r.slice(fmt.Sprintf("web-old-%02d", i), s, pods[:n]))
			pods = pods[n:]
		}
		r.echo()
	}
	ports8081 := func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(8081) }
	tests := map[string]struct {
		given  func(r *rig, s *corev1.Service)
		writes string
		sizes  string
	}{
		"D5.3: 250 pods make slices of 100, 100 and 50": {
			func(r *rig, s *corev1.Service) { r.fleet("web", 0, 250); r.put(s) },
			"3 create", "100 100 50",
		},
		"D5.3: 62 and 61 and 127 new: one created, one filled": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 250), 62, 61)
				r.put(s)
			},
			"1 create 1 update", "100 89 61",
		},
		"D5.4: 74 and 74 and 152 new: two created, nothing rebalanced": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 300), 74, 74)
				r.put(s)
			},
			"2 create", "100 74 74 52",
		},
		"D5.2: 80 and 20, both touched, take 15 more into the fuller one": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 115), 80, 20)
				r.put(r.pod("web", 0, unready), r.pod("web", 99, unready))
				r.put(s)
			},
			"2 update", "95 20",
		},
		"D5.3: a remainder that fits no slice whole makes a new one": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 190), 90, 90)
				r.fleet("web", 190, 200)
				r.fleet("web", 200, 205)
				r.put(s)
			},
			"1 create", "90 90 25",
		},
		"D5.3: a remainder that fits goes where it leaves least room": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 155), 60, 85)
				r.put(s)
			},
			"1 update", "95 60",
		},
		"D5.6: 300 endpoints in 10 slices, ports changed: 3 updates, 7 deletions": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 300), 30, 30, 30, 30, 30, 30, 30, 30, 30, 30)
				ports8081(s)
				r.put(s)
			},
			"3 update 7 delete", "100 100 100",
		},
		"D5.1: ports changed in one slice: it is rewritten in place": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 10), 10)
				ports8081(s)
				r.put(s)
			},
			"1 update", "10",
		},
		"D5.1: a slice that becomes empty is deleted": {
			func(r *rig, s *corev1.Service) {
				pods := r.fleet("web", 0, 20)
				existing(r, s, pods, 10, 10)
				for _, p := range pods[:10] {
					r.drop(p)
				}
				r.put(s)
			},
			"1 delete", "10",
		},
		"D5.1: a pod that goes leaves a hole": {
			func(r *rig, s *corev1.Service) {
				pods := r.fleet("web", 0, 20)
				existing(r, s, pods, 10, 10)
				r.drop(pods[0])
				r.put(s)
			},
			"1 update", "10 9",
		},
		"D5.1: a label of the service is copied": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 20), 10, 10)
				labelled("tier", "front")(s)
				r.put(s)
			},
			"2 update", "10 10",
		},
		"D5: a reserved label of the service is not": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 10), 10)
				labelled(discoveryv1.LabelManagedBy, "me")(s)
				labelled(discoveryv1.LabelServiceName, "other")(s)
				labelled(corev1.IsHeadlessService, "yes")(s)
				r.put(s)
			},
			"", "10",
		},
		"D5: annotations of the service are not": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 10), 10)
				s.Annotations = map[string]string{"a": "b"}
				r.put(s)
			},
			"", "10",
		},
		"F2: a clusterIP that goes does not write": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 10), 10)
				headless(s)
				r.put(s)
			},
			"", "10",
		},
		"D5.5: no pods make a placeholder": {
			func(r *rig, s *corev1.Service) { r.put(s) },
			"1 create", "0",
		},
		"D5.5: an equal placeholder is left alone": {
			func(r *rig, s *corev1.Service) {
				r.make(r.slice("web-old", s, nil, func(s *discoveryv1.EndpointSlice) { s.Ports = nil }))
				r.echo()
				r.put(s)
			},
			"", "0",
		},
		"D5.5: a placeholder with ports is made one without": {
			func(r *rig, s *corev1.Service) {
				r.make(r.slice("web-old", s, nil))
				r.echo()
				r.put(s)
			},
			"1 update", "0",
		},
		"D5.5: two placeholders become one": {
			func(r *rig, s *corev1.Service) {
				for _, name := range []string{"web-old-1", "web-old-2"} {
					r.make(r.slice(name, s, nil, func(s *discoveryv1.EndpointSlice) { s.Ports = nil }))
				}
				r.echo()
				r.put(s)
			},
			"1 delete", "0", // it is recycled, which changes nothing and is not sent
		},
		"D5.6: the placeholder becomes the first real slice": {
			func(r *rig, s *corev1.Service) {
				r.make(r.slice("web-old", s, nil, func(s *discoveryv1.EndpointSlice) { s.Ports = nil }))
				r.echo()
				r.fleet("web", 0, 3)
				r.put(s)
			},
			"1 update", "3",
		},
		"D4: slices of the deprecated address type go, new ones are made": {
			func(r *rig, s *corev1.Service) {
				pods := r.fleet("web", 0, 3)
				r.make(r.slice("web-old", s, pods, func(s *discoveryv1.EndpointSlice) { s.AddressType = "FQDN"; s.Endpoints = nil }))
				r.echo()
				r.put(s)
			},
			"1 create 1 delete", "3",
		},
		"D4: a slice of another owner is deleted and not recycled": {
			func(r *rig, s *corev1.Service) {
				r.make(r.slice("web-old", s, r.fleet("web", 0, 3), func(s *discoveryv1.EndpointSlice) { s.OwnerReferences[0].UID = "before" }))
				r.echo()
				r.put(s)
			},
			"1 create 1 delete", "3",
		},
		"D4: a slice without an owner is deleted": {
			func(r *rig, s *corev1.Service) {
				r.make(r.slice("web-old", s, r.fleet("web", 0, 3), func(s *discoveryv1.EndpointSlice) { s.OwnerReferences = nil }))
				r.echo()
				r.put(s)
			},
			"1 create 1 delete", "3",
		},
		"D5.7: a service that is being deleted gets no new slices": {
			func(r *rig, s *corev1.Service) {
				deletingService(s)
				r.fleet("web", 0, 3)
				r.put(s)
			},
			"", "",
		},
		"D5.7: its slices are kept up": {
			func(r *rig, s *corev1.Service) {
				pods := r.fleet("web", 0, 3)
				existing(r, s, pods, 3)
				r.drop(pods[0])
				deletingService(s)
				r.put(s)
			},
			"1 update", "2",
		},
		"D5.7: even then a creation and a deletion are one update": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 3), 3)
				ports8081(s)
				deletingService(s)
				r.put(s)
			},
			"1 update", "3",
		},
		"D2.2: an ExternalName gets nothing, and what there is stays": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 3), 2)
				s.Spec.Type = corev1.ServiceTypeExternalName
				r.put(s)
			},
			"", "2",
		},
		"D2.2: no selector, the same": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 3), 2)
				withoutSelector(s)
				r.put(s)
			},
			"", "2",
		},
		"D2.1: of a service that is gone, slices are left to their owner reference": {
			func(r *rig, s *corev1.Service) {
				existing(r, s, r.fleet("web", 0, 3), 3)
				r.put(s)
				r.drop(s)
			},
			"", "3",
		},
		"D2.3: slices of another manager are not ours": {
			func(r *rig, s *corev1.Service) {
				pods := r.fleet("web", 0, 3)
				r.make(r.slice("web-theirs", s, pods, func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "me" }))
				r.echo()
				r.put(s)
			},
			"1 create", "3",
		},
		"D2.3: the mixed case: one updated, one deleted, theirs left": {
			func(r *rig, s *corev1.Service) {
				pods := r.fleet("web", 0, 3)
				r.make(r.slice("web-theirs", s, pods, func(s *discoveryv1.EndpointSlice) { s.Labels[discoveryv1.LabelManagedBy] = "me" }))
				r.make(r.slice("web-1", s, nil, func(s *discoveryv1.EndpointSlice) { s.Ports = nil }))
				r.make(r.slice("web-2", s, nil, func(s *discoveryv1.EndpointSlice) { s.Ports = nil }))
				r.echo()
				r.put(s)
			},
			"1 update 1 delete", "3",
		},
		"D2.3: a slice that is being deleted counts for nothing, and its name is taken": {
			func(r *rig, s *corev1.Service) {
				pods := r.fleet("web", 0, 3)
				r.put(s)
				r.sync("web")
				name := r.slicesOf("web")[0].Name
				r.edit(name, func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"test/held"} })
				if err := r.admin.DiscoveryV1().EndpointSlices(r.ns).Delete(r.Context(), name, metav1.DeleteOptions{}); err != nil {
					r.Fatal(err)
				}
				r.put(pods[0])
				r.echo()
				r.wire.Take()
			},
			"1 create", "3",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			tt.given(r, r.service("web"))
			r.sync("web")
			if got := r.writes(); got != tt.writes {
				t.Errorf("wrote %q, want %q", got, tt.writes)
			}
			if got := r.sizes("web"); got != tt.sizes {
				t.Errorf("slices of %s, want %s", got, tt.sizes)
			}
			r.sync("web")
			if got := r.writes(); got != "" {
				t.Errorf("the second reconcile wrote %s", got)
			}
			if got := r.heard(); got != nil {
				t.Errorf("events: %v", got)
			}
		})
	}
}

// Part F: named ports over five variants of 60 pods, by the maximum of a slice.
func TestNamedPortsGroupPods(t *testing.T) {
	t.Parallel()
	for maximum, want := range map[int32]string{
		50:  strings.TrimSpace(strings.Repeat("50 ", 5) + strings.Repeat("10 ", 5)),
		80:  "60 60 60 60 60",
		500: "60 60 60 60 60",
	} {
		t.Run(fmt.Sprint("D4: slices of at most ", maximum), func(t *testing.T) {
			t.Parallel()
			r := newRig(t, maximum)
			s := r.service("web", named)
			var wantLines []string
			for i := range 300 {
				number := int32(8000 + i%5)
				p := r.pod("web", i, port("web", number))
				r.put(p)
				wantLines = append(wantLines, fmt.Sprintf("IPv4 [TCP/http:%d] %s TTF Pod/%s/%s node=n1", number, p.Status.PodIPs[0].IP, p.Name, p.UID))
			}
			r.put(s, node("n1", ""))
			r.sync("web")
			if got := r.sizes("web"); got != want {
				t.Errorf("slices of %s, want %s", got, want)
			}
			slices.Sort(wantLines)
			if diff := cmp.Diff(wantLines, told(r.slicesOf("web"))); diff != "" {
				t.Errorf("slices tell (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWhatASliceCarries(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		service *corev1.Service
		change  []func(*corev1.Service)
		want    map[string]string
	}{
		"D5: the labels of the service and ours": {
			change: []func(*corev1.Service){func(s *corev1.Service) { labelled("tier", "front")(s) }},
			want:   map[string]string{"tier": "front", discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: managedBy},
		},
		"D5: headless is a label": {
			change: []func(*corev1.Service){headless},
			want:   map[string]string{corev1.IsHeadlessService: "", discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: managedBy},
		},
		"D5: reserved labels of the service are replaced": {
			change: []func(*corev1.Service){func(s *corev1.Service) {
				labelled(discoveryv1.LabelManagedBy, "me")(s)
				labelled(discoveryv1.LabelServiceName, "other")(s)
				labelled(corev1.IsHeadlessService, "yes")(s)
			}},
			want: map[string]string{discoveryv1.LabelServiceName: "web", discoveryv1.LabelManagedBy: managedBy},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			s := r.service("web", tt.change...)
			r.put(s)
			r.sync("web")
			got := r.slicesOf("web")[0]
			if diff := cmp.Diff(tt.want, got.Labels); diff != "" {
				t.Errorf("labels (-want +got):\n%s", diff)
			}
			owner := []metav1.OwnerReference{{
				APIVersion: "v1", Kind: "Service", Name: "web", UID: s.UID, Controller: new(true), BlockOwnerDeletion: new(true),
			}}
			if diff := cmp.Diff(owner, got.OwnerReferences); diff != "" {
				t.Errorf("owners (-want +got):\n%s", diff)
			}
			if len(got.ManagedFields) != 1 || got.ManagedFields[0].Manager != manager {
				t.Errorf("field managers %v, want only %s", got.ManagedFields, manager)
			}
		})
	}
}

// What others put on our slices by hand is theirs where upstream leaves it, and
// put right where upstream puts it right.
func TestEditsByHand(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		edit   func(*discoveryv1.EndpointSlice)
		writes string
	}{
		"D5.1: a label that is not the service's goes":       {func(s *discoveryv1.EndpointSlice) { s.Labels["x"] = "y" }, "1 update"},
		"D5.1: an endpoint nobody has goes":                  {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Addresses = []string{"10.9.9.9"} }, "1 update"},
		"D4: a condition is put right":                       {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Ready = new(false) }, "1 update"},
		"F: serving unset is not serving true":               {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].Conditions.Serving = nil }, "1 update"},
		"F: a targetRef's resourceVersion is nothing":        {func(s *discoveryv1.EndpointSlice) { s.Endpoints[0].TargetRef.ResourceVersion = "7" }, ""},
		"D4: ports are put right":                            {func(s *discoveryv1.EndpointSlice) { s.Ports[0].Port = new(int32(1)) }, "1 update"},
		"D6: hints nobody asked for go":                      {hinted, "1 update"},
		"an annotation stays":                                {func(s *discoveryv1.EndpointSlice) { s.Annotations = map[string]string{"x": "y"} }, ""},
		"a finalizer stays":                                  {func(s *discoveryv1.EndpointSlice) { s.Finalizers = []string{"test/x"} }, ""},
		"D5: a missing headless label alone does not matter": {func(s *discoveryv1.EndpointSlice) { s.Labels[corev1.IsHeadlessService] = "" }, ""},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			r.fleet("web", 0, 3)
			r.put(r.service("web"), node("n1", "a"))
			r.sync("web")
			before := told(r.slicesOf("web"))
			r.edit(r.slicesOf("web")[0].Name, tt.edit)
			r.echo()
			r.wire.Take()
			r.sync("web")
			if got := r.writes(); got != tt.writes {
				t.Errorf("wrote %q, want %q", got, tt.writes)
			}
			if diff := cmp.Diff(before, told(r.slicesOf("web"))); diff != "" {
				t.Errorf("slices tell (-want +got):\n%s", diff)
			}
		})
	}
}

func hinted(s *discoveryv1.EndpointSlice) {
	s.Endpoints[0].Hints = &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: "b"}}}
}

// An update is a PUT: it must carry what others put there.
func TestUpdatesKeepWhatOthersAdded(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*corev1.Service){
		"a regular update": func(s *corev1.Service) { labelled("tier", "front")(s) },
		"a recycled slice": func(s *corev1.Service) { s.Spec.Ports[0].TargetPort = intstr.FromInt32(1) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 100)
			r.fleet("web", 0, 3)
			r.put(r.service("web"), node("n1", ""))
			r.sync("web")
			was := r.edit(r.slicesOf("web")[0].Name, func(s *discoveryv1.EndpointSlice) {
				s.Annotations = map[string]string{"x": "y"}
				s.Finalizers = []string{"test/x"}
			})
			r.echo()
			r.put(r.service("web", change))
			r.wire.Take()
			r.sync("web")
			if got := r.writes(); got != "1 update" {
				t.Fatalf("wrote %q, want 1 update", got)
			}
			got := r.slicesOf("web")[0]
			if got.Annotations["x"] != "y" || len(got.Finalizers) != 1 || got.UID != was.UID {
				t.Errorf("annotations %v, finalizers %v, UID kept %t", got.Annotations, got.Finalizers, got.UID == was.UID)
			}
		})
	}
}
