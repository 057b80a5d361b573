package watcher

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/partition"
)

const (
	testKind       event.Kind = "pods"
	testPartitions int        = 4
)

// fakeStream is a last-value stream with compare-and-set.
type fakeStream struct {
	mu       sync.Mutex
	seq      uint64
	last     map[string]event.Message
	sinks    []chan event.Message
	state    bus.State
	changes  []chan struct{}
	answers  map[string]func([]byte) []byte
	letters  map[event.Key]string
	digests  map[int][]byte  // the last ones
	sent     []event.Message // every message stored, in order
	ttl      map[event.Key]time.Duration
	attempts int
	gap      chan struct{}
	// judge decides what the bus says of a publication: stored, and the error.
	judge func(p bus.Publication) (stored bool, err error)
}

func newFakeStream() *fakeStream {
	return &fakeStream{
		seq: 1000, last: map[string]event.Message{}, answers: map[string]func([]byte) []byte{},
		letters: map[event.Key]string{}, state: bus.State{Connected: true, Generation: 1},
		digests: map[int][]byte{},
		ttl:     map[event.Key]time.Duration{}, gap: make(chan struct{}, 1),
	}
}

func (f *fakeStream) Root() string    { return "k8s.test" }
func (f *fakeStream) Cluster() string { return "test" }
func (f *fakeStream) Partitions() int { return testPartitions }

func (f *fakeStream) State() bus.State {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.state
}

func (f *fakeStream) Changes() (<-chan struct{}, func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	ch := make(chan struct{}, 1)
	f.changes = append(f.changes, ch)
	return ch, func() {}
}

// reconnect is another connection, perhaps to a server that holds less.
func (f *fakeStream) reconnect(change func(last map[string]event.Message)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(f.last)
	f.state.Generation++
	for _, ch := range f.changes {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

func (f *fakeStream) subject(m event.Message) string {
	if m.Op == event.Bookmark {
		return event.BookmarkSubject(f.Root(), m.Kind, m.Slice)
	}
	return f.place(m.Key)
}

func (f *fakeStream) place(key event.Key) string {
	return event.Subject(f.Root(), testKind, key, partition.OfKey(key, testPartitions), partition.OfNamespace(key, testPartitions))
}

// tries returns how many publications were attempted.
func (f *fakeStream) tries() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.attempts
}

func (f *fakeStream) Publish(p bus.Publication, done func(uint64, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attempts++
	store, err := true, error(nil)
	if f.judge != nil {
		store, err = f.judge(p)
	}
	if store && f.last[f.subject(p.Message)].Seq != p.Expect {
		store, err = false, bus.ErrRefused
	}
	var seq uint64
	if store {
		seq = f.store(p.Message)
		f.ttl[p.Message.Key] = p.TTL
	}
	go func() {
		time.Sleep(time.Millisecond)
		if err != nil {
			seq = 0
		}
		done(seq, err)
	}()
}

// store writes without a question; f.mu is held.
func (f *fakeStream) store(m event.Message) uint64 {
	f.seq++
	m.Kind, m.Seq = testKind, f.seq
	f.last[f.subject(m)] = m
	f.sent = append(f.sent, m)
	for _, sink := range f.sinks {
		sink <- m
	}
	return f.seq
}

// put is a write of somebody else.
func (f *fakeStream) put(m event.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.store(m)
}

func (f *fakeStream) Last(_ context.Context, _ event.Kind, key event.Key) (event.Message, error) {
	return f.at(f.place(key))
}

func (f *fakeStream) LastMark(_ context.Context, kind event.Kind, slice int) (event.Message, error) {
	return f.at(event.BookmarkSubject(f.Root(), kind, slice))
}

func (f *fakeStream) at(subject string) (event.Message, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m, ok := f.last[subject]
	if !ok {
		return m, bus.ErrNone
	}
	return m, nil
}

func (f *fakeStream) all() []event.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []event.Message
	for _, m := range f.last {
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b event.Message) int { return int(a.Seq) - int(b.Seq) })
	return all
}

func (f *fakeStream) Snapshot(_ context.Context, _ event.Kind, fn func(event.Message)) error {
	for _, m := range f.all() {
		m.Body, m.Mark = nil, nil
		fn(m)
	}
	return nil
}

func (f *fakeStream) Follow(ctx context.Context, _ event.Feed, sink event.Sink, _ <-chan struct{}) error {
	in := make(chan event.Message, 10000)
	f.mu.Lock()
	f.sinks = append(f.sinks, in)
	f.mu.Unlock()
	sink.Begin(1)
	for {
		select {
		case m := <-in:
			m.Body, m.Mark = nil, nil
			sink.Deliver(m)
		case <-f.gap:
			sink.Gap("test")
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (f *fakeStream) Answer(subject string, fn func([]byte) []byte) (func(), error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.answers[subject] = fn
	return func() {}, nil
}

func (f *fakeStream) ask(what, data string) string {
	return string(f.answers[askSubject("test", testKind, what)]([]byte(data)))
}

func (f *fakeStream) PublishDigest(slice int, body []byte, done func(uint64, error)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.digests[slice] = body
	f.seq++
	go done(f.seq, nil)
}

func (f *fakeStream) LastDigest(_ context.Context, slice int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if body, ok := f.digests[slice]; ok {
		return body, nil
	}
	return nil, bus.ErrNone
}

func (f *fakeStream) DeadLetter(_ context.Context, l *millracev1.DeadLetter) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.letters[event.Key{Namespace: l.GetNamespace(), Name: l.GetName()}] = l.GetReason()
	return nil
}

func (f *fakeStream) ClearDeadLetter(_ context.Context, _ string, _ event.Kind, key event.Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.letters, key)
	return nil
}

// marks returns the bookmarks sent so far.
func (f *fakeStream) marks() (marks []event.Message) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.sent {
		if m.Op == event.Bookmark {
			marks = append(marks, m)
		}
	}
	return marks
}

