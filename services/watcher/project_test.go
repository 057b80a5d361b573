package watcher

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

var update = flag.Bool("update", false, "rewrite testdata")

// secretWord stands in every string of a filled object.
const secretWord = "word"

// samples makes one object of each kind we have a judgement on, and some we do
// not.
var samples = map[string]func() runtime.Object{
	"pods":                            func() runtime.Object { return &corev1.Pod{} },
	"nodes":                           func() runtime.Object { return &corev1.Node{} },
	"services":                        func() runtime.Object { return &corev1.Service{} },
	"endpoints":                       func() runtime.Object { return &corev1.Endpoints{} },
	"endpointslices.discovery.k8s.io": func() runtime.Object { return &discoveryv1.EndpointSlice{} },
	"resourcequotas":                  func() runtime.Object { return &corev1.ResourceQuota{} },
	"persistentvolumeclaims":          func() runtime.Object { return &corev1.PersistentVolumeClaim{} },
	"resourceclaims.resource.k8s.io":  func() runtime.Object { return &resourcev1.ResourceClaim{} },
	"deviceclasses.resource.k8s.io":   func() runtime.Object { return &resourcev1.DeviceClass{} },
	"namespaces":                      func() runtime.Object { return &corev1.Namespace{} },
	"replicationcontrollers":          func() runtime.Object { return &corev1.ReplicationController{} },
	"secrets":                         func() runtime.Object { return &corev1.Secret{} },
	"configmaps":                      func() runtime.Object { return &corev1.ConfigMap{} },
	"metadata":                        func() runtime.Object { return &metav1.PartialObjectMetadata{} },
}

// filled returns an object with every field set, so that what is kept can be
// seen.
func filled(o runtime.Object, seed int64) runtime.Object {
	moment := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	randfill.NewWithSeed(seed).NilChance(0).NumElements(1, 1).MaxDepth(20).Funcs(
		func(s *string, c randfill.Continue) { *s = secretWord + fmt.Sprint(c.Intn(1000)) },
		func(u *types.UID, c randfill.Continue) { *u = types.UID(fmt.Sprint("uid", c.Intn(1000))) },
		func(b *bool, _ randfill.Continue) { *b = true },
		func(n *int64, c randfill.Continue) { *n = 1 + c.Int63n(1000) },
		func(n *int32, c randfill.Continue) { *n = 1 + c.Int31n(1000) },
		func(t *metav1.Time, _ randfill.Continue) { *t = moment },
		func(t *metav1.MicroTime, _ randfill.Continue) { t.Time = moment.Time },
		func(q *resource.Quantity, c randfill.Continue) {
			*q = *resource.NewQuantity(1+c.Int63n(1000), resource.DecimalSI)
		},
		func(v *intstr.IntOrString, c randfill.Continue) { *v = intstr.FromInt32(1 + c.Int31n(1000)) },
		func(f *metav1.FieldsV1, _ randfill.Continue) { f.SetRawBytes([]byte(`{"f:word":{}}`)) },
		func(r *runtime.RawExtension, _ randfill.Continue) { r.Raw = []byte(`{"word":1}`) },
		func(m *metav1.ObjectMeta, c randfill.Continue) {
			c.FillNoCustom(m)
			m.Annotations[corev1.LastAppliedConfigAnnotation] = `{"word":1}`
		},
	).Fill(o)
	return o
}

// paths lists where a value stands in an object's JSON.
func paths(t testing.TB, o runtime.Object) []string {
	t.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	walk(tree, "", found)
	return slices.Sorted(maps.Keys(found))
}

// mapsOf are the fields whose keys are names, not fields.
var mapsOf = []string{
	"labels", "annotations", "matchLabels", "selector", "limits", "requests", "capacity", "allocatable", "hard", "used",
	"overhead", "allocatedResources", "data", "binaryData", "stringData", "nodeSelector",
}

func walk(v any, at string, found map[string]bool) {
	switch v := v.(type) {
	case map[string]any:
		named := slices.Contains(mapsOf, at[strings.LastIndex(at, ".")+1:])
		for name, child := range v {
			switch {
			case named && name == corev1.LastAppliedConfigAnnotation:
				walk(child, at+"{last-applied}", found)
			case named:
				walk(child, at+"{}", found)
			default:
				walk(child, strings.TrimPrefix(at+"."+name, "."), found)
			}
		}
	case []any:
		for _, child := range v {
			walk(child, at+"[]", found)
		}
	case string:
		if v != "" {
			found[at] = true
		}
	case float64:
		if v != 0 {
			found[at] = true
		}
	case bool:
		if v {
			found[at] = true
		}
	}
}

// A field that starts or stops travelling is a change of the wire: it needs a
// new version of the projection, and a look at this list.
func TestEachKindKeepsExactlyTheseFields(t *testing.T) {
	for kind, sample := range samples {
		t.Run(kind, func(t *testing.T) {
			got := strings.Join(paths(t, project(filled(sample(), 1))), "\n") + "\n"
			golden := filepath.Join("testdata", kind+".txt")
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("kept fields differ from %s (run with -update and look at the difference):\n%s", golden, diff(string(want), got))
			}
		})
	}
}

