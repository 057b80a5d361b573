package e2e

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/silence"
)

const (
	// silentFor is the grace of these tests, and beatEvery how often a node beats.
	silentFor = 5 * time.Second
	beatEvery = 500 * time.Millisecond
	// steady is the longest pause of a node that beats; where this machine made
	// one longer nothing is judged for a while.
	steady = 1500 * time.Millisecond
	// toldWithin is how long after its grace a silence may be told when nothing is
	// wrong.
	toldWithin = 1500 * time.Millisecond
)

// A controller's view of heartbeats through real digests. Whatever breaks, no node
// that beats is ever told to be silent, and a silent one is: when nothing is wrong,
// at once. Here watchers and nodes break.
func TestSilence(t *testing.T) {
	ctx, e := hear(t)
	t.Run("nothing is wrong", func(t *testing.T) { e.calm(ctx, t) })
	t.Run("the watcher is killed", func(t *testing.T) {
		e.through(ctx, t, func() {
			holder := e.holder(ctx, t)
			holder.Kill()
			e.watchers = append(slices.DeleteFunc(e.watchers, func(m *fleet.Member) bool { return m == holder }), start(ctx, t, e.f, "watcher", e.env))
		})
	})
	t.Run("the watcher is frozen and thaws", func(t *testing.T) {
		for _, long := range []time.Duration{2 * time.Second, 12 * time.Second} { // without and with a take-over
			e.through(ctx, t, func() {
				holder := e.holder(ctx, t)
				e.must(t, holder.Freeze())
				pause(ctx, long)
				e.must(t, holder.Thaw())
			})
		}
	})
	t.Run("a node is made anew", func(t *testing.T) { e.recreate(ctx, t) })
	e.end(ctx)
}

// The same while servers break.
func TestSilenceWhileServersFail(t *testing.T) {
	ctx, e := hear(t)
	t.Run("the API server hangs", func(t *testing.T) {
		e.through(ctx, t, func() {
			e.must(t, e.f.Cluster.Freeze())
			pause(ctx, 2*silentFor)
			e.must(t, e.f.Cluster.Thaw())
		})
	})
	t.Run("the API server is away from the watchers", func(t *testing.T) {
		e.through(ctx, t, func() {
			e.proxy.Down()
			pause(ctx, 2*silentFor)
			e.proxy.Up()
		})
	})
	t.Run("the API server's cache has stopped", func(t *testing.T) {
		e.mirage(ctx, t, func() { e.proxy.Hold("leases") }, func() { e.proxy.Release("leases") })
	})
	t.Run("NATS is away", func(t *testing.T) {
		e.through(ctx, t, func() {
			e.f.NATS.Kill()
			pause(ctx, 2*silentFor)
			e.must(t, e.f.NATS.Restart(ctx))
		})
	})
	e.end(ctx)
}

// hear begins to listen to nodes that beat, through two watchers.
func hear(t *testing.T) (context.Context, *ears) {
	t.Helper()
	ctx, f := begin(t, 6*time.Minute)
	names := kubetest.NodeNames(prefixOf(t)+"beat", 20)
	kubelet := kubetest.StartKubelet(t, f.Cluster, kubetest.KubeletConfig{Nodes: names, Beat: beatEvery, StatusEvery: 20 * time.Second})
	e := listen(ctx, t, f, kubelet, names)
	e.proxy = kubetest.StartProxy(t, f.Cluster)
	kubeconfig, err := e.proxy.Kubeconfig("watcher")
	e.must(t, err)
	e.env = "KUBECONFIG=" + kubeconfig
	e.watchers = []*fleet.Member{start(ctx, t, f, "watcher", e.env), start(ctx, t, f, "watcher", e.env)}
	ready(ctx, t, e.watchers...)
	e.judging(ctx, 30*time.Second)
	return ctx, e
}

// end looks once more at everybody.
func (e *ears) end(ctx context.Context) {
	e.t.Helper()
	e.judging(ctx, 30*time.Second)
	e.t.Logf("looked at %d nodes %d times, in %d of them they were judged", len(e.names), e.looks, e.judged)
}

// ears listen to the digests as a controller that holds every partition would.
type ears struct {
	t          *testing.T
	f          *fleet.Fleet
	kubelet    *kubetest.Kubelet
	names      []string
	partitions []*silence.Partition
	watchers   []*fleet.Member
	proxy      *kubetest.Proxy // between the watchers, and nobody else, and the API server
	env        string          // of watchers

	mu            sync.Mutex
	quiet         map[string]bool      // silent on purpose
	slow          map[string]time.Time // when it last paused for long, on no purpose
	told          map[string]time.Time // since when it is told to be silent
	looks, judged int
	// blind: the watch is known to tell nothing; what is told is then compared
	// with a live read, as a controller does. contradicted counts these.
	blind        bool
	doubted      chan beat.Verdict
	contradicted int
}

