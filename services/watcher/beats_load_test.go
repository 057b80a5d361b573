package watcher

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/silence"
)

// designLoad is the load that heartbeats were designed for. Unit: nodes.
const designLoad = 65_000

// loadGoal is what watcher and NATS may use together for that. Unit: cores.
const loadGoal = 0.5

// measuring: LONG=1 is the whole load, for a minute and judged strictly; otherwise
// it is a fifth, and a busy machine is allowed for.
var measuring = os.Getenv("LONG") == "1"

// The load. Units: nodes, events per second.
var (
	loadNodes  = map[bool]int{true: designLoad, false: designLoad / 5}[measuring]
	loadLeases = loadNodes / 10  // a kubelet renews every 10 s
	loadStatus = loadNodes / 300 // and reports every 5 min
)

// feedURL makes this test binary the process of a watcher.
const feedURL = "MILLRACE_WATCHER_TEST_FEED"

func loadBus(url string) bus.Config {
	cfg := bustest.ConfigFor(url)
	cfg.Partitions = 32
	return cfg
}

// TestHeartbeatLoad: the heartbeats of 65 000 nodes, or a fifth of them, fed as the watches would
// into the owner of nodes in a process of its own, with a NATS server and readers
// of every partition in others. Long form: make loads.
func TestHeartbeatLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("measures a load")
	}
	span, goal, silent := 10*time.Second, 4*loadGoal*float64(loadNodes)/designLoad, 40*time.Second
	if measuring {
		span, goal, silent = time.Minute, loadGoal, 14*time.Second
	}
	nats := bustest.StartProcess(t)
	b := bustest.Connect(t, loadBus(nats.URL()), "reader")
	watcher := feeder(t, nats.URL())
	partitions := listenTo(t, b)

	eventually := func(what string, done func() bool) {
		t.Helper()
		for began := time.Now(); !done(); time.Sleep(100 * time.Millisecond) {
			if time.Since(began) > 2*time.Minute {
				t.Fatalf("%s: not after two minutes", what)
			}
		}
	}
	eventually("every node is told of", func() bool { return toldOf(partitions) == loadNodes })
	pause := time.Now()
	watcherBefore, natsBefore := cpuOf(t, watcher), cpuOf(t, nats.PID())
	oldest, looks := time.Duration(0), 0
	suspended := map[beat.Reason]int{}
	for time.Since(pause) < span {
		time.Sleep(100 * time.Millisecond)
		for _, p := range partitions {
			looks++
			if why := p.Suspended(); why != "" {
				suspended[why]++
			}
			for _, n := range p.Nodes() {
				oldest = max(oldest, n.Age)
			}
		}
	}
	took := time.Since(pause).Seconds()
	watcherShare := (cpuOf(t, watcher) - watcherBefore).Seconds() / took
	natsShare := (cpuOf(t, nats.PID()) - natsBefore).Seconds() / took

	least, most := 1<<30, 0
	for i := range partitions {
		body, err := b.LastDigest(t.Context(), i)
		if err != nil {
			t.Fatal(err)
		}
		least, most = min(least, len(body)), max(most, len(body))
	}
	t.Logf("%d nodes, %d Leases/s, %d statuses/s: watcher %.1f %% + NATS %.1f %% = %.1f %% of a core (goal %.0f %%); %d to %d bytes per partition; oldest age %s",
		loadNodes, loadLeases, loadStatus, 100*watcherShare, 100*natsShare, 100*(watcherShare+natsShare), 100*goal, least, most, oldest)
	t.Logf("of %d looks at a partition, judging was suspended in %v", looks, suspended)
	if share := watcherShare + natsShare; share > goal {
		t.Errorf("%.2f of a core, at most %.2f is allowed", share, goal)
	}
	if most > 1<<20/2*loadNodes/designLoad {
		t.Errorf("a digest has %d bytes; the smallest limit of a server is 1 MiB", most)
	}
	if oldest > silent {
		t.Errorf("a node that beats every 10 s is told to be silent for %s", oldest)
	}
}

// listenTo follows every partition.
func listenTo(t *testing.T, b *bus.Bus) (partitions []*silence.Partition) {
	follower := silence.New(b, "load", nil, nil)
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	for i := range b.Partitions() {
		p := follower.Partition(i)
		partitions = append(partitions, p)
		tasks.Go(func() { _ = p.Run(ctx) })
	}
	t.Cleanup(func() { cancel(); tasks.Wait() })
	return partitions
}

func toldOf(partitions []*silence.Partition) (n int) {
	for _, p := range partitions {
		n += len(p.Nodes())
	}
	return n
}

// cpuOf reads what a process has used; clock ticks are 100 a second.
func cpuOf(t *testing.T, pid int) time.Duration {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Skipf("no /proc to measure by: %v", err)
	}
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	if err1 != nil || err2 != nil {
		t.Fatalf("reading usage: %s", stat)
	}
	return time.Duration(user+system) * (time.Second / 100)
}

// feeder starts the watcher's process and returns its id once all nodes are in
// the stream.
func feeder(t *testing.T, url string) int {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFeeder$", "-test.timeout=0")
	cmd.Env = append(os.Environ(), feedURL+"="+url)
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe() // closes when this process ends in any way
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = stdin.Close(); _ = cmd.Wait() })
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if lines.Text() == "settled" {
			return cmd.Process.Pid
		}
	}
	t.Fatal("the watcher's process ended")
	return 0
}