func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	var out []string
	for _, line := range w {
		if !slices.Contains(g, line) {
			out = append(out, "- "+line)
		}
	}
	for _, line := range g {
		if !slices.Contains(w, line) {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}

// Whole kinds are written by PUT: what is missing here would be erased there.
func TestWholeKindsLoseNothingButManagedFieldsAndVersion(t *testing.T) {
	for _, kind := range []string{"services", "endpoints", "endpointslices.discovery.k8s.io"} {
		t.Run(kind, func(t *testing.T) {
			want := filled(samples[kind](), 1)
			got := project(want.DeepCopyObject())
			accessor := want.(metav1.Object)
			accessor.SetManagedFields(nil)
			accessor.SetResourceVersion("")
			if !equality.Semantic.DeepEqual(want, got) {
				t.Errorf("project() = %+v, want %+v", got, want)
			}
		})
	}
}

// Invariant I11: no Secret or ConfigMap data on the bus, in whatever shape it is
// handed in and wherever in the object people have put it.
func TestNoSecretOrConfigMapDataTravels(t *testing.T) {
	hidden := []byte("hunter2")
	meta := metav1.ObjectMeta{
		Name: "s", Namespace: "n",
		Annotations: map[string]string{
			corev1.LastAppliedConfigAnnotation: `{"data":{"password":"hunter2"}}`,
			"example.com/backup":               "hunter2",
		},
		ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(`{"f:data":{"f:hunter2":{}}}`)}},
	}
	tests := map[string]runtime.Object{
		"a typed secret":                &corev1.Secret{ObjectMeta: meta, Data: map[string][]byte{"p": hidden}, StringData: map[string]string{"p": "hunter2"}},
		"a typed configmap":             &corev1.ConfigMap{ObjectMeta: meta, Data: map[string]string{"p": "hunter2"}, BinaryData: map[string][]byte{"p": hidden}},
		"metadata with what applied it": &metav1.PartialObjectMetadata{ObjectMeta: meta},
	}
	for name, o := range tests {
		t.Run(name, func(t *testing.T) {
			body, err := kube.Encode(project(o))
			if err != nil {
				t.Fatal(err)
			}
			if bytes.Contains(body, hidden) {
				t.Errorf("%q stands in the body", hidden)
			}
		})
	}
	for _, kind := range []event.Kind{"secrets", "configmaps"} {
		if withBody[kind] {
			t.Errorf("%s would travel with a body", kind)
		}
	}
}

// Neither env nor volumes nor commands of a pod may come in by the back door.
func TestNothingThatAPodIsToldTravels(t *testing.T) {
	p := filled(&corev1.Pod{}, 1).(*corev1.Pod)
	told := "hunter2"
	for _, c := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range c {
			c[i].Env = []corev1.EnvVar{{Name: told, Value: told}}
			c[i].Command, c[i].Args = []string{told}, []string{told}
		}
	}
	p.Spec.Volumes[0].Name = told
	p.Annotations[corev1.LastAppliedConfigAnnotation] = told
	body, err := kube.Encode(project(p))
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(body, []byte(told)) {
		t.Errorf("%q stands in the body", told)
	}
}

func TestHeartbeatsAndVersionsDoNotChangeTheBody(t *testing.T) {
	tests := map[string]struct {
		object runtime.Object
		change func(runtime.Object)
	}{
		"a node's heartbeat": {filled(&corev1.Node{}, 1), func(o runtime.Object) {
			o.(*corev1.Node).Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(time.Unix(5, 0))
		}},
		"a container's restart": {filled(&corev1.Pod{}, 1), func(o runtime.Object) {
			o.(*corev1.Pod).Status.ContainerStatuses[0].RestartCount++
		}},
		"a resourceVersion": {filled(&corev1.Service{}, 1), func(o runtime.Object) {
			o.(*corev1.Service).ResourceVersion = "77"
		}},
		"a field manager": {filled(&corev1.Endpoints{}, 1), func(o runtime.Object) {
			o.(*corev1.Endpoints).ManagedFields[0].Manager = "other"
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			before := encoded(t, tt.object)
			tt.change(tt.object)
			if after := encoded(t, tt.object); !bytes.Equal(before, after) {
				t.Error("the body differs")
			}
		})
	}
}

func encoded(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	body, err := kube.Encode(project(o))
	if err != nil {
		t.Fatal(err)
	}
	return body
}