func listen(ctx context.Context, t *testing.T, f *fleet.Fleet, kubelet *kubetest.Kubelet, names []string) *ears {
	t.Helper()
	cfg := bustest.ConfigFor(f.NATS.URL)
	cfg.Cluster, cfg.Partitions, cfg.MaxBytes = "default", partitions, 4<<30 // as the watchers make it
	cfg.DecisionsMaxAge, cfg.DecisionsMaxBytes = 168*time.Hour, 256<<20
	follower := silence.New(bustest.Connect(t, cfg, "ears"), "ears-1", nil, nil)
	e := &ears{
		t: t, f: f, kubelet: kubelet, names: names,
		quiet: map[string]bool{}, slow: map[string]time.Time{}, told: map[string]time.Time{}, doubted: make(chan beat.Verdict),
	}
	ctx, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	for i := range partitions {
		p := follower.Partition(i)
		e.partitions = append(e.partitions, p)
		tasks.Go(func() { _ = p.Run(ctx) })
	}
	tasks.Go(func() {
		for ctx.Err() == nil {
			e.look()
			pause(ctx, 20*time.Millisecond)
		}
	})
	tasks.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case v := <-e.doubted:
				e.readLive(ctx, v)
			}
		}
	})
	t.Cleanup(func() { cancel(); tasks.Wait() })
	return e
}

func (e *ears) of(name string) beat.Verdict {
	return e.partitions[partition.OfKey(event.Key{Name: name}, partitions)].Of(name, "")
}

// look compares what is told of every node with what its kubelet knows.
func (e *ears) look() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, name := range e.names {
		truly := time.Since(e.kubelet.LastBeat(name))
		v := e.of(name)
		now := time.Now()
		if truly > steady {
			e.slow[name] = now
		}
		e.looks++
		if v.Why == "" {
			e.judged++
		}
		silent := v.Why == "" && v.Silence >= silentFor
		switch {
		case !silent:
			delete(e.told, name)
		case e.told[name].IsZero():
			e.told[name] = now
		}
		if silent && e.blind && !e.quiet[name] {
			select {
			case e.doubted <- v: // dropped while another is read; it is told again
			default:
			}
			continue
		}
		if silent && !e.quiet[name] && now.Sub(e.slow[name]) > 2*silentFor {
			e.t.Errorf("%s is told to be silent for %s; its last beat was %s ago", name, v.Silence, truly)
			e.slow[name] = now // once
		}
	}
}

// silence makes a node fall silent, and returns what takes that back.
func (e *ears) silence(name string) (resume func(ctx context.Context, t *testing.T)) {
	e.mu.Lock()
	e.quiet[name] = true
	e.mu.Unlock()
	e.kubelet.Silence(name)
	return func(ctx context.Context, t *testing.T) {
		e.kubelet.Resume(name)
		eventually(ctx, t, 20*time.Second, name+" is heard again", func() (bool, string) {
			v := e.of(name)
			return v.Why == "" && v.Silence < silentFor/2, fmt.Sprintf("%+v", v)
		})
		e.mu.Lock()
		defer e.mu.Unlock()
		e.quiet[name] = false
	}
}

// toldAt waits until a node is told to be silent, and returns since when.
func (e *ears) toldAt(ctx context.Context, t *testing.T, name string, within time.Duration) (at time.Time) {
	t.Helper()
	eventually(ctx, t, within, name+" is told to be silent", func() (bool, string) {
		e.mu.Lock()
		defer e.mu.Unlock()
		at = e.told[name]
		return !at.IsZero(), fmt.Sprintf("%+v", e.of(name))
	})
	return at
}

// judging waits until no partition is suspended.
func (e *ears) judging(ctx context.Context, within time.Duration) {
	e.t.Helper()
	eventually(ctx, e.t, within, "everything is judged", func() (bool, string) {
		for _, name := range e.names {
			if v := e.of(name); v.Why != "" {
				return false, fmt.Sprintf("%s: %s", name, v.Why)
			}
		}
		return true, ""
	})
}

// calm measures how late a silence is told.
func (e *ears) calm(ctx context.Context, t *testing.T) {
	var late []time.Duration
	names := e.names[:6]
	resume := map[string]func(context.Context, *testing.T){}
	for _, name := range names {
		resume[name] = e.silence(name)
		pause(ctx, 300*time.Millisecond)
	}
	for _, name := range names {
		at := e.toldAt(ctx, t, name, 3*silentFor)
		late = append(late, at.Sub(e.kubelet.LastBeat(name))-silentFor)
	}
	for _, name := range names {
		resume[name](ctx, t)
	}
	slices.Sort(late)
	t.Logf("told after the grace of %s: median %s, at worst %s (goal %s)", silentFor, late[len(late)/2], late[len(late)-1], toldWithin)
	if worst := late[len(late)-1]; worst > toldWithin*time.Duration(tolerance()) {
		t.Errorf("a silence was told %s after its grace", worst)
	}
	if late[0] < -200*time.Millisecond {
		t.Errorf("a silence was told %s before its grace had passed", -late[0])
	}
}

