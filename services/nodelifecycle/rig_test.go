package nodelifecycle

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/rates"
	"github.com/millrace-io/millrace/shared/role/roletest"
	"github.com/millrace-io/millrace/shared/silence"
)

// rig is the role on one partition: API server and writes are real, and what the
// role is told of nodes, pods and beats is what the test tells it.
type rig struct {
	testing.TB

	ns    string
	admin kubernetes.Interface
	api   *kube.API
	wire  *roletest.Wire
	facts *roletest.Facts
	sink  chan event.DigestSink

	role   *nodeLifecycle
	events record.EventRecorder
	heard  chan string // events, where nobody else takes them
	*roletest.World
	p    *roletest.Partition
	rec  *reconciler
	line *turnstile
	reg  *prometheus.Registry

	mu      sync.Mutex
	now     time.Time // cluster time
	boot    time.Duration
	digests event.DigestSink
	counter uint64
	beats   map[string]beat.Beat
}

func newRig(t testing.TB, set ...func(p *policy)) *rig {
	t.Helper()
	cluster := kubetest.Shared(t)
	r := &rig{
		TB: t, ns: cluster.Namespace(t), admin: cluster.Client(), wire: &roletest.Wire{}, facts: roletest.NewFacts(nil),
		now: later, boot: time.Hour, beats: map[string]beat.Beat{},
	}
	p := defaults()
	for _, s := range set {
		s(&p)
	}
	conf := rest.CopyConfig(cluster.Config(kubetest.RoleNodeLifecycle))
	conf.Wrap(r.wire.Wrap)
	api, err := kube.ConnectTo(conf, kube.Config{QPS: -1}, "millrace-nodelifecycle", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.api = api
	fake := record.NewFakeRecorder(10000)
	r.events, r.heard = fake, fake.Events
	r.start(p)
	return r
}

// start makes the role and its partition, as a process does.
func (r *rig) start(p policy) {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	r.sink = make(chan event.DigestSink, 1)
	r.line = newTurnstile()
	r.reg = prometheus.NewRegistry()
	s := newNodeLifecycle(ctx, p, r.api, kube.WriteOptions{Manager: "millrace-nodelifecycle"}, r.events)
	s.partitions = 1
	s.registered, s.zones = factsOf(r.facts)
	s.evictions = newEvictor(ctx, &s.policy, r.line.bucket, s.census)
	s.silences = silence.New(ears{r.sink}, role, nil, nil)
	roletest.Replace(s.silences, "now", r.bootTime)
	s.metrics = newMetrics(r.reg, s)
	s.log = slog.New(slog.DiscardHandler)
	r.role = s
	var tasks sync.WaitGroup
	tasks.Go(func() { s.zones.view.Run(ctx) })
	r.World = newWorld(1)
	r.p = r.Partition(0)
	r.p.Time = r.clusterTime
	r.p.OnChange = func(c cache.Change) { s.keys(r.p, c) } // as the frame does; what it wakes is mapping_test's
	r.rec = s.forPartition(r.p)
	r.digests = <-r.sink
	r.Cleanup(func() {
		cancel()
		_ = r.rec.Close()
		tasks.Wait()
	})
	r.eventually("the facts are known", func() bool { _, complete := s.zones.view.Fact(allZones); return complete })
}

// ears is a silence.Source that hands the rig what listens.
type ears struct{ sink chan event.DigestSink }

func (e ears) FollowDigests(ctx context.Context, _ string, _ []int, sink event.DigestSink) error {
	e.sink <- sink
	<-ctx.Done()
	return ctx.Err()
}

func (r *rig) bootTime() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.boot
}

func (r *rig) clusterTime() time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.now
}

// pass lets cluster time pass.
func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.now = r.now.Add(d)
}

// hear makes the watcher send digests until they are believed: of nodes it knows
// the ages that say told.
func (r *rig) hear() {
	r.Helper()
	for range 3 { // the first of an epoch is not believed, nor is the second
		r.mu.Lock()
		r.boot += time.Second
		r.counter++
		n := r.counter
		r.mu.Unlock()
		r.digests.Digest(0, n, digestOf(r, 1))
	}
}

// hush lets d pass, by the clock that counts suspension, with no digest.
func (r *rig) hush(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.boot += d
}

