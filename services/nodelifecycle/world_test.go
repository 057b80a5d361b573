package nodelifecycle

import (
	"context"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/protocol"
)

// object is a pointer to an API object.
type object interface {
	runtime.Object
	metav1.Object
}

// world is what one member has been told: all nodes, and the pods of each of its
// partitions.
type world struct {
	wide  *cache.Cache
	parts []*fakePartition

	mu  sync.Mutex
	seq uint64
}

func newWorld(partitions int) *world {
	w := &world{}
	w.wide = cache.New(protocol.Scope{By: protocol.Whole, Partitions: partitions}, wideInputs(), nil, func(c cache.Change) {
		for _, p := range w.parts {
			p.note(c)
		}
	})
	w.wide.Begin(1)
	for i := range partitions {
		p := &fakePartition{number: i, wide: w.wide, live: map[event.Key]bool{}, now: time.Now}
		p.own = cache.New(protocol.Scope{By: protocol.ByKey, Partition: i, Partitions: partitions}, partitionInputs(), nil, p.note)
		p.own.Begin(1)
		w.parts = append(w.parts, p)
	}
	return w
}

func (w *world) partition(i int) *fakePartition { return w.parts[i] }

// put tells of objects as the watcher publishes them.
func (w *world) put(t testing.TB, objects ...object) {
	t.Helper()
	for _, obj := range objects {
		obj, _ := obj.DeepCopyObject().(object)
		m := w.message(obj, event.Put)
		if version, err := strconv.ParseUint(obj.GetResourceVersion(), 10, 64); err == nil {
			m.Version = version
		}
		obj.SetResourceVersion("")
		obj.SetManagedFields(nil)
		body, err := kube.Encode(obj)
		if err != nil {
			t.Fatal(err)
		}
		m.Body, m.Hash = body, event.HashBody(body)
		w.deliver(m)
	}
}

// drop tells that objects are gone.
func (w *world) drop(objects ...object) {
	for _, obj := range objects {
		w.deliver(w.message(obj, event.Delete))
	}
}

func (w *world) message(obj object, op event.Op) event.Message {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	kind := nodes
	if _, is := obj.(*corev1.Pod); is {
		kind = pods
	}
	return event.Message{
		Kind: kind, Key: event.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}, Version: w.seq + 1<<40,
		Seq: w.seq, Op: op, UID: string(obj.GetUID()), Epoch: 1, Projection: projection,
	}
}

func (w *world) deliver(m event.Message) {
	if m.Kind == nodes {
		w.wide.Deliver(m)
		return
	}
	w.parts[partition.OfKey(m.Key, len(w.parts))].own.Deliver(m)
}

// fakePartition is a partition whose inputs are complete, fresh and ours unless a
// test says otherwise.
type fakePartition struct {
	number    int
	own, wide *cache.Cache
	now       func() time.Time
	onChange  func(c cache.Change) // as well as to be noted; may be nil
	onWake    func(key event.Key)  // as well as to be noted; may be nil

	mu      sync.Mutex
	changes []cache.Change
	refuse  func(d controller.Danger) error
	live    map[event.Key]bool // as the frame's LiveFirst
	woken   []event.Key
	told    []controller.Decision
	shadow  bool
}

func (p *fakePartition) note(c cache.Change) {
	p.mu.Lock()
	p.changes = append(p.changes, c)
	p.mu.Unlock()
	if p.onChange != nil {
		p.onChange(c)
	}
}

func (p *fakePartition) View(fn func(r controller.Reader)) { cache.View(fn, p.own, p.wide) }
func (p *fakePartition) Number() int                       { return p.number }
func (p *fakePartition) Now() (time.Time, error)           { return p.now(), nil }

func (p *fakePartition) Shadow() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.shadow
}

func (p *fakePartition) Guard(ctx context.Context, key event.Key, d controller.Danger) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case p.refuse != nil && p.refuse(d) != nil:
		return p.refuse(d)
	case p.live[key]:
		return controller.ErrLiveFirst
	case p.shadow:
		return controller.ErrShadow
	}
	return nil
}

// refuses makes the frame refuse; nil ends that.
func (p *fakePartition) refuses(refuse func(d controller.Danger) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = refuse
}

func (p *fakePartition) LiveFirst(key event.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live[key]
}