// through lets something go wrong while one node is silent: that one is told of
// afterwards, and no other ever.
func (e *ears) through(ctx context.Context, t *testing.T, wrong func()) {
	resume := e.silence(e.names[7])
	wrong()
	e.toldAt(ctx, t, e.names[7], 40*time.Second)
	e.judging(ctx, 40*time.Second)
	resume(ctx, t)
}

// readLive does what a controller does before it acts: if the node has beaten
// within its grace the read must contradict the digest it was judged by, and
// nobody of the partition is judged from then on. A node that this machine kept
// from beating is truly silent.
func (e *ears) readLive(ctx context.Context, judged beat.Verdict) {
	client, name := e.f.Cluster.Client(), judged.Node
	beats := time.Since(e.kubelet.LastBeat(name)) < silentFor
	node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return
	}
	lease, err := client.CoordinationV1().Leases(corev1.NamespaceNodeLease).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return
	}
	live := beat.Beat{Node: name, UID: string(node.UID), Renewed: lease.Spec.RenewTime.UnixMicro()}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			live.Heartbeat = c.LastHeartbeatTime.Unix()
		}
	}
	p := e.partitions[partition.OfKey(event.Key{Name: name}, partitions)]
	if p.Live(judged.Beat, live) {
		if beats {
			e.t.Errorf("%s beats, and a live read agrees with the digest that it does not: %+v", name, judged)
		}
		return
	}
	if why := p.Suspended(); why == "" && p.Of(name, "").Same(judged.Beat) {
		e.t.Errorf("after a contradiction of %+v by %+v judging goes on", judged, live)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.contradicted++
}

// mirage: the watch tells nothing any more while pings are answered, which no
// digest can know. One live read in each partition finds it.
func (e *ears) mirage(ctx context.Context, t *testing.T, begin, end func()) {
	used := map[int]bool{}
	for _, name := range e.names {
		used[partition.OfKey(event.Key{Name: name}, partitions)] = true
	}
	e.mu.Lock()
	e.blind, e.contradicted = true, 0
	e.mu.Unlock()
	begin()
	eventually(ctx, t, 6*silentFor, "every partition is contradicted", func() (bool, string) {
		n := 0
		for i := range used {
			if e.partitions[i].Suspended() == beat.Contradicted {
				n++
			}
		}
		return n == len(used), fmt.Sprintf("%d of %d", n, len(used))
	})
	pause(ctx, silentFor)
	e.mu.Lock()
	reads := e.contradicted
	e.mu.Unlock()
	end()
	e.judging(ctx, 40*time.Second)
	// A beat that was kept back counts from when it came, so from here on nobody
	// looks silent any more.
	e.mu.Lock()
	e.blind = false
	e.mu.Unlock()
	pause(ctx, 2*silentFor)
	t.Logf("%d live reads in %d partitions", reads, len(used))
	if reads > 2*len(used) {
		t.Errorf("%d live reads in %d partitions; one of each is enough", reads, len(used))
	}
}

// holder is the watcher that holds nodes.
func (e *ears) holder(ctx context.Context, t *testing.T) (m *fleet.Member) {
	t.Helper()
	eventually(ctx, t, 30*time.Second, "a watcher holds nodes", func() (bool, string) {
		s, err := e.f.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		host := s.Holders("watcher")["nodes"]
		for _, m = range e.watchers {
			if m.Name == host {
				return true, ""
			}
		}
		return false, "held by " + host
	})
	return m
}

func (e *ears) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// recreate: a node deleted and made anew under its name has been silent since it
// was made, not since its predecessor was.
func (e *ears) recreate(ctx context.Context, t *testing.T) {
	name := e.names[8]
	resume := e.silence(name)
	e.toldAt(ctx, t, name, 3*silentFor)
	nodes := e.f.Cluster.Client().CoreV1().Nodes()
	e.must(t, nodes.Delete(ctx, name, metav1.DeleteOptions{}))
	began := time.Now()
	made, err := nodes.Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	e.must(t, err)
	var at time.Duration
	eventually(ctx, t, 4*silentFor, "the new node is told to be silent", func() (bool, string) {
		v := e.of(name)
		at = time.Since(began)
		return v.Why == "" && v.UID == string(made.UID) && v.Silence >= silentFor, fmt.Sprintf("%+v", v)
	})
	t.Logf("told %s after it was made", at)
	if at < silentFor-200*time.Millisecond {
		t.Errorf("the new node is told to be silent %s after it was made", at)
	}
	resume(ctx, t)
}
