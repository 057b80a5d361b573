package kube

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/millrace-io/millrace/shared/event"
)

func TestConfigValidate(t *testing.T) {
	tests := map[string]struct {
		cfg Config
		ok  bool
	}{
		"the zero value means the defaults": {Config{}, true},
		"no limit needs no burst":           {Config{QPS: -1, Burst: -1}, true},
		"a limit needs a burst":             {Config{QPS: 5, Burst: -1}, false},
		"a timeout of a request too short":  {Config{RequestTimeout: time.Millisecond}, false},
		"half seconds cannot be passed on":  {Config{ReadIdle: 1500 * time.Millisecond}, false},
		"a negative ping timeout":           {Config{PingTimeout: -time.Second}, false},
		"a kubeconfig that is not there":    {Config{Kubeconfig: "/does/not/exist"}, false},
		"one of two kubeconfigs is there":   {Config{Kubeconfig: "/does/not/exist:pure_test.go"}, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if err := tt.cfg.Validate(); (err == nil) != tt.ok {
				t.Errorf("Validate() = %v", err)
			}
		})
	}
}

func TestConnectWithoutAKubeconfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := Connect(Config{}, "x", nil, nil); err == nil {
		t.Error("connected to nothing")
	}
	if _, err := Connect(Config{Kubeconfig: "/does/not/exist"}, "x", nil, nil); err == nil || !strings.Contains(err.Error(), "/does/not/exist") {
		t.Errorf("got %v; it must name the file", err)
	}
}

func TestAnOperatorsHTTP2TimeoutsStay(t *testing.T) {
	t.Setenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS", "7")
	t.Setenv("HTTP2_PING_TIMEOUT_SECONDS", "")
	if err := setHTTP2Health(Config{}.withDefaults()); err != nil {
		t.Fatal(err)
	}
	if idle, ping := os.Getenv("HTTP2_READ_IDLE_TIMEOUT_SECONDS"), os.Getenv("HTTP2_PING_TIMEOUT_SECONDS"); idle != "7" || ping != "3" {
		t.Errorf("read idle %s, ping %s; want 7 and 3", idle, ping)
	}
}

func TestMayPut(t *testing.T) {
	tests := map[string]bool{
		"/api/v1/namespaces/a/endpoints/b":                                 true,
		"/apis/discovery.k8s.io/v1/namespaces/a/endpointslices/b":          true,
		"/k8s/clusters/c/api/v1/namespaces/a/endpoints/b":                  true, // behind a proxy with a base path
		"/api/v1/namespaces/endpoints":                                     false,
		"/api/v1/namespaces/endpoints/pods/endpoints":                      false,
		"/api/v1/namespaces/a/endpoints/b/status":                          false,
		"/api/v1/namespaces/a/endpoints/":                                  false,
		"/api/v1/namespaces/a/pods/b":                                      false,
		"/api/v1/namespaces/a/pods/b/status":                               false,
		"/api/v1/namespaces/a/finalize":                                    false,
		"/api/v1/nodes/endpoints":                                          false,
		"/apis/coordination.k8s.io/v1/namespaces/a/leases/b":               false,
		"/apis/example.com/v1/namespaces/a/endpoints/b":                    false,
		"/apis/discovery.k8s.io/v1/namespaces/a/endpoints/b":               false,
		"/api/v1/namespaces/a/resourcequotas/api/v1/namespaces/endpoints/": false,
		"": false,
	}
	for path, want := range tests {
		if got := mayPut(path); got != want {
			t.Errorf("mayPut(%q) = %t", path, got)
		}
	}
}

func TestClusterTime(t *testing.T) {
	base := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	at := base.Add
	tests := map[string]struct {
		s     sight
		now   time.Time
		want  time.Time
		skew  time.Duration
		known bool
	}{
		"nothing seen": {sight{}, at(0), time.Time{}, 0, false},
		"clocks that agree give our own": {
			sight{date: at(0), sent: at(100 * time.Millisecond), received: at(110 * time.Millisecond)},
			at(time.Minute), at(time.Minute), 0, true,
		},
		"the cut to whole seconds is no skew": {
			sight{date: at(0), sent: at(990 * time.Millisecond), received: at(999 * time.Millisecond)},
			at(time.Minute), at(time.Minute), 0, true,
		},
		"within a second it is still our own": {
			sight{date: at(2 * time.Second), sent: at(time.Second), received: at(time.Second)},
			at(time.Minute), at(time.Minute), time.Second, true,
		},
		"a server ahead is followed": {
			sight{date: at(10 * time.Second), sent: at(0), received: at(0)},
			at(time.Minute), at(70*time.Second + 500*time.Millisecond), 10 * time.Second, true,
		},
		"a server behind is followed": {
			sight{date: at(-10 * time.Second), sent: at(0), received: at(0)},
			at(time.Minute), at(50*time.Second + 500*time.Millisecond), -9 * time.Second, true,
		},
		"a slow answer explains a difference": {
			sight{date: at(0), sent: at(0), received: at(8 * time.Second)},
			at(8 * time.Second), at(8 * time.Second), 0, true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, skew, known := clusterTime(tt.s, tt.now)
			if !got.Equal(tt.want) || skew != tt.skew || known != tt.known {
				t.Errorf("%s, skew %s, %t; want %s, %s, %t", got, skew, known, tt.want, tt.skew, tt.known)
			}
		})
	}
}