func (p *fakePartition) mustReadLive(key event.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.live[key] = true
}

func (p *fakePartition) ReadLive(key event.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.live, key)
}

func (p *fakePartition) Wrote(event.Key, protocol.Write) {}

func (p *fakePartition) Record(_ event.Key, d controller.Decision) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, d)
}

func (p *fakePartition) Wake(key event.Key) {
	p.mu.Lock()
	p.woken = append(p.woken, key)
	p.mu.Unlock()
	if p.onWake != nil {
		p.onWake(key)
	}
}

// wakes returns the keys woken since the last call.
func (p *fakePartition) wakes() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	woken := p.woken
	p.woken = nil
	return listKeys(woken)
}

// rules returns the rules of the writes since the last call, those refused by the
// server with their class.
func (p *fakePartition) rules() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []string
	for _, d := range p.told {
		text := d.Rule
		if d.Shadow {
			text += "(intended)"
		}
		if d.Err != nil {
			text += "(" + d.Class + ")"
		}
		out = append(out, text)
	}
	p.told = nil
	return strings.Join(out, " ")
}

// replace puts something in the place of an unexported field of another room: a
// clock that reads a system call, which testing/synctest cannot replace.
func replace(of any, field string, with any) {
	v := reflect.ValueOf(of).Elem().FieldByName(field)
	reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem().Set(reflect.ValueOf(with))
}

// memory is a facts.Store that any number of members share. What one of them
// writes comes to each follower a while later, in order.
type memory struct {
	delay func() time.Duration // nil: at once

	mu        sync.Mutex
	rev       uint64
	values    map[string]stored
	followers []chan told
	down      error // what every call says; nil: it works
}

type stored struct {
	value []byte
	rev   uint64
}

type told struct {
	key string
	stored
	deleted bool
	at      time.Time
}

func newMemory() *memory { return &memory{values: map[string]stored{}} }

func (m *memory) Get(_ context.Context, key string) ([]byte, uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, has := m.values[key]
	switch {
	case m.down != nil:
		return nil, 0, m.down
	case !has:
		return nil, 0, event.ErrNone
	}
	return s.value, s.rev, nil
}

func (m *memory) Put(_ context.Context, key string, value []byte, expect uint64, _ time.Duration) (uint64, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.down != nil:
		return 0, m.down
	case m.values[key].rev != expect:
		return 0, event.ErrRefused
	}
	m.rev++
	s := stored{value, m.rev}
	m.values[key] = s
	m.tell(told{key: key, stored: s})
	return m.rev, nil
}

func (m *memory) Delete(_ context.Context, key string, expect uint64) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.down != nil:
		return m.down
	case m.values[key].rev != expect:
		return event.ErrRefused
	}
	delete(m.values, key)
	m.rev++
	m.tell(told{key: key, stored: stored{rev: m.rev}, deleted: true})
	return nil
}

// tell queues what has changed for each follower. m.mu is held.
func (m *memory) tell(x told) {
	for _, f := range m.followers {
		x.at = time.Now()
		if m.delay != nil {
			x.at = x.at.Add(m.delay())
		}
		f <- x // it has room for all that a test writes
	}
}

// Follow implements facts.Store for a filter of one topic, "topic.>".
func (m *memory) Follow(ctx context.Context, filter string, sink event.EntrySink) error {
	prefix := strings.TrimSuffix(filter, ">")
	feed := make(chan told, 10000)
	m.mu.Lock()
	first := maps.Clone(m.values)
	m.followers = append(m.followers, feed)
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.followers = slices.DeleteFunc(m.followers, func(f chan told) bool { return f == feed })
	}()
	sink.Begin(1)
	for key, s := range first {
		if strings.HasPrefix(key, prefix) {
			sink.Entry(key, s.value, s.rev, false)
		}
	}
	sink.Caught()
	for {
		select {
		case x := <-feed:
			if !sleep(ctx, time.Until(x.at)) {
				return ctx.Err()
			}
			if strings.HasPrefix(x.key, prefix) {
				sink.Entry(x.key, x.value, x.rev, x.deleted)
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// sleep waits, unless ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// field returns an unexported field of another room, a pointer.
func field(of any, name string) any {
	v := reflect.ValueOf(of).Elem().FieldByName(name)
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem().Interface()
}
