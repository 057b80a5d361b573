package kubetest

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
)

// writeWithin bounds one write of the kubelet; a server that hangs must not hang
// it too.
const writeWithin = 10 * time.Second

// KubeletConfig says which nodes a Kubelet plays and how. Zero values are
// upstream's defaults where upstream has one.
type KubeletConfig struct {
	// Nodes are the names of the nodes, made if they do not exist. NodeNames
	// makes such a list.
	Nodes []string
	// FirstNode is the number of the first node, from which addresses follow: two
	// kubelets of one cluster must not overlap. StartKubelet sees to it.
	FirstNode int
	// Zones are given to the nodes in turn, as topology.kubernetes.io/zone.
	Zones []string
	// Labels are put on every node made.
	Labels map[string]string
	// Capacity and allocatable of every node. Default: 64 CPUs, 256 GiB, 1000 pods.
	Capacity corev1.ResourceList
	// Beat is how often a node renews its Lease and looks at its own status.
	// Default: 10 s, kubelet v1.37 (a quarter of its 40 s lease).
	Beat time.Duration
	// StatusEvery is how often a node writes its status although nothing changed.
	// Default: 5 min, kubelet v1.37 nodeStatusReportFrequency.
	StatusEvery time.Duration
	// Termination is how long a pod takes to end after its deletion was asked for.
	// Default: no time at all.
	Termination time.Duration
	// Unready makes pods start not Ready; SetReady changes that.
	Unready bool
	// Bind also plays scheduler: pods without a node get the next one in turn.
	Bind bool
	// Workers write pod statuses at the same time. Default: 16.
	Workers int
}

func (cfg KubeletConfig) withDefaults() KubeletConfig {
	if cfg.Capacity == nil {
		cfg.Capacity = corev1.ResourceList{
			corev1.ResourceCPU:    resource.MustParse("64"),
			corev1.ResourceMemory: resource.MustParse("256Gi"),
			corev1.ResourcePods:   resource.MustParse("1000"),
		}
	}
	setDefault(&cfg.Beat, 10*time.Second)
	setDefault(&cfg.StatusEvery, 5*time.Minute)
	if cfg.Workers == 0 {
		cfg.Workers = 16
	}
	return cfg
}

func setDefault(d *time.Duration, value time.Duration) {
	if *d == 0 {
		*d = value
	}
}

// NodeNames returns n names: prefix-0000, prefix-0001 and so on.
func NodeNames(prefix string, n int) []string {
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%04d", prefix, i)
	}
	return names
}

// Kubelet plays the kubelets of many nodes: it registers them, renews their
// Leases, reports pods bound to them as running, and finishes graceful deletes.
// It runs no container. One watch of pods and one of nodes serve all of them.
type Kubelet struct {
	client kubernetes.Interface
	cfg    KubeletConfig
	nodes  map[string]*node
	order  []*node // as in cfg.Nodes
	pods   cache.SharedIndexInformer
	known  cache.SharedIndexInformer // nodes as the API server has them
	queue  workqueue.TypedRateLimitingInterface[string]

	seed    maphash.Seed
	stripes [64]sync.Mutex // by pod: one status at a time

	mu    sync.Mutex
	ready map[types.UID]bool      // what SetReady said
	doom  map[types.UID]time.Time // when a pod being deleted is to end
	turn  int                     // of Bind

	cancel context.CancelFunc
	tasks  sync.WaitGroup
}

// StartKubelet starts a kubelet for c and stops it when the test ends; the nodes
// it played then fall silent.
func StartKubelet(t testing.TB, c *Cluster, cfg KubeletConfig) *Kubelet {
	t.Helper()
	cfg.FirstNode = c.takeNodes(len(cfg.Nodes))
	k, err := LaunchKubelet(t.Context(), c.Admin(), cfg)
	if err != nil {
		t.Fatalf("starting a kubelet: %v", err)
	}
	t.Cleanup(k.Stop)
	return k
}

// takeNodes reserves n node numbers and returns the first.
func (c *Cluster) takeNodes(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	first := c.nodes
	c.nodes += n
	return first
}

// LaunchKubelet is StartKubelet for programs that are no tests. It returns once
// every node exists and has a Lease. ctx bounds the launch only; the caller
// stops the kubelet.
func LaunchKubelet(ctx context.Context, api *rest.Config, cfg KubeletConfig) (*Kubelet, error) {
	api = rest.CopyConfig(api)
	api.QPS = -1
	api.ContentType = "application/vnd.kubernetes.protobuf"
	api.UserAgent = "kubetest-kubelet"
	client, err := kubernetes.NewForConfig(api)
	if err != nil {
		return nil, fmt.Errorf("making a client: %w", err)
	}
	k := newKubelet(client, cfg.withDefaults())
	if err := k.register(ctx); err != nil {
		return nil, err
	}
	life, cancel := context.WithCancel(context.Background())
	k.cancel = cancel
	if err := k.run(ctx, life); err != nil {
		k.Stop()
		return nil, err
	}
	return k, nil
}

