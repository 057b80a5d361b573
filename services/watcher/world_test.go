package watcher

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/lease"
	"github.com/millrace-io/millrace/shared/protocol"
)

// world is a real API server, a real NATS, and a reader as a controller would be.
type world struct {
	t       *testing.T
	cluster *kubetest.Cluster
	server  *bustest.Server
	ns      string
	reader  *reader
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("needs an API server")
	}
	w := &world{t: t, cluster: kubetest.Shared(t), server: bustest.Start(t)}
	w.ns = w.cluster.Namespace(t)
	b := bustest.Connect(t, w.server.Config(), "reader")
	w.reader = newReader(b)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = b.Follow(ctx, event.Feed{Name: "reader", Filters: []string{event.KindFilter(b.Root(), "pods")}}, w.reader, w.reader.again)
	}()
	t.Cleanup(func() { cancel(); <-done })
	return w
}

// member is one watcher of the world.
type member struct {
	bus   *bus.Bus
	h     *holder
	lease *lease.Lease
	stop  context.CancelFunc
	done  chan struct{}
}

// watcher starts a watcher of pods and services.
func (w *world) watcher(api *rest.Config) *member {
	w.t.Helper()
	if api == nil {
		api = w.cluster.Config(kubetest.RoleWatcher)
	}
	log := slog.New(slog.NewTextHandler(w.t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	reg := prometheus.NewRegistry()
	b, err := bus.Connect(w.t.Context(), w.server.Config(), roleName, log, reg)
	if err != nil {
		w.t.Fatal(err)
	}
	client, err := kube.ConnectTo(api, kube.Config{QPS: -1}, "millrace-watcher", log, nil)
	if err != nil {
		w.t.Fatal(err)
	}
	cfg := Kinds{Kinds: []event.Kind{"pods", "services"}}
	m0 := newMetrics(reg)
	h := &holder{
		bus: b, api: apiServer{client}, log: log, keeper: newKeeper(b, log), metrics: m0, tombstones: tombstoneLife, kinds: kindsOf(cfg, m0, reg),
	}
	m := &member{bus: b, h: h, done: make(chan struct{})}
	m.lease = lease.New(lease.Config{Role: roleName, Cluster: b.Cluster(), Units: cfg.units()}, b.KV(bus.Own), b, log, reg)
	ctx, cancel := context.WithCancel(context.Background())
	m.stop = cancel
	go h.keeper.run(ctx)
	go func() {
		defer close(m.done)
		_ = m.lease.Run(ctx, h.hold)
	}()
	w.t.Cleanup(func() { cancel(); <-m.done; b.Close() })
	return m
}

// kill takes a watcher away as SIGKILL does: it gives nothing up.
func (m *member) kill() {
	m.bus.Close()
	m.stop()
	<-m.done
}

func (m *member) holds(kind string) bool {
	return slices.Contains(m.lease.Snapshot().Mine, kind)
}

func (w *world) create(name string) {
	w.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"v": "0"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
	if _, err := w.cluster.Client().CoreV1().Pods(w.ns).Create(w.t.Context(), p, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) createMany(prefix string, n int) {
	for i := range n {
		w.create(fmt.Sprintf("%s-%03d", prefix, i))
	}
}

func (w *world) label(name, v string) {
	w.t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"v":%q}}}`, v)
	_, err := w.cluster.Client().CoreV1().Pods(w.ns).Patch(w.t.Context(), name, "application/merge-patch+json", []byte(patch), metav1.PatchOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) remove(name string) {
	w.t.Helper()
	now := int64(0)
	err := w.cluster.Client().CoreV1().Pods(w.ns).Delete(w.t.Context(), name, metav1.DeleteOptions{GracePeriodSeconds: &now})
	if err != nil {
		w.t.Fatal(err)
	}
}

// agree waits until the reader, proven complete by bookmarks, holds exactly the
// pods of the API server.
func (w *world) agree(within time.Duration) {
	w.t.Helper()
	since := w.reader.matches()
	var why string
	deadline := time.Now().Add(within)
	for time.Now().Before(deadline) {
		list, err := w.cluster.Client().CoreV1().Pods("").List(w.t.Context(), metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		if why = w.reader.differs(list.Items); why == "" && w.reader.matches() > since+w.reader.partitions {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	w.t.Fatalf("after %s the reader still differs: %s", within, why)
}

// reader is what a controller's cache does with a feed, in short.
type reader struct {
	again      chan struct{}
	partitions int

	mu      sync.Mutex
	replay  *protocol.Replay
	held    map[event.Key]event.Message
	deleted []event.Key
	matched int
	epoch   uint64
	marks   int // bookmarks of the newest epoch
	last    event.Message
}

func newReader(b *bus.Bus) *reader {
	return &reader{
		again: make(chan struct{}, 1), partitions: b.Partitions(), held: map[event.Key]event.Message{},
		replay: protocol.NewReplay(protocol.Scope{By: protocol.Whole, Partitions: b.Partitions()}, []protocol.Need{{Kind: "pods", Projection: projection}}),
	}
}

func (r *reader) Begin(uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replay.Begin()
}

func (r *reader) Deliver(m event.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if m.Op == event.Bookmark {
		if m.Epoch > r.epoch {
			r.epoch, r.marks = m.Epoch, 0
		}
		r.marks++
	}
	v := r.replay.Deliver(m)
	if v.Matched {
		r.matched++
	}
	if v.Change.Gone {
		r.deleted = append(r.deleted, v.Change.Key)
		delete(r.held, v.Change.Key)
	}
	if v.Change.Put {
		r.held[m.Key], r.last = m, m
	}
	for _, c := range v.Swept {
		delete(r.held, c.Key)
		r.deleted = append(r.deleted, c.Key)
	}
	if v.Drifted {
		select {
		case r.again <- struct{}{}:
		default:
		}
	}
}

func (r *reader) Broken(string, uint64, error) {}

func (r *reader) Gap(string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.replay.Gap()
}

func (r *reader) matches() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.matched
}

func (r *reader) lastEpoch() uint64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.epoch
}

// forgot returns, and forgets, what was deleted.
func (r *reader) forgot() []event.Key {
	r.mu.Lock()
	defer r.mu.Unlock()
	gone := r.deleted
	r.deleted = nil
	return gone
}

func (r *reader) differs(pods []corev1.Pod) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.replay.Synced("pods") {
		return "not synced"
	}
	if len(pods) != len(r.held) {
		return fmt.Sprintf("%d pods, %d held", len(pods), len(r.held))
	}
	for i := range pods {
		p := &pods[i]
		m, ok := r.held[event.Key{Namespace: p.Namespace, Name: p.Name}]
		if !ok {
			return p.Name + " is missing"
		}
		var got corev1.Pod
		if err := kube.Decode(m.Body, &got); err != nil {
			return err.Error()
		}
		if got.UID != p.UID || got.Labels["v"] != p.Labels["v"] || m.Hash != event.HashBody(m.Body) {
			return fmt.Sprintf("%s has v=%s, want v=%s", p.Name, got.Labels["v"], p.Labels["v"])
		}
	}
	return ""
}

func await(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(within)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("waited %s for %s", within, what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}
