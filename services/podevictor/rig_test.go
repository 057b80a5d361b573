package podevictor

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/rates"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// rig is the role on one partition: API server and writes are real, and what the
// role is told of nodes and pods is what the test tells it.
type rig struct {
	testing.TB

	ns     string
	admin  kubernetes.Interface
	api    *kube.API
	wire   *roletest.Wire
	facts  *roletest.Facts
	events record.EventRecorder
	heard  chan string
	policy policy

	role *podEvictor
	*roletest.World
	p    *roletest.Partition
	rec  *reconciler
	reg  *prometheus.Registry
	stop func()

	mu    sync.Mutex
	began time.Time     // by the cluster's clock
	gone  time.Duration // since then
}

func newRig(t testing.TB, set ...func(p *policy)) *rig {
	t.Helper()
	cluster := kubetest.Shared(t)
	r := &rig{
		TB: t, ns: cluster.Namespace(t), admin: cluster.Client(), wire: &roletest.Wire{}, facts: roletest.NewFacts(nil),
		// What is made on a busy machine seconds from now must be no later than that:
		// no pod came to its node before it was made.
		began: time.Now().Truncate(time.Second).Add(20 * time.Second), policy: defaults(),
	}
	for _, s := range set {
		s(&r.policy)
	}
	conf := rest.CopyConfig(cluster.Config(kubetest.RolePodEvictor))
	conf.Wrap(r.wire.Wrap)
	api, err := kube.ConnectTo(conf, kube.Config{QPS: -1, RequestTimeout: time.Minute}, "millrace-podevictor", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.api = api
	fake := record.NewFakeRecorder(10000)
	r.events, r.heard = fake, fake.Events
	r.start()
	return r
}

// start makes the role and its partition, as a process does.
func (r *rig) start() {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	s := newPodEvictor(r.policy, r.api, kube.WriteOptions{Manager: "millrace-podevictor"}, r.events)
	s.cluster = func(time.Time) (time.Time, time.Duration, bool) { return r.clusterTime(), 0, true }
	s.sightings = newSightings(r.facts)
	limits := rates.New(rates.Config{Role: role}, roletest.NewFacts(nil), connected{}, nil, nil)
	s.line = newLine(ctx, s.policy, limits, workers)
	r.reg = prometheus.NewRegistry()
	s.metrics = newMetrics(r.reg, s)
	r.role = s
	var tasks sync.WaitGroup
	tasks.Go(func() { s.sightings.run(ctx) })
	tasks.Go(func() { limits.Run(ctx) })
	r.World = roletest.NewWorld(1, partitionInputs(), wideInputs())
	r.p = r.Partition(0)
	r.p.Time = r.clusterTime
	r.p.OnChange = func(c cache.Change) { s.keys(r.p, c) } // as the frame does; what it wakes is mapping_test's
	r.rec = s.forPartition(r.p)
	r.stop = sync.OnceFunc(func() {
		cancel()
		_ = r.rec.Close()
		tasks.Wait()
	})
	r.Cleanup(r.stop)
	roletest.Eventually(r.TB, "the facts are known", s.sightings.complete)
}

// restart ends the role, and makes it anew of what the API server and the facts hold.
func (r *rig) restart(nodes []string, pods ...string) {
	r.Helper()
	r.stop()
	r.start()
	for _, n := range nodes {
		r.Put(r.TB, r.liveNode(n))
	}
	for _, p := range pods {
		r.Put(r.TB, r.livePod(p))
	}
	r.role.all(r.p)
}

// connected is a NATS that is there.
type connected struct{}

func (connected) Connected() (time.Time, bool) { return then, true }

func (r *rig) clusterTime() time.Time { return r.at(r.now()) }

// at is a while after the rig was made, by the cluster's clock.
func (r *rig) at(d time.Duration) time.Time { return r.began.Add(d) }

func (r *rig) now() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.gone
}

// pass lets cluster time pass.
func (r *rig) pass(d time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone += d
}

// name makes a node's name that no other test has.
func (r *rig) name(n string) string { return r.ns + "-" + n }

func (r *rig) key(pod string) event.Key { return event.Key{Namespace: r.ns, Name: pod} }

// node stores a node and tells the role of it.
func (r *rig) node(name string, taints ...corev1.Taint) *corev1.Node {
	r.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: r.name(name)}}
	if _, err := r.admin.CoreV1().Nodes().Create(r.Context(), n, metav1.CreateOptions{}); err != nil {
		r.Fatal(err)
	}
	return r.taint(name, taints...) // an admission plugin adds not-ready
}