func TestServerClockKeepsTheNewest(t *testing.T) {
	var c serverClock
	now := time.Now()
	header := func(d time.Duration) string { return now.Add(d).UTC().Format(http.TimeFormat) }
	c.observe(header(0), now, now.Add(time.Second))
	c.observe(header(time.Hour), now.Add(-time.Minute), now.Add(-time.Second)) // answered earlier, seen late
	c.observe("nonsense", now, now.Add(time.Hour))
	c.observe("", now, now.Add(time.Hour))
	if got := c.get(); !got.received.Equal(now.Add(time.Second)) {
		t.Errorf("kept %+v", got)
	}
}

func TestPreconditions(t *testing.T) {
	ref := Ref{Kind: Pods, Key: event.Key{Namespace: "a", Name: "b"}, UID: "u", Version: 7}
	const pre = `{"metadata":{"resourceVersion":"7","uid":"u"}`
	tests := map[string]struct {
		ref   Ref
		patch any
		want  string
		err   error
	}{
		"they are put in":                   {ref, []byte(`{"spec":{"x":1}}`), pre + `,"spec":{"x":1}}`, nil},
		"beside other metadata":             {ref, []byte(`{"metadata":{"labels":{"a":"b"}}}`), `{"metadata":{"labels":{"a":"b"},"resourceVersion":"7","uid":"u"}}`, nil},
		"the same ones may be there":        {ref, []byte(`{"metadata":{"uid":"u","resourceVersion":"7"},"spec":{}}`), pre + `,"spec":{}}`, nil},
		"a struct is encoded":               {ref, struct{ Spec any }{1}, `{"Spec":1,` + pre[1:] + `}`, nil},
		"raw JSON stays":                    {ref, json.RawMessage(` {"n":12345678901234567890}`), pre + `,"n":12345678901234567890}`, nil},
		"directives stay":                   {ref, []byte(`{"$setElementOrder/x":["a"]}`), `{"$setElementOrder/x":["a"],` + pre[1:] + `}`, nil},
		"nothing to change is nothing":      {ref, []byte(`{}`), "", nil},
		"preconditions alone are nothing":   {ref, []byte(`{"metadata":{"uid":"u"}}`), "", nil},
		"another UID is refused":            {ref, []byte(`{"metadata":{"uid":"v"}}`), "", ErrMalformed},
		"a number for a version is refused": {ref, []byte(`{"metadata":{"resourceVersion":7}}`), "", ErrMalformed},
		"no JSON":                           {ref, []byte(`{`), "", ErrMalformed},
		"a list (JSON patch)":               {ref, []byte(`[]`), "", ErrMalformed},
		"null":                              {ref, []byte(`null`), "", ErrMalformed},
		"what JSON cannot say":              {ref, func() {}, "", ErrMalformed},
		"metadata that is no object":        {ref, []byte(`{"metadata":1}`), "", ErrMalformed},
		"no UID":                            {Ref{Kind: Pods, Key: ref.Key, Version: 7}, []byte(`{"a":1}`), "", ErrMalformed},
		"no version":                        {Ref{Kind: Pods, Key: ref.Key, UID: "u"}, []byte(`{"a":1}`), "", ErrMalformed},
		"no name":                           {Ref{Kind: Pods, UID: "u", Version: 7}, []byte(`{"a":1}`), "", ErrMalformed},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := withPreconditions(tt.ref, tt.patch)
			if !errors.Is(err, tt.err) {
				t.Fatalf("error %v, want %v", err, tt.err)
			}
			if tt.want == "" {
				if got != nil {
					t.Errorf("got %s, want nothing", got)
				}
				return
			}
			var g, w any
			if json.Unmarshal(got, &g) != nil || json.Unmarshal([]byte(tt.want), &w) != nil {
				t.Fatalf("no JSON: %s", got)
			}
			if diff := cmp.Diff(w, g); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func FuzzPreconditions(f *testing.F) {
	f.Add([]byte(`{"metadata":{"labels":null}}`), "u", uint64(1))
	f.Add([]byte(`{"metadata":{"uid":"x"}}`), "u", uint64(1))
	f.Fuzz(func(t *testing.T, patch []byte, uid string, v uint64) {
		ref := Ref{Kind: Pods, Key: event.Key{Namespace: "a", Name: "b"}, UID: uid, Version: v}
		body, err := withPreconditions(ref, patch)
		if err != nil || body == nil {
			return
		}
		var got struct {
			Metadata struct{ UID, ResourceVersion *string }
		}
		if err := json.Unmarshal(body, &got); err != nil {
			t.Fatalf("%q became %q: %v", patch, body, err)
		}
		// Invalid UTF-8 cannot travel in JSON: compared is what would arrive.
		sent, _ := json.Marshal(uid)
		var want string
		if err := json.Unmarshal(sent, &want); err != nil {
			t.Fatal(err)
		}
		if *got.Metadata.UID != want || *got.Metadata.ResourceVersion != ref.version() {
			t.Fatalf("%q became %q", patch, body)
		}
	})
}

// ⚠ Equal objects have equal bytes, or every replay would look like a change.
func TestEncodeIsDeterministic(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{}, Annotations: map[string]string{}}}
	pod.Spec.NodeSelector = map[string]string{}
	for i := range 50 {
		k := fmt.Sprint("k", i)
		pod.Labels[k], pod.Annotations[k], pod.Spec.NodeSelector[k] = k, k, k
	}
	first, err := Encode(pod)
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		if again, _ := Encode(pod.DeepCopy()); !bytes.Equal(first, again) {
			t.Fatal("the same object has two encodings")
		}
	}
}

