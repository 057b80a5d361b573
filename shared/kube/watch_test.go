package kube

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// recorder is Events that keeps a cache, as a reader would.
type recorder struct {
	mu       sync.Mutex
	objects  map[event.Key]Object
	replaced int
	progress int
	version  uint64 // everything up to it has been delivered
	wrong    []string
	types    map[string]bool
	delay    time.Duration
}

func (r *recorder) Replaced(v uint64, items []Object) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.objects = map[event.Key]Object{}
	for _, o := range items {
		r.objects[o.Key] = o
		r.see(o)
		if o.Version > v {
			r.wrong = append(r.wrong, fmt.Sprintf("a list at %d has %s at %d", v, o.Key, o.Version))
		}
	}
	if v < r.version {
		r.wrong = append(r.wrong, fmt.Sprintf("a list at %d after %d", v, r.version))
	}
	r.version = v
	r.replaced++
}

func (r *recorder) Changed(o Object, deleted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	time.Sleep(r.delay)
	if o.Version <= r.version {
		r.wrong = append(r.wrong, fmt.Sprintf("%s at %d after %d", o.Key, o.Version, r.version))
	}
	r.version = o.Version
	r.see(o)
	if deleted {
		delete(r.objects, o.Key)
		return
	}
	r.objects[o.Key] = o
}

func (r *recorder) Progress(v uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if v < r.version {
		r.wrong = append(r.wrong, fmt.Sprintf("a bookmark at %d after %d", v, r.version))
	}
	r.version = v
	r.progress++
}

func (r *recorder) see(o Object) {
	if r.types == nil {
		r.types = map[string]bool{}
	}
	r.types[fmt.Sprintf("%T", o.Raw)] = true
	if o.UID == "" || o.Version == 0 || o.Observed.IsZero() {
		r.wrong = append(r.wrong, fmt.Sprintf("incomplete: %+v", o))
	}
}

func (r *recorder) get(key event.Key) (Object, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	o, ok := r.objects[key]
	return o, ok
}

func (r *recorder) counts() (replaced, progress int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.replaced, r.progress
}

// watching runs a watch until the test ends, and fails it for what must not be.
func watching(t *testing.T, api *API, kind event.Kind, metadataOnly bool) (*Watch, *recorder) {
	t.Helper()
	r := &recorder{}
	w := api.NewWatch(kind, metadataOnly, r)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx) }()
	t.Cleanup(func() {
		began := time.Now()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("Run ended with %v", err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Run took %s to end", took)
		}
		if ok, _ := w.Alive(time.Now()); ok {
			t.Error("alive after its end")
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		for _, wrong := range r.wrong {
			t.Error(wrong)
		}
	})
	return w, r
}

func alive(w *Watch) func() bool {
	return func() bool { ok, _ := w.Alive(time.Now()); return ok }
}

func notAlive(w *Watch) func() bool { return func() bool { return !alive(w)() } }

func TestWatchDeliversListThenChanges(t *testing.T) {
	t.Parallel()
	api, wire := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	makePod(t.Context(), t, api, ns, "before")
	wire.take()

	w, r := watching(t, api, Pods, false)
	eventually(t, 10*time.Second, "alive", alive(w))
	before := event.Key{Namespace: ns, Name: "before"}
	if _, ok := r.get(before); !ok {
		t.Error("the list lacks what was there before")
	}
	// One request: a watch-list, and the newest state, not any state.
	if got := wire.take(); len(got) != 1 || !strings.Contains(got[0], "sendInitialEvents=true") || strings.Contains(got[0], "resourceVersion=") {
		t.Errorf("the start took %q", got)
	}

	after := event.Key{Namespace: ns, Name: "after"}
	pod := makePod(t.Context(), t, api, ns, "after")
	eventually(t, 5*time.Second, "the new pod", func() bool { _, ok := r.get(after); return ok })
	grace := int64(0)
	if err := api.Writer(WriteOptions{}).Delete(t.Context(), podRef(pod), &grace); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "its end", func() bool { _, ok := r.get(after); return !ok })
	if !r.types["*v1.Pod"] || len(r.types) != 1 {
		t.Errorf("delivered %v", r.types)
	}
	if proof := w.Proof(); time.Since(proof) > time.Minute || proof.IsZero() {
		t.Errorf("the last proof of life is of %s", proof)
	}
}