func TestProjectAffinity(t *testing.T) {
	everywhere := &metav1.LabelSelector{}
	term := func(ns []string, s *metav1.LabelSelector) corev1.PodAffinityTerm {
		return corev1.PodAffinityTerm{Namespaces: ns, NamespaceSelector: s, TopologyKey: "zone", LabelSelector: everywhere}
	}
	tests := map[string]struct {
		in   *corev1.Affinity
		kept bool
	}{
		"none":               {nil, false},
		"of nodes only":      {&corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{}}, false},
		"within a namespace": {&corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(nil, nil)}}}, false},
		"required with an empty selector of namespaces": {&corev1.Affinity{PodAffinity: &corev1.PodAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term(nil, everywhere)}}}, true},
		"preferred, named":   {&corev1.Affinity{PodAffinity: &corev1.PodAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: term([]string{"n"}, nil)}}}}, true},
		"against, required":  {&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{term([]string{"n"}, nil)}}}, true},
		"against, preferred": {&corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.WeightedPodAffinityTerm{{PodAffinityTerm: term(nil, everywhere)}}}}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := projectAffinity(tt.in); (got != nil) != tt.kept {
				t.Errorf("projectAffinity() = %+v, want kept %t", got, tt.kept)
			}
		})
	}
}

func TestCommitted(t *testing.T) {
	at := func(s int64) metav1.Time { return metav1.NewTime(time.Unix(s, 0)) }
	written := at(300)
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{CreationTimestamp: at(100)}}
	tests := map[string]struct {
		change func(*corev1.Pod)
		want   int64
	}{
		"a new object tells its creation":            {func(*corev1.Pod) {}, 100},
		"a condition tells its transition":           {func(p *corev1.Pod) { p.Status.Conditions = []corev1.PodCondition{{LastTransitionTime: at(200)}} }, 200},
		"who wrote it tells when":                    {func(p *corev1.Pod) { p.ManagedFields = []metav1.ManagedFieldsEntry{{Time: &written}} }, 300},
		"a deletion time in the future says nothing": {func(p *corev1.Pod) { p.DeletionTimestamp = &written }, 100},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := pod.DeepCopy()
			tt.change(p)
			if got := committed(p).Unix(); got != tt.want {
				t.Errorf("committed() = %d, want %d", got, tt.want)
			}
		})
	}
}

func FuzzProjectIsAFixedPointAndChangesNothing(f *testing.F) {
	kinds := slices.Sorted(maps.Keys(samples))
	for i := range kinds {
		f.Add(int64(i), uint8(i)) //nolint:gosec // few kinds
	}
	f.Fuzz(func(t *testing.T, seed int64, which uint8) {
		sample := samples[kinds[int(which)%len(kinds)]]
		in := filled(sample(), seed)
		// Some fields empty, or every branch on nil would be left out.
		randfill.NewWithSeed(seed).NilChance(0.3).NumElements(0, 2).MaxDepth(3).Funcs(
			func(q *resource.Quantity, c randfill.Continue) {
				*q = *resource.NewQuantity(c.Int63n(9), resource.DecimalSI)
			},
			func(v *metav1.FieldsV1, _ randfill.Continue) { v.SetRawBytes([]byte("{}")) },
			func(m *metav1.ObjectMeta, c randfill.Continue) {},
			func(m *metav1.TypeMeta, c randfill.Continue) {},
			func(tm *metav1.Time, c randfill.Continue) { *tm = metav1.NewTime(time.Unix(c.Int63n(1e9), 0)) },
			func(s *string, c randfill.Continue) { *s = fmt.Sprint(c.Intn(9)) },
		).Fill(in)
		before := in.DeepCopyObject()
		once := project(in)
		if !reflect.DeepEqual(before, in) {
			t.Fatal("project changed its argument")
		}
		if !bytes.Equal(mustEncode(t, once), mustEncode(t, project(once))) {
			t.Fatal("projecting a projection changed it")
		}
	})
}

func mustEncode(t testing.TB, o runtime.Object) []byte {
	t.Helper()
	body, err := kube.Encode(o)
	if err != nil {
		t.Fatal(err)
	}
	return body
}

// BenchmarkProject is what one event of a pod costs before the publisher sees
// it.
func BenchmarkProject(b *testing.B) {
	pod := benchPod()
	b.ReportAllocs()
	var size int
	for b.Loop() {
		body, err := kube.Encode(project(pod))
		if err != nil {
			b.Fatal(err)
		}
		if event.HashBody(body) == 0 {
			b.Fatal("hash is zero")
		}
		size = len(body)
	}
	whole, _ := pod.Marshal()
	b.ReportMetric(float64(size), "B/body")
	b.ReportMetric(float64(len(whole)), "B/whole")
}

// benchPod is like one of a Deployment with two containers.
func benchPod() *corev1.Pod {
	p := filled(&corev1.Pod{}, 1).(*corev1.Pod)
	p.Spec.Containers = append(p.Spec.Containers, p.Spec.Containers[0])
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, p.Status.ContainerStatuses[0])
	for len(p.Status.Conditions) < 5 {
		p.Status.Conditions = append(p.Status.Conditions, p.Status.Conditions[0])
	}
	return p
}