func TestEncodeRoundTrips(t *testing.T) {
	slice := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "s", Namespace: "n", UID: "u", CreationTimestamp: metav1.Unix(1000, 0)},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}}},
	}
	body, err := Encode(&slice)
	if err != nil {
		t.Fatal(err)
	}
	into := discoveryv1.EndpointSlice{Ports: make([]discoveryv1.EndpointPort, 3)} // must not show through
	if err := Decode(body, &into); err != nil {
		t.Fatal(err)
	}
	if !apiequality.Semantic.DeepEqual(slice, into) {
		t.Error(cmp.Diff(slice, into))
	}
	meta := metav1.PartialObjectMetadata{ObjectMeta: slice.ObjectMeta}
	if body, err = Encode(&meta); err != nil {
		t.Fatal(err)
	}
	var back metav1.PartialObjectMetadata
	if err := Decode(body, &back); err != nil || !apiequality.Semantic.DeepEqual(meta, back) {
		t.Errorf("%v %s", err, cmp.Diff(meta, back))
	}
	if err := Decode(body, new(string)); err == nil {
		t.Error("a string was decoded")
	}
	if err := Decode([]byte("\xff\xff"), &back); err == nil {
		t.Error("nonsense was decoded")
	}
	if _, err := Encode(&metav1.Table{}); err == nil {
		t.Error("a table was encoded")
	}
}

// Every kind of the table can be encoded, and its list has its items.
func TestTypedKindsAreComplete(t *testing.T) {
	for kind, k := range typedKinds {
		if _, err := Encode(k.object()); err != nil {
			t.Errorf("%s: %v", kind, err)
		}
		if kind.Resource() != k.gvr.Resource || kind.Group() != k.gvr.Group {
			t.Errorf("%s is served as %s", kind, k.gvr)
		}
		if want := strings.TrimSuffix(fmt.Sprintf("%T", k.list()), "List"); want != fmt.Sprintf("%T", k.object()) {
			t.Errorf("%s lists %T", kind, k.list())
		}
	}
}

func TestSliceName(t *testing.T) {
	if got := SliceName("web", "u1", discoveryv1.AddressTypeIPv4, 0); got != SliceName("web", "u1", discoveryv1.AddressTypeIPv4, 0) || !strings.HasPrefix(got, "web-") || !strings.HasSuffix(got, "-0") {
		t.Errorf("got %s", got)
	}
	seen := map[string]bool{}
	long := strings.Repeat("a", 61) + "-b"
	for _, service := range []string{"web", long, "a.b"} {
		for _, uid := range []string{"u1", "u2"} {
			for _, at := range []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN} {
				for n := range 3 {
					seen[SliceName(service, uid, at, n)] = true
				}
			}
		}
	}
	if len(seen) != 54 {
		t.Errorf("%d different names of 54", len(seen))
	}
}

func FuzzSliceName(f *testing.F) {
	f.Add(strings.Repeat("a", 61)+"-b", "u", "IPv4", 12345)
	f.Fuzz(func(t *testing.T, service, uid, at string, n int) {
		if n < 0 || len(validation.IsDNS1123Subdomain(service)) > 0 {
			return
		}
		name := SliceName(service, uid, discoveryv1.AddressType(at), n)
		if len(name) > maxSliceName || len(validation.IsDNS1123Subdomain(name)) > 0 || len(validation.IsValidLabelValue(name)) > 0 {
			t.Fatalf("SliceName(%q, %q, %q, %d) = %q", service, uid, at, n, name)
		}
	})
}

func BenchmarkEncodePod(b *testing.B) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "n", Labels: map[string]string{"a": "b", "c": "d"}}}
	pod.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	b.ReportAllocs()
	for b.Loop() {
		_, _ = Encode(pod)
	}
}
