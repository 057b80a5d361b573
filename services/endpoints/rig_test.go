package endpoints

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/protocol"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

func TestMain(m *testing.M) { os.Exit(kubetest.Main(m)) }

// fakePartition is a partition whose inputs are complete, fresh and ours unless
// a test says otherwise.
type fakePartition struct {
	caches []*cache.Cache
	refuse error              // what Guard says
	live   map[event.Key]bool // as the frame's LiveFirst
	asked  int
	wrote  []protocol.Write
	told   []controller.Decision
	// intended is what shadow mode held back.
	intended map[event.Key]reachable
	cause    *controller.Cause
	// late is delivered while the inputs catch up with a live read.
	late func()
}

func (p *fakePartition) View(fn func(r cache.Reader)) { cache.View(fn, p.caches...) }

func (p *fakePartition) Guard(_ context.Context, key event.Key, _ controller.Danger) error {
	p.asked++
	if p.refuse == nil && p.live[key] {
		return controller.ErrLiveFirst
	}
	return p.refuse
}

func (p *fakePartition) ReadLive(key event.Key) { delete(p.live, key) }

func (p *fakePartition) CatchUp(context.Context) error {
	if p.late != nil {
		p.late()
		p.late = nil
	}
	return nil
}

func (p *fakePartition) Wrote(_ event.Key, w protocol.Write) { p.wrote = append(p.wrote, w) }

func (p *fakePartition) Intend(key event.Key, effect any) {
	if p.intended == nil {
		p.intended = map[event.Key]reachable{}
	}
	p.intended[key], _ = effect.(reachable)
}

func (p *fakePartition) Record(_ event.Key, d controller.Decision) { p.told = append(p.told, d) }

func (p *fakePartition) Changed(event.Key) (controller.Cause, bool) {
	if p.cause == nil {
		return controller.Cause{}, false
	}
	return *p.cause, true
}

// rig is the role on one partition of one namespace: slices are real, and what
// the role only reads lives in its caches alone.
type rig struct {
	testing.TB

	ns      string
	admin   kubernetes.Interface
	wire    *roletest.Wire
	role    *endpointSlices
	events  *record.FakeRecorder
	p       *fakePartition
	rec     *reconciler
	own     *cache.Cache
	wide    *cache.Cache
	seq     uint64
	changes []cache.Change
	reg     *prometheus.Registry
}

// newRig makes a role whose slices hold at most maximum endpoints.
func newRig(t testing.TB, maximum int32) *rig {
	t.Helper()
	cluster := kubetest.Shared(t)
	r := &rig{TB: t, ns: cluster.Namespace(t), admin: cluster.Client()}
	r.start(maximum)
	return r
}

// start makes the role and its partition anew, as in another process.
func (r *rig) start(maximum int32) {
	r.Helper()
	conf := rest.CopyConfig(kubetest.Shared(r.TB).Config(kubetest.RoleEndpoints))
	r.wire = &roletest.Wire{}
	conf.Wrap(r.wire.Wrap)
	api, err := kube.ConnectTo(conf, kube.Config{QPS: -1}, manager, nil, nil)
	if err != nil {
		r.Fatal(err)
	}
	r.reg = prometheus.NewRegistry()
	r.events = record.NewFakeRecorder(1000)
	r.role = newEndpointSlices(api.Client(), kube.WriteOptions{Manager: manager}, policy{MaxEndpointsPerSlice: maximum}, r.events, newMetrics(r.reg))
	r.claim()
}

// claim gives the role the partition, with empty caches.
func (r *rig) claim() {
	note := func(c cache.Change) { r.changes = append(r.changes, c) }
	r.own = cache.New(protocol.Scope{By: protocol.ByNamespace, Partitions: 1}, partitionInputs(), nil, note)
	r.wide = cache.New(protocol.Scope{By: protocol.Whole, Partitions: 1}, wideInputs(), nil, note)
	r.own.Begin(1)
	r.wide.Begin(1)
	r.p = &fakePartition{caches: []*cache.Cache{r.own, r.wide}, live: map[event.Key]bool{}}
	r.rec = r.role.forPartition(r.p)
	r.put(node("n1", ""))
	r.changes = nil
}

// object is a pointer to an API object.
type object interface {
	runtime.Object
	metav1.Object
}

// put delivers an object as the watcher publishes it.
func (r *rig) put(objects ...object) {
	r.Helper()
	for _, obj := range objects {
		obj = obj.DeepCopyObject().(object)
		version, _ := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
		r.seq++
		if version == 0 {
			version = r.seq
		}
		obj.SetResourceVersion("")
		obj.SetManagedFields(nil)
		body, err := kube.Encode(obj)
		if err != nil {
			r.Fatal(err)
		}
		m := r.message(obj, event.Put)
		m.Version, m.Body, m.Hash = version, body, event.HashBody(body)
		r.deliver(m)
	}
}

// drop delivers tombstones.
func (r *rig) drop(objects ...object) {
	for _, obj := range objects {
		r.seq++
		m := r.message(obj, event.Delete)
		version, _ := strconv.ParseUint(obj.GetResourceVersion(), 10, 64)
		m.Version = version + 1
		r.deliver(m)
	}
}

// hide delivers objects that could not be carried.
func (r *rig) hide(objects ...object) {
	for _, obj := range objects {
		r.seq++
		m := r.message(obj, event.Opaque)
		m.Version = r.seq
		r.deliver(m)
	}
}