// TestFeeder is the watcher's process of TestHeartbeatLoad.
func TestFeeder(t *testing.T) {
	url := os.Getenv(feedURL)
	if url == "" {
		t.Skip("it is a part of TestHeartbeatLoad")
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		cancel()
	}()
	reg := prometheus.NewRegistry()
	k := kindOf{
		kind: kube.Nodes, tombstones: tombstoneLife, metrics: newMetrics(reg).of(kube.Nodes),
		status: &kindStatus{kind: kube.Nodes}, beats: newBeats(reg),
	}
	k.status.take(7)
	b := bustest.Connect(t, loadBus(url), "watcher")
	o := newOwner(k, &fakeGrant{epoch: 7}, b, &loadServer{}, slog.New(slog.DiscardHandler), func(error) {})
	go func() {
		for range time.Tick(100 * time.Millisecond) {
			k.status.mu.Lock()
			objects, dirty := k.status.objects, k.status.dirty
			k.status.mu.Unlock()
			if objects == uint64(loadNodes) && dirty == 0 { //nolint:gosec // positive
				fmt.Println("settled") //nolint:forbidigo // to the parent
				return
			}
		}
	}()
	_ = o.run(ctx)
}

// loadServer plays the two watches: lists, then a stream of changes, each decoded
// from its bytes as the real one is.
type loadServer struct{}

func (*loadServer) Get(context.Context, event.Kind, bool, event.Key) (kube.Object, error) {
	return kube.Object{}, kube.ErrNotFound
}

func (*loadServer) Answers(context.Context) error { return nil }

func (*loadServer) Watch(kind event.Kind, _ string, _ bool, events kube.Events) watch {
	if kind == heartbeats {
		return &loadWatch{events: events, perSecond: loadLeases, object: loadLease}
	}
	return &loadWatch{events: events, perSecond: loadStatus, object: loadNode}
}

type loadWatch struct {
	events    kube.Events
	perSecond int
	object    func(i int, at time.Time) []byte
	listed    atomic.Bool
}

func (*loadWatch) Relist()            {}
func (*loadWatch) Absent() bool       { return false }
func (w *loadWatch) Proof() time.Time { return time.Now() }

func (w *loadWatch) Alive(time.Time) (bool, string) { return w.listed.Load(), "not listed" }

// Run spreads the changes over every millisecond, as a network does.
func (w *loadWatch) Run(ctx context.Context) error {
	list := make([]kube.Object, loadNodes)
	for i := range list {
		list[i] = w.decode(w.object(i, time.Now()), uint64(i)+1)
	}
	w.events.Replaced(uint64(loadNodes), list) //nolint:gosec // positive
	w.listed.Store(true)
	began, sent := time.Now(), 0
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case now := <-ticker.C:
			for due := int(now.Sub(began).Seconds() * float64(w.perSecond)); sent < due; sent++ {
				w.events.Changed(w.decode(w.object(sent%loadNodes, now), uint64(loadNodes+sent+1)), false)
			}
		}
	}
}

func (w *loadWatch) decode(body []byte, version uint64) kube.Object {
	var raw interface {
		metav1.Object
		Unmarshal([]byte) error
	} = &corev1.Node{}
	if w.perSecond == loadLeases {
		raw = &coordinationv1.Lease{}
	}
	if err := raw.Unmarshal(body); err != nil {
		panic(err)
	}
	o := kube.Object{
		Key: event.Key{Namespace: raw.GetNamespace(), Name: raw.GetName()}, UID: string(raw.GetUID()),
		Version: version, Observed: time.Now(),
	}
	switch raw := raw.(type) {
	case *corev1.Node:
		o.Raw = raw
	case *coordinationv1.Lease:
		o.Raw = raw
	}
	return o
}

func loadMeta(i int) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: fmt.Sprintf("ip-10-%03d-%03d-%03d.eu-central-1.compute.internal", i>>16, i>>8&255, i&255),
		UID:  types.UID(fmt.Sprintf("6b2f7a1c-%04x-4e0d-9a3b-%012x", i&0xffff, i)),
		ManagedFields: []metav1.ManagedFieldsEntry{{
			Manager: "kubelet", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1",
			FieldsV1: metav1.NewFieldsV1(strings.Repeat("f:spec ", 40)),
		}},
	}
}

func loadLease(i int, at time.Time) []byte {
	renewed, seconds := metav1.NewMicroTime(at), int32(40)
	l := coordinationv1.Lease{ObjectMeta: loadMeta(i), Spec: coordinationv1.LeaseSpec{RenewTime: &renewed, LeaseDurationSeconds: &seconds}}
	l.Namespace, l.Spec.HolderIdentity = leaseNamespace, &l.Name
	body, err := l.Marshal()
	if err != nil {
		panic(err)
	}
	return body
}

// loadNode is about 5 kB, most of it images.
func loadNode(i int, at time.Time) []byte {
	n := corev1.Node{ObjectMeta: loadMeta(i)}
	for _, c := range []corev1.NodeConditionType{corev1.NodeReady, corev1.NodeMemoryPressure, corev1.NodeDiskPressure, corev1.NodePIDPressure} {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: c, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: metav1.NewTime(at), LastTransitionTime: metav1.Unix(1, 0),
		})
	}
	for image := range 30 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{
			Names: []string{fmt.Sprintf("registry.example/app-%d@sha256:%064d", image, image), fmt.Sprintf("registry.example/app-%d:v1.2.3", image)}, SizeBytes: 1 << 26,
		})
	}
	body, err := n.Marshal()
	if err != nil {
		panic(err)
	}
	return body
}