func TestWatchMetadataOnly(t *testing.T) {
	t.Parallel()
	api, _ := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	makePod(t.Context(), t, api, ns, "a")
	w, r := watching(t, api, Pods, true)
	eventually(t, 10*time.Second, "alive", alive(w))
	if _, ok := r.get(event.Key{Namespace: ns, Name: "a"}); !ok || !r.types["*v1.PartialObjectMetadata"] || len(r.types) != 1 {
		t.Errorf("delivered %v", r.types)
	}
	// A kind that we have no type of comes so by itself.
	w, r = watching(t, api, "roles.rbac.authorization.k8s.io", false)
	eventually(t, 10*time.Second, "roles alive", alive(w))
	if !r.types["*v1.PartialObjectMetadata"] {
		t.Errorf("delivered %v", r.types)
	}
}

// ⚠ What was deleted while nobody watched is missing from the next list, and the
// list is the newest state, at a relist as at the start.
func TestRelistIsTheNewestState(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	proxy := kubetest.StartProxy(t, cluster)
	direct, _ := dial(t)
	api, wire := dialTo(t, proxy.Config(kubetest.RoleAdmin), Config{QPS: -1})
	ns := cluster.Namespace(t)
	pod := makePod(t.Context(), t, direct, ns, "a")
	key := event.Key{Namespace: ns, Name: "a"}

	w, r := watching(t, api, Pods, false)
	eventually(t, 10*time.Second, "alive", alive(w))
	if _, ok := r.get(key); !ok {
		t.Fatal("the pod is not in the list")
	}
	proxy.Hold("pods") // the watch looks open and says nothing
	grace := int64(0)
	if err := direct.Writer(WriteOptions{}).Delete(t.Context(), podRef(pod), &grace); err != nil {
		t.Fatal(err)
	}
	lists, _ := r.counts()
	wire.take()
	proxy.Release("pods")
	w.Relist()
	eventually(t, 10*time.Second, "a second list", func() bool { n, _ := r.counts(); return n > lists })
	if _, ok := r.get(key); ok {
		t.Error("the list has what was deleted before it was asked for")
	}
	for _, request := range wire.take() {
		if strings.Contains(request, "sendInitialEvents=true") && strings.Contains(request, "resourceVersion=") {
			t.Errorf("the relist was content with an old state: %s", request)
		}
	}
}