func (r *rig) message(obj object, op event.Op) event.Message {
	return event.Message{
		Kind: kindOf(obj), Key: event.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()},
		Seq: r.seq, Op: op, UID: string(obj.GetUID()), Epoch: 1, Projection: projection,
	}
}

func kindOf(obj any) event.Kind {
	switch obj.(type) {
	case *corev1.Pod:
		return pods
	case *corev1.Service:
		return services
	case *corev1.Node:
		return nodes
	default:
		return sliceKind
	}
}

func (r *rig) deliver(m event.Message) {
	if m.Kind == nodes {
		r.wide.Deliver(m)
		return
	}
	r.own.Deliver(m)
}

// woken returns the services that the deliveries since the last call woke.
func (r *rig) woken() string {
	var names []string
	for _, c := range r.changes {
		for _, key := range keys(r.p, c, r.role.ownOf(r.p)) {
			names = append(names, key.Name)
		}
	}
	r.changes = nil
	slices.Sort(names)
	return strings.Join(slices.Compact(names), " ")
}

// echo shows the caches what the API server holds.
func (r *rig) echo() {
	r.Helper()
	list := r.list()
	found := map[string]bool{}
	for _, s := range list {
		found[s.Name] = true
		r.put(s)
	}
	var gone []*discoveryv1.EndpointSlice
	r.own.View(func(v cache.Reader) {
		for _, s := range cache.List[*discoveryv1.EndpointSlice](v, sliceKind, r.ns) {
			if !found[s.Name] {
				gone = append(gone, s)
			}
		}
	})
	for _, s := range gone {
		r.drop(s)
	}
}

func (r *rig) key(service string) event.Key { return event.Key{Namespace: r.ns, Name: service} }

// reconcile runs one key as the frame does: after a conflict the next write is
// decided on a live read.
func (r *rig) reconcile(service string) error {
	_, err := r.rec.Reconcile(r.Context(), r.key(service))
	if err != nil && classify(err) == controller.Conflict {
		r.p.live[r.key(service)] = true
	}
	return err
}

// sync is reconcile that must succeed, and echo.
func (r *rig) sync(service string) {
	r.Helper()
	if err := r.reconcile(service); err != nil {
		r.Fatalf("Reconcile() = %v", err)
	}
	r.echo()
}

// writes says what left since the last call: "2 create 1 update".
func (r *rig) writes() string { return r.count("POST", "create", "PUT", "update", "DELETE", "delete") }

// count counts what left, of the given pairs of verb and name.
func (r *rig) count(pairs ...string) string {
	n := map[string]int{}
	for _, s := range r.wire.Take() {
		n[s.Verb]++
	}
	var out []string
	for i := 0; i < len(pairs); i += 2 {
		if n[pairs[i]] > 0 {
			out = append(out, fmt.Sprint(n[pairs[i]], " ", pairs[i+1]))
		}
	}
	return strings.Join(out, " ")
}

// list reads all slices of the namespace, in the order of their names.
func (r *rig) list() []*discoveryv1.EndpointSlice {
	r.Helper()
	list, err := r.admin.DiscoveryV1().EndpointSlices(r.ns).List(r.Context(), metav1.ListOptions{})
	if err != nil {
		r.Fatal(err)
	}
	out := make([]*discoveryv1.EndpointSlice, len(list.Items))
	for i := range list.Items {
		out[i] = &list.Items[i]
	}
	return out
}

// slicesOf reads the slices that are ours of one service.
func (r *rig) slicesOf(service string) []*discoveryv1.EndpointSlice {
	r.Helper()
	return slices.DeleteFunc(r.list(), func(s *discoveryv1.EndpointSlice) bool {
		key, ok := ours(s)
		return !ok || key.Name != service || s.DeletionTimestamp != nil
	})
}

// sizes returns how many endpoints the slices of a service hold, most first.
func (r *rig) sizes(service string) string {
	r.Helper()
	var n []int
	for _, s := range r.slicesOf(service) {
		n = append(n, len(s.Endpoints))
	}
	slices.SortFunc(n, func(a, b int) int { return b - a })
	return strings.Trim(fmt.Sprint(n), "[]")
}

// make stores a slice behind the role's back.
func (r *rig) make(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	r.Helper()
	made, err := r.admin.DiscoveryV1().EndpointSlices(r.ns).Create(r.Context(), s, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return made
}

// edit changes a slice behind the role's back.
func (r *rig) edit(name string, change func(*discoveryv1.EndpointSlice)) *discoveryv1.EndpointSlice {
	r.Helper()
	s, err := r.admin.DiscoveryV1().EndpointSlices(r.ns).Get(r.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	change(s)
	s, err = r.admin.DiscoveryV1().EndpointSlices(r.ns).Update(r.Context(), s, metav1.UpdateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return s
}

// heard returns the events written since the last call.
func (r *rig) heard() (out []string) {
	for {
		select {
		case e := <-r.events.Events:
			out = append(out, e)
		default:
			return out
		}
	}
}

// delays returns how many delays of changes were observed, and their sum in
// seconds.
func (r *rig) delays() (n uint64, sum float64) {
	r.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "millrace_endpoints_change_to_slice_seconds" {
			h := f.GetMetric()[0].GetHistogram()
			return h.GetSampleCount(), h.GetSampleSum()
		}
	}
	return 0, 0
}

func causeOf(observed time.Time) *controller.Cause {
	return &controller.Cause{Message: event.Message{Observed: observed}}
}