// edit changes a node behind the role's back.
func (r *rig) edit(name string, change func(n *corev1.Node)) *corev1.Node {
	r.Helper()
	n := r.liveNode(name)
	change(n)
	status := n.Status
	n, err := r.admin.CoreV1().Nodes().Update(r.Context(), n, metav1.UpdateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	n.Status = status
	if n, err = r.admin.CoreV1().Nodes().UpdateStatus(r.Context(), n, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
	return n
}

// secretly gives a node other taints behind the role's back.
func (r *rig) secretly(name string, taints ...corev1.Taint) *corev1.Node {
	r.Helper()
	return r.edit(name, func(n *corev1.Node) { n.Spec.Taints = taints })
}

// taint gives a node other taints, and tells the role.
func (r *rig) taint(name string, taints ...corev1.Taint) *corev1.Node {
	r.Helper()
	n := r.secretly(name, taints...)
	r.Put(r.TB, n)
	return n
}

// unmake deletes a node; the role is not told.
func (r *rig) unmake(name string) {
	r.Helper()
	if err := r.admin.CoreV1().Nodes().Delete(r.Context(), r.name(name), metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) liveNode(name string) *corev1.Node {
	r.Helper()
	n, err := r.admin.CoreV1().Nodes().Get(r.Context(), r.name(name), metav1.GetOptions{})
	if err != nil {
		r.Fatal(err)
	}
	return n
}

// store stores a pod on a node, "" for none; the role is not told. A kubelet has
// said that it runs, unless an option knows more.
func (r *rig) store(name, on string, options ...podOption) *corev1.Pod {
	r.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if on != "" {
		p.Spec.NodeName = r.name(on)
	}
	for _, o := range options {
		o(p)
	}
	status := p.Status
	p, err := r.admin.CoreV1().Pods(r.ns).Create(r.Context(), p, metav1.CreateOptions{})
	if err != nil {
		r.Fatal(err)
	}
	p.Status = status
	if p, err = r.admin.CoreV1().Pods(r.ns).UpdateStatus(r.Context(), p, metav1.UpdateOptions{}); err != nil {
		r.Fatal(err)
	}
	return p
}

// pod stores a pod and tells the role of it.
func (r *rig) pod(name, on string, options ...podOption) *corev1.Pod {
	r.Helper()
	p := r.store(name, on, options...)
	r.Put(r.TB, p)
	return p
}

// deleted asks for a pod's deletion, which its node does not do, and tells the role.
func (r *rig) deleted(name string) *corev1.Pod {
	r.Helper()
	if err := r.admin.CoreV1().Pods(r.ns).Delete(r.Context(), name, metav1.DeleteOptions{}); err != nil {
		r.Fatal(err)
	}
	p := r.livePod(name)
	r.Put(r.TB, p)
	return p
}

// force deletes a pod behind the role's back, at once.
func (r *rig) force(name string) {
	r.Helper()
	if err := r.admin.CoreV1().Pods(r.ns).Delete(r.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)}); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) livePod(name string) *corev1.Pod {
	r.Helper()
	p := r.found(name)
	if p == nil {
		r.Fatalf("there is no pod %s", name)
	}
	return p
}

// found is livePod, nil if there is none.
func (r *rig) found(name string) *corev1.Pod {
	r.Helper()
	p, err := r.admin.CoreV1().Pods(r.ns).Get(r.Context(), name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		r.Fatal(err)
	}
	return p
}

// fate is what has become of a pod: stays, ending, gone.
func (r *rig) fate(name string) string {
	r.Helper()
	switch p := r.found(name); {
	case p == nil:
		return "gone"
	case p.DeletionTimestamp != nil:
		return "ending"
	default:
		return "stays"
	}
}

// reconcile runs one pod as the frame does: after a conflict the next write is
// decided on a live read.
func (r *rig) reconcile(pod string) (controller.Result, error) {
	result, err := r.rec.Reconcile(r.Context(), r.key(pod))
	if err != nil && classify(err) == controller.Conflict {
		r.p.MustReadLive(r.key(pod))
	}
	return result, err
}

// run is reconcile that must succeed.
func (r *rig) run(pod string) time.Duration {
	r.Helper()
	result, err := r.reconcile(pod)
	if err != nil {
		r.Fatalf("Reconcile(%s) = %v", pod, err)
	}
	return result.After
}

// echo tells the role what the API server holds of pods.
func (r *rig) echo(pods ...string) {
	r.Helper()
	for _, name := range pods {
		if p := r.found(name); p != nil {
			r.Put(r.TB, p)
			continue
		}
		r.Drop(r.TB, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.ns, Name: name}})
	}
}

// writes says what left since the last call: "PATCH pods/status DELETE pods".
func (r *rig) writes() string {
	writes, _ := r.wire.Writes()
	out := make([]string, 0, len(writes))
	for _, s := range writes {
		out = append(out, s.String())
	}
	return strings.Join(out, " ")
}

// evicted are the writes of one eviction.
const evicted = "PATCH pods/status DELETE pods"

// told returns the events since the last call, without the names of pods.
func (r *rig) told() (out []string) {
	for {
		select {
		case e := <-r.heard:
			out = append(out, strings.ReplaceAll(e, r.ns+"/", ""))
		default:
			return out
		}
	}
}

// disrupted returns what a pod says of why it is deleted.
func disrupted(p *corev1.Pod) *corev1.PodCondition {
	i := slices.IndexFunc(p.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.DisruptionTarget })
	if i < 0 {
		return nil
	}
	return &p.Status.Conditions[i]
}

// waiting returns what is remembered of a pod.
func (r *rig) waiting(pod string) controller.Pending {
	r.Helper()
	for _, p := range r.role.pending() {
		if p.Object.Key == r.key(pod) {
			return p
		}
	}
	return controller.Pending{}
}

// counted returns a metric, over all its labels.
func (r *rig) counted(name string) (sum float64) {
	r.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	return sum
}