// ⚠ Where the server has no watch-list the reflector would take resourceVersion
// "0", which may be any age.
func TestListIsTheNewestStateWithoutWatchList(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	w := &wire{}
	conf := cluster.Admin()
	conf.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTrip(func(r *http.Request) (*http.Response, error) {
			if strings.Contains(r.URL.RawQuery, "sendInitialEvents") { // as a server before 1.27 would
				return &http.Response{StatusCode: http.StatusUnprocessableEntity, Request: r, Header: http.Header{"Content-Type": {"text/plain"}}, Body: io.NopCloser(strings.NewReader("no"))}, nil
			}
			return next.RoundTrip(r)
		})
	})
	conf.Wrap(w.wrap)
	api, err := ConnectTo(conf, Config{QPS: -1}, "x", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	watch, _ := watching(t, api, Namespaces, false)
	eventually(t, 10*time.Second, "alive", alive(watch))
	if n := w.count("GET /api/v1/namespaces?limit=500"); n != 1 {
		t.Errorf("%d consistent lists in %q", n, w.take())
	}
	if n := w.count("resourceVersion=0"); n != 0 {
		t.Errorf("%d lists of any age", n)
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestWatchResumesWithoutAList(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	proxy := kubetest.StartProxy(t, cluster)
	api, _ := dialTo(t, proxy.Config(kubetest.RoleAdmin), Config{QPS: -1})
	ns := cluster.Namespace(t)
	w, r := watching(t, api, Pods, false)
	eventually(t, 10*time.Second, "alive", alive(w))
	lists, _ := r.counts()
	time.Sleep(1100 * time.Millisecond) // a watch shorter than a second and silent counts as refused
	proxy.End("pods")                   // as the server does every 5 to 10 minutes
	makePod(t.Context(), t, api, ns, "a")
	eventually(t, 10*time.Second, "the pod", func() bool { _, ok := r.get(event.Key{Namespace: ns, Name: "a"}); return ok })
	if n, _ := r.counts(); n != lists {
		t.Errorf("%d lists for a watch that ended in order", n-lists)
	}
}

func TestWatchOutlivesTheConnection(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	proxy := kubetest.StartProxy(t, cluster)
	direct, _ := dial(t)
	api, _ := dialTo(t, proxy.Config(kubetest.RoleAdmin), Config{QPS: -1})
	ns := cluster.Namespace(t)
	w, r := watching(t, api, Pods, false)
	eventually(t, 10*time.Second, "alive", alive(w))

	proxy.Down()
	eventually(t, 10*time.Second, "not alive", notAlive(w))
	makePod(t.Context(), t, direct, ns, "meanwhile")
	eventually(t, 10*time.Second, "a problem", func() bool { return w.Problem() != "" })
	proxy.Up()
	took := eventually(t, 15*time.Second, "alive again", alive(w))
	t.Logf("alive %s after the connection came back", took)
	eventually(t, 5*time.Second, "what happened meanwhile", func() bool { _, ok := r.get(event.Key{Namespace: ns, Name: "meanwhile"}); return ok })
	if p := w.Problem(); p != "" {
		t.Errorf("the problem stays: %s", p)
	}
}

// A server that hangs keeps its connections; only the unanswered ping tells.
func TestAFrozenServerIsNoticed(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Start(t)
	api, _ := dialTo(t, cluster.Admin(), Config{QPS: -1})
	w, _ := watching(t, api, Nodes, false)
	eventually(t, 20*time.Second, "alive", alive(w))
	if err := cluster.Freeze(); err != nil {
		t.Fatal(err)
	}
	frozen := time.Now()
	took := eventually(t, 20*time.Second, "not alive", notAlive(w))
	t.Logf("noticed after %s", took)
	if took > 8*time.Second {
		t.Errorf("it took %s; a ping goes after 1 s of silence and may take 3", took)
	}
	if w.Proof().After(frozen.Add(time.Second)) {
		t.Errorf("proof of life at %s of a server frozen at %s", w.Proof(), frozen)
	}
	if err := cluster.Thaw(); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "alive again", alive(w))
}

// ⚠ The API's bookmarks come in order and often enough: a kind in which nothing
// happens stays alive without a relist.
func TestASilentKindStaysAlive(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 80 s")
	}
	t.Parallel()
	api, _ := dial(t)
	w, r := watching(t, api, DeviceClasses, false)
	eventually(t, 10*time.Second, "alive", alive(w))
	lists, _ := r.counts()
	began := time.Now()
	for time.Since(began) < 80*time.Second {
		time.Sleep(100 * time.Millisecond)
		if ok, why := w.Alive(time.Now()); !ok {
			t.Fatalf("not alive after %s: %s", time.Since(began), why)
		}
		if gap := time.Since(w.Proof()); gap > 9*time.Second {
			t.Fatalf("no proof of life for %s, though pings are answered", gap)
		}
	}
	n, progress := r.counts()
	t.Logf("%d bookmarks in 80 s", progress)
	if progress == 0 || n != lists {
		t.Errorf("%d bookmarks and %d relists in 80 s", progress, n-lists)
	}
}

// I10: a kind that cannot be listed says so, is retried, and is not absent.
func TestAnUnlistableKind(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	gvr, repair, err := cluster.BrokenKind(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	api, _ := dial(t)
	w, r := watching(t, api, event.Kind(gvr.GroupResource().String()), true)
	ok, _ := watching(t, api, Services, false)
	t.Cleanup(func() { t.Logf("the problem was: %s", w.Problem()) })
	eventually(t, 20*time.Second, "a problem", func() bool { return strings.Contains(w.Problem(), "webhook") })
	eventually(t, 10*time.Second, "another kind alive", alive(ok))
	if lists, _ := r.counts(); w.Absent() || alive(w)() || lists > 0 {
		t.Errorf("absent %t, alive %t, %d lists of a kind that cannot be listed", w.Absent(), alive(w)(), lists)
	}
	if err := repair(t.Context()); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, 15*time.Second, "alive once repaired", alive(w))
	t.Logf("alive %s after the repair", took)
}