func newKubelet(client kubernetes.Interface, cfg KubeletConfig) *Kubelet {
	k := &Kubelet{
		client: client,
		cfg:    cfg,
		nodes:  map[string]*node{},
		pods:   podInformer(client, cfg.Bind),
		known:  informers.NewSharedInformerFactory(client, 0).Core().V1().Nodes().Informer(),
		queue: workqueue.NewTypedRateLimitingQueue(
			workqueue.NewTypedItemExponentialFailureRateLimiter[string](50*time.Millisecond, 2*time.Second)),
		seed:  maphash.MakeSeed(),
		ready: map[types.UID]bool{},
		doom:  map[types.UID]time.Time{},
	}
	for i, name := range cfg.Nodes {
		n := newNode(name, cfg.FirstNode+i)
		if len(cfg.Zones) > 0 {
			n.zone = cfg.Zones[i%len(cfg.Zones)]
		}
		k.nodes[name] = n
		k.order = append(k.order, n)
	}
	return k
}

// register makes nodes and Leases, several at a time.
func (k *Kubelet) register(ctx context.Context) error {
	return k.each(k.order, func(n *node) error {
		if err := k.registerNode(ctx, n); err != nil {
			return err
		}
		return k.beat(ctx, n)
	})
}

// each does something for every node, Workers at a time.
func (k *Kubelet) each(nodes []*node, do func(*node) error) error {
	work := make(chan *node)
	errs := make([]error, k.cfg.Workers)
	var wg sync.WaitGroup
	for w := range k.cfg.Workers {
		wg.Go(func() {
			for n := range work {
				errs[w] = errors.Join(errs[w], do(n))
			}
		})
	}
	for _, n := range nodes {
		work <- n
	}
	close(work)
	wg.Wait()
	return errors.Join(errs...)
}

// run starts everything that lives as long as the kubelet does, and returns once
// it has seen the pods there are.
func (k *Kubelet) run(ctx, life context.Context) error {
	if err := k.handlePods(); err != nil {
		return err
	}
	k.tasks.Go(func() { k.pods.RunWithContext(life) })
	k.tasks.Go(func() { k.known.RunWithContext(life) })
	if !cache.WaitForCacheSync(ctx.Done(), k.pods.HasSynced, k.known.HasSynced) {
		return fmt.Errorf("reading nodes and pods: %w", context.Cause(ctx))
	}
	for range k.cfg.Workers {
		k.tasks.Go(func() { k.work(life) })
	}
	for i, n := range k.order {
		// Spread over one beat, as kubelets that started at different times are.
		first := k.cfg.Beat * time.Duration(i+1) / time.Duration(len(k.order))
		k.tasks.Go(func() { k.live(life, n, first) })
	}
	return nil
}

// Stop ends the kubelet and waits for its last write. The nodes stay, silent.
func (k *Kubelet) Stop() {
	k.cancel()
	k.queue.ShutDown()
	k.tasks.Wait()
}

// Silence makes a node fall silent: no Lease, no status, and pods on it are
// neither reported nor ended. When it returns, no write is under way any more.
// It panics for a node that is not played here.
func (k *Kubelet) Silence(name string) { k.node(name).setSilent(true) }

// Resume ends Silence; the node reports at once and catches up on its pods.
func (k *Kubelet) Resume(name string) {
	n := k.node(name)
	n.setSilent(false)
	n.lookNow()
	for _, key := range k.podsOn(name) {
		k.queue.Add(key)
	}
}

// LastBeat is when the node's newest Lease renewal was acknowledged, on this
// machine's clock.
func (k *Kubelet) LastBeat(name string) time.Time { return k.node(name).lastBeat() }

// SetNodeReady makes a node report Ready=True or False from now on, and returns
// once it has.
func (k *Kubelet) SetNodeReady(ctx context.Context, name string, ready bool) error {
	n := k.node(name)
	n.setReady(ready)
	return k.reportNode(ctx, n)
}

// SetReady makes a pod report Ready=True or False from now on, and returns once
// it has. The pod must be bound to a node played here.
func (k *Kubelet) SetReady(ctx context.Context, pod *corev1.Pod, ready bool) error {
	n, ok := k.nodes[pod.Spec.NodeName]
	if !ok {
		return fmt.Errorf("setting readiness of pod %s: its node %q is not played here", pod.Name, pod.Spec.NodeName)
	}
	k.mu.Lock()
	k.ready[pod.UID] = ready
	k.mu.Unlock()
	return k.reportPod(ctx, n, pod)
}

func (k *Kubelet) node(name string) *node {
	n, ok := k.nodes[name]
	if !ok {
		panic("kubetest: node " + name + " is not played by this kubelet")
	}
	return n
}