// silent makes the digest say that nodes have been silent so long, and that it
// has seen what stands in the API now.
func (r *rig) silent(age time.Duration, names ...string) {
	r.Helper()
	for _, name := range names {
		r.mu.Lock()
		r.beats[name] = r.beatOf(name, age)
		r.mu.Unlock()
	}
	r.hear()
}

func (r *rig) beatOf(name string, age time.Duration) beat.Beat {
	r.Helper()
	n := r.get(name)
	b := beat.Beat{Node: name, UID: string(n.UID), Heartbeat: kube.Heartbeat(n), Age: age}
	lease, err := r.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(r.Context(), name, metav1.GetOptions{})
	if err == nil {
		b.Renewed = kube.Renewed(lease)
	}
	return b
}

// name makes a node's name that no other test has.
func (r *rig) name(n string) string { return r.ns + "-" + n }

func (r *rig) key(n string) event.Key { return event.Key{Name: r.name(n)} }

// make stores a node, tells the role of it, and makes it silent for no time.
func (r *rig) make(name string, options ...nodeOption) *corev1.Node {
	r.Helper()
	n := node(r.name(name), options...)
	want := n.DeepCopy()
	n.UID = ""
	made, err := r.admin.CoreV1().Nodes().Create(r.Context(), n, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	made.Spec.Taints = want.Spec.Taints // an admission plugin adds not-ready
	if made, err = r.admin.CoreV1().Nodes().Update(r.Context(), made, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
	made.Status.Conditions = want.Status.Conditions
	if made, err = r.admin.CoreV1().Nodes().UpdateStatus(r.Context(), made, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.Put(r.TB, made)
	r.silent(0, made.Name)
	return made
}

// renew writes the Lease of a node.
func (r *rig) renew(name string, at time.Time) {
	r.Helper()
	leases := r.admin.CoordinationV1().Leases(corev1.NamespaceNodeLease)
	renewed := metav1.NewMicroTime(at)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: r.name(name)}, Spec: coordinationv1.LeaseSpec{RenewTime: &renewed}}
	if old, err := leases.Get(r.Context(), lease.Name, metav1.GetOptions{}); err == nil {
		old.Spec = lease.Spec
		if _, err := leases.Update(r.Context(), old, metav1.UpdateOptions{}); err != nil {
			r.Fatal(err)
		}
		return
	}
	if _, err := leases.Create(r.Context(), lease, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
}

// get reads a node by its whole name.
func (r *rig) get(name string) *corev1.Node {
	r.Helper()
	n, err := r.admin.CoreV1().Nodes().Get(r.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// live reads one of the rig's nodes.
func (r *rig) live(name string) *corev1.Node { r.Helper(); return r.get(r.name(name)) }

// edit changes a node behind the role's back; status too.
func (r *rig) edit(name string, change func(n *corev1.Node)) *corev1.Node {
	r.Helper()
	n := r.live(name)
	change(n)
	status := n.Status
	n, err := r.admin.CoreV1().Nodes().Update(r.Context(), n, metav1.UpdateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return r.withStatus(n, status)
}

// withStatus gives a node a status, which neither a creation nor an update does.
func (r *rig) withStatus(n *corev1.Node, status corev1.NodeStatus) *corev1.Node {
	r.Helper()
	n.Status = status
	n, err := r.admin.CoreV1().Nodes().UpdateStatus(r.Context(), n, metav1.UpdateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// kubelet makes a node say of itself whether it is ready.
func (r *rig) kubelet(name string, status corev1.ConditionStatus, at time.Time) {
	r.Helper()
	r.edit(name, func(n *corev1.Node) {
		for i := range n.Status.Conditions {
			if c := &n.Status.Conditions[i]; c.Type == corev1.NodeReady {
				c.Status, c.Reason, c.LastHeartbeatTime, c.LastTransitionTime = status, "KubeletSays", metav1.NewTime(at), metav1.NewTime(at)
			}
		}
	})
}

// pod stores a pod on a node with conditions, and tells the role of it.
func (r *rig) pod(name, on string, conditions ...string) *corev1.Pod {
	r.Helper()
	pods := r.admin.CoreV1().Pods(r.ns)
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{NodeName: r.name(on), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	made, err := pods.Create(r.Context(), p, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	made.Status = podSays(conditions...).Status
	if made, err = pods.UpdateStatus(r.Context(), made, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
	r.Put(r.TB, made)
	return made
}

func (r *rig) podKey(name string) event.Key { return event.Key{Namespace: r.ns, Name: name} }

func (r *rig) livePod(name string) *corev1.Pod {
	r.Helper()
	p, err := r.admin.CoreV1().Pods(r.ns).Get(r.Context(), name, metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return p
}

// echo tells the role what the API server holds.
func (r *rig) echo(keys ...event.Key) {
	r.Helper()
	for _, key := range keys {
		if isNode(key) {
			r.Put(r.TB, r.get(key.Name))
		} else {
			r.Put(r.TB, r.livePod(key.Name))
		}
	}
}

// reconcile runs one key as the frame does: after a conflict the next write is
// decided on a live read.
func (r *rig) reconcile(key event.Key) (controller.Result, error) {
	result, err := r.rec.Reconcile(r.Context(), key)
	if err != nil && classify(err) == controller.Conflict {
		r.p.MustReadLive(key)
	}
	return result, err
}

// run is reconcile that must succeed, and echo.
func (r *rig) run(keys ...event.Key) (result controller.Result) {
	r.Helper()
	for _, key := range keys {
		var err error
		if result, err = r.reconcile(key); err != nil {
			r.Fatalf("Reconcile(%s) = %v", key, err)
		}
		r.echo(key)
	}
	return result
}

// settle runs nodes until nothing is written any more.
func (r *rig) settle(keys ...event.Key) {
	r.Helper()
	for range 5 {
		r.wire.Writes()
		r.run(keys...)
		if writes, _ := r.wire.Writes(); len(writes) == 0 {
			return
		}
	}
	r.Fatalf("%v is still written to", keys)
}

// writes says what left since the last call: "PATCH nodes/status …".
func (r *rig) writes() string {
	writes, _ := r.wire.Writes()
	out := make([]string, 0, len(writes))
	for _, s := range writes {
		out = append(out, s.String())
	}
	return strings.Join(out, " ")
}

// taints says what taints a node bears.
func (r *rig) taints(name string) string { r.Helper(); return said(r.live(name).Spec.Taints) }

// told returns the events since the last call.
func (r *rig) told() (out []string) {
	for {
		select {
		case e := <-r.heard:
			out = append(out, e)
		default:
			return out
		}
	}
}

// tokens lets the next n that wait pass, and waits until they were woken.
func (r *rig) tokens(n int) {
	r.Helper()
	r.p.Wakes()
	for range n {
		select {
		case r.line.free <- roletest.Endless():
		case <-time.After(time.Minute):
			r.Fatal("nobody asks for a token")
		}
	}
}

func (r *rig) eventually(what string, f func() bool) {
	r.Helper()
	roletest.Eventually(r.TB, what, f)
}

// turnstile is the buckets of all zones, under the test's control.
type turnstile struct {
	free chan rates.Token

	mu    sync.Mutex
	asked map[string]int // tokens asked for, by zone and rate
}

func newTurnstile() *turnstile {
	return &turnstile{free: make(chan rates.Token), asked: map[string]int{}}
}

func (b *turnstile) bucket(zone string, rate float64) bucket { return gate{b, zone, rate} }

func (b *turnstile) asks(zone string, rate float64) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.asked[fmt.Sprintf("%s at %g", zone, rate)]
}

func (b *turnstile) all() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, k := range b.asked {
		n += k
	}
	return n
}

type gate struct {
	*turnstile
	zone string
	rate float64
}

func (gate) Set(float64, int) {}

func (g gate) Take(ctx context.Context) (rates.Token, error) {
	g.mu.Lock()
	g.asked[fmt.Sprintf("%s at %g", g.zone, g.rate)]++
	g.mu.Unlock()
	select {
	case t := <-g.free:
		return t, nil
	case <-ctx.Done():
		return rates.Token{}, errors.New("no token")
	}
}

// digestOf is a digest of an epoch, as hear sends them.
func digestOf(r *rig, epoch uint64) []byte {
	r.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	d := beat.Digest{Epoch: epoch, Counter: r.counter, At: r.boot}
	for _, b := range r.beats {
		d.Beats = append(d.Beats, b)
	}
	slices.SortFunc(d.Beats, func(a, b beat.Beat) int { return strings.Compare(a.Node, b.Node) })
	body, err := (&beat.Encoder{}).Encode(d)
	if err != nil {
		r.Fatal(err)
	}
	return body
}

// counted returns a metric of a zone.
func (r *rig) counted(name, zone string) float64 {
	r.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == zone {
				return m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	r.Fatalf("there is no %s of zone %q", name, zone)
	return 0
}