func TestAForbiddenKind(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	api, wire := dialTo(t, cluster.Config(kubetest.RoleQuota), Config{QPS: -1})
	w, _ := watching(t, api, "roles.rbac.authorization.k8s.io", true)
	eventually(t, 10*time.Second, "a problem", func() bool { return strings.Contains(w.Problem(), "forbidden") })
	if ok, why := w.Alive(time.Now()); ok || w.Absent() || !strings.Contains(why, "forbidden") {
		t.Errorf("alive %t (%s), absent %t", ok, why, w.Absent())
	}
	// Retried, but not in a hot loop.
	wire.take()
	time.Sleep(5 * time.Second)
	if n := wire.count("GET"); n < 1 || n > 20 {
		t.Errorf("%d requests in 5 s", n)
	}
}

func TestAnAbsentKind(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	api, _ := dial(t)
	w, r := watching(t, api, "gears.absent.example.com", true)
	eventually(t, 10*time.Second, "absent", w.Absent)
	if ok, why := w.Alive(time.Now()); ok || why == "" {
		t.Errorf("alive %t, %q", ok, why)
	}
	if _, err := api.GetOne(t.Context(), "gears.absent.example.com", event.Key{Name: "x"}); err == nil {
		t.Error("an object of it was read")
	}

	// It is found once it is served, without a restart.
	client := must[dynamic.Interface](t)(dynamicFor(cluster))
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "gears.absent.example.com"},
		"spec": map[string]any{
			"group": "absent.example.com", "scope": "Cluster",
			"names": map[string]any{"plural": "gears", "singular": "gear", "kind": "Gear", "listKind": "GearList"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}},
		},
	}}
	crds := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	if _, err := client.Resource(crds).Create(t.Context(), crd, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	took := eventually(t, 45*time.Second, "alive", alive(w))
	t.Logf("found %s after it was created", took)
	gear := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "absent.example.com/v1", "kind": "Gear", "metadata": map[string]any{"name": "g"}}}
	if _, err := client.Resource(crds.GroupResource().WithVersion("v1")).Get(t.Context(), "gears.absent.example.com", metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	made := must[*unstructured.Unstructured](t)(client.Resource(schema.GroupVersionResource{Group: "absent.example.com", Version: "v1", Resource: "gears"}).Create(t.Context(), gear, metav1.CreateOptions{}))
	eventually(t, 5*time.Second, "the gear", func() bool { _, ok := r.get(event.Key{Name: "g"}); return ok })

	// Writes to a kind without a type work as well, with preconditions.
	o := must[Object](t)(api.GetOne(t.Context(), "gears.absent.example.com", event.Key{Name: "g"}))
	if o.UID != string(made.GetUID()) {
		t.Errorf("read %+v", o)
	}
	writer := api.Writer(WriteOptions{})
	ref, err := writer.Patch(t.Context(), o.Ref("gears.absent.example.com"), []byte(`{"metadata":{"labels":{"a":"b"}}}`))
	if err != nil || ref.Version <= o.Version {
		t.Fatalf("patched to %+v: %v", ref, err)
	}
	if err := writer.Delete(t.Context(), o.Ref("gears.absent.example.com"), nil); !errors.Is(err, ErrConflict) {
		t.Errorf("deleting an old state: %v", err)
	}
	if err := writer.Delete(t.Context(), ref, nil); err != nil {
		t.Error(err)
	}
}

func dynamicFor(c *kubetest.Cluster) (dynamic.Interface, error) {
	return dynamic.NewForConfig(c.Admin())
}