// live returns what the stream says exists, as "name@version".
func (f *fakeStream) live() string {
	var names []string
	for _, m := range f.all() {
		if m.Op.Live() {
			names = append(names, fmt.Sprintf("%s@%d", m.Key.Name, m.Version))
		}
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// fakeServer is an API server whose events the test makes up.
type fakeServer struct {
	mu      sync.Mutex
	events  kube.Events
	leases  kube.Events
	proof   time.Time // zero: the server proves to live at every moment
	alive   bool
	mute    chan struct{} // questions are answered when it is closed; nil: at once
	absent  bool
	relists int
	gets    int
	objects map[event.Key]kube.Object
	version uint64
}

func (f *fakeServer) Watch(kind event.Kind, _ string, _ bool, events kube.Events) watch {
	if kind == heartbeats {
		f.set(func() { f.leases = events })
		return f
	}
	f.set(func() { f.events = events })
	return f
}

func (f *fakeServer) Proof() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.proof.IsZero() {
		return f.proof
	}
	return time.Now()
}

func (f *fakeServer) Answers(ctx context.Context) error {
	f.mu.Lock()
	mute := f.mute
	f.mu.Unlock()
	if mute == nil {
		return nil
	}
	select {
	case <-mute:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *fakeServer) Get(_ context.Context, _ event.Kind, _ bool, key event.Key) (kube.Object, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.gets++
	if o, ok := f.objects[key]; ok {
		return o, nil
	}
	return kube.Object{}, kube.ErrNotFound
}

func (f *fakeServer) Run(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }

func (f *fakeServer) Relist() {
	f.mu.Lock()
	f.relists++
	f.mu.Unlock()
	go f.list()
}

func (f *fakeServer) Alive(time.Time) (bool, string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.alive, "told to be dead"
}

func (f *fakeServer) Absent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.absent
}

func (f *fakeServer) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// list delivers everything there is.
func (f *fakeServer) list() {
	f.mu.Lock()
	var objects []kube.Object
	for _, o := range f.objects {
		objects = append(objects, o)
	}
	version := f.version
	f.alive, f.absent = true, false
	f.mu.Unlock()
	f.events.Replaced(version, objects)
}

// pod makes or changes a pod, without an event.
func (f *fakeServer) pod(name, label string) kube.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o := kube.Object{
		Key: event.Key{Namespace: "ns-" + name, Name: name}, UID: "uid-" + name, Version: f.version, Observed: time.Now(),
		Raw: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns-" + name, Name: name, UID: types.UID("uid-" + name),
			ResourceVersion: fmt.Sprint(f.version), Labels: map[string]string{"l": label},
		}},
	}
	f.objects[o.Key] = o
	return o
}

func (f *fakeServer) remove(name string) kube.Object {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.version++
	o := f.objects[event.Key{Namespace: "ns-" + name, Name: name}]
	delete(f.objects, o.Key)
	o.Version = f.version
	return o
}

// change makes or changes a pod, and tells.
func (f *fakeServer) change(name, label string) { f.events.Changed(f.pod(name, label), false) }

// fakeGrant is a right that the test takes away.
type fakeGrant struct {
	epoch    uint64
	mu       sync.Mutex
	err      error
	draining chan struct{}
}

func (g *fakeGrant) Epoch() uint64             { return g.epoch }
func (g *fakeGrant) Draining() <-chan struct{} { return g.draining }

func (g *fakeGrant) Valid() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func (g *fakeGrant) lose(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.err = err
}

// rig is one owner with everything around it made up.
type rig struct {
	released atomic.Bool // publish has returned
	t        *testing.T
	bus      *fakeStream
	api      *fakeServer
	grant    *fakeGrant
	owner    *owner
	ended    chan error
	cancel   context.CancelFunc
}

func newRig(t *testing.T) *rig {
	r := &rig{
		t: t, bus: newFakeStream(), grant: &fakeGrant{epoch: 7, draining: make(chan struct{})}, ended: make(chan error, 1),
		api: &fakeServer{objects: map[event.Key]kube.Object{}, version: 100},
	}
	k := kindOf{kind: testKind, tombstones: tombstoneLife, metrics: newMetrics(prometheus.NewRegistry()).of(testKind), status: &kindStatus{kind: testKind, held: true}}
	r.owner = newOwner(k, r.grant, r.bus, r.api, slog.New(slog.DiscardHandler), func(error) {})
	return r
}

// start runs the owner up to the point where it waits for a list.
func (r *rig) start() {
	ctx, cancel := context.WithCancel(r.t.Context())
	r.cancel = cancel
	go func() { r.ended <- r.owner.run(ctx) }()
	synctest.Wait()
}

func (r *rig) stop() {
	r.cancel()
	_ = r.wait()
}

// wait waits for the end of the run, and of what the fakes have under way.
func (r *rig) wait() error {
	err := <-r.ended
	time.Sleep(10 * time.Millisecond)
	return err
}

// after lets time pass.
func (r *rig) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// valueOf reads a counter or a gauge.
func valueOf(m prometheus.Metric) float64 {
	var out dto.Metric
	if err := m.Write(&out); err != nil {
		return -1
	}
	if out.GetCounter() != nil {
		return out.GetCounter().GetValue()
	}
	return out.GetGauge().GetValue()
}