// ⚠ Discovery that fails is no absence: a group whose backend is down is listed
// and does not answer.
func TestBrokenDiscoveryIsNoAbsence(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	client := must[dynamic.Interface](t)(dynamicFor(cluster))
	service := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
		"metadata": map[string]any{"name": "v1.dead.example.com"},
		"spec": map[string]any{
			"group": "dead.example.com", "version": "v1", "groupPriorityMinimum": int64(100), "versionPriority": int64(100),
			"insecureSkipTLSVerify": true,
			"service":               map[string]any{"namespace": "default", "name": "nobody"},
		},
	}}
	gvr := schema.GroupVersionResource{Group: "apiregistration.k8s.io", Version: "v1", Resource: "apiservices"}
	if _, err := client.Resource(gvr).Create(t.Context(), service, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = client.Resource(gvr).Delete(context.Background(), "v1.dead.example.com", metav1.DeleteOptions{})
	})
	api, _ := dial(t)
	eventually(t, 20*time.Second, "the group listed", func() bool {
		groups, err := api.Discovery().ServerGroups()
		return err == nil && len(versionsOf(groups, "dead.example.com")) > 0
	})
	w, _ := watching(t, api, "things.dead.example.com", true)
	eventually(t, 10*time.Second, "a problem", func() bool { return w.Problem() != "" })
	if w.Absent() {
		t.Errorf("absent because of %q", w.Problem())
	}
	// Nor does it touch other kinds that need discovery.
	other, _ := watching(t, api, "roles.rbac.authorization.k8s.io", true)
	eventually(t, 10*time.Second, "another kind alive", alive(other))
}

// No server at all: wait, say so, end at once when told.
func TestWatchWithoutAServer(t *testing.T) {
	t.Parallel()
	conf := kubetest.Shared(t).Admin()
	conf.Host = "https://127.0.0.1:1"
	api, _ := dialTo(t, conf, Config{QPS: -1})
	w, _ := watching(t, api, Pods, false)
	unknown, _ := watching(t, api, "things.example.com", true)
	eventually(t, 10*time.Second, "a problem", func() bool { return w.Problem() != "" && unknown.Problem() != "" })
	time.Sleep(3 * time.Second) // so that the end comes in the middle of a wait
	if w.Absent() || unknown.Absent() {
		t.Error("absent without a server")
	}
	if err := api.Ping(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("Ping() = %v", err)
	}
}

// ⚠ A consumer that takes its time is not silence.
func TestASlowConsumerIsNotRelisted(t *testing.T) {
	w := &Watch{api: &API{}, relist: make(chan struct{}, 1)}
	long := time.Now().Add(-2 * maxSilence)
	w.status = status{synced: true, established: true, heard: long, called: long, calling: true}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	go w.watchdogSince(ctx, cancel, long)
	select {
	case <-ctx.Done():
		t.Fatal("relisted in the middle of a call")
	case <-time.After(2500 * time.Millisecond):
	}
	w.note(func(s *status) { s.calling = false })
	select {
	case <-ctx.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("silence was not noticed")
	}
}

func TestReads(t *testing.T) {
	t.Parallel()
	api, wire := dial(t)
	ns := kubetest.Shared(t).Namespace(t)
	key := event.Key{Namespace: ns, Name: "a"}
	if _, err := api.GetOne(t.Context(), Pods, key); !errors.Is(err, ErrNotFound) {
		t.Errorf("got %v", err)
	}
	pod := makePod(t.Context(), t, api, ns, "a")
	makePod(t.Context(), t, api, ns, "b")
	wire.take()
	o := must[Object](t)(api.GetOne(t.Context(), Pods, key))
	if _, ok := o.Raw.(*corev1.Pod); !ok || types.UID(o.UID) != pod.UID {
		t.Errorf("read %+v", o)
	}
	if got := wire.take(); len(got) != 1 {
		t.Errorf("a read took %q", got)
	}
	m := must[Object](t)(api.GetMetadata(t.Context(), Pods, key))
	if _, ok := m.Raw.(*metav1.PartialObjectMetadata); !ok || m.Version != o.Version {
		t.Errorf("read %+v", m)
	}
	v, list, err := api.List(t.Context(), Pods, ListOptions{Namespace: ns, Labels: "app=web"})
	if err != nil || len(list) != 2 || v < o.Version {
		t.Errorf("%d pods at %d: %v", len(list), v, err)
	}
	_, list, err = api.List(t.Context(), Pods, ListOptions{Namespace: ns, Fields: "metadata.name=b", MetadataOnly: true})
	if err != nil || len(list) != 1 || list[0].Key.Name != "b" {
		t.Errorf("%+v: %v", list, err)
	}
	if err := api.Ping(t.Context()); err != nil {
		t.Error(err)
	}
	if now, skew, known := api.ClusterTime(time.Now()); !known || skew.Abs() > time.Second || time.Since(now).Abs() > time.Second {
		t.Errorf("cluster time %s, skew %s, %t", now, skew, known)
	}
}
