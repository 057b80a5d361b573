package roletest

import (
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Object is a pointer to an API object.
type Object interface {
	runtime.Object
	metav1.Object
}

// World is what one member of a role that is partitioned by key has been told: the
// wide inputs whole, and of the others each of its partitions its own. It is safe
// for concurrent use.
type World struct {
	wide     *cache.Cache
	parts    []*Partition
	versions map[event.Kind]uint32 // of the projection

	mu  sync.Mutex
	seq uint64
}

// NewWorld returns a world of which nothing has been told.
func NewWorld(partitions int, inputs, wide []cache.Input) *World {
	w := &World{versions: map[event.Kind]uint32{}}
	for _, in := range append(append([]cache.Input{}, inputs...), wide...) {
		w.versions[in.Kind] = in.Projection
	}
	w.wide = cache.New(protocol.Scope{By: protocol.Whole, Partitions: partitions}, wide, nil, func(c cache.Change) {
		for _, p := range w.parts {
			p.note(c)
		}
	})
	w.wide.Begin(1)
	for i := range partitions {
		p := &Partition{number: i, wide: w.wide, live: map[event.Key]bool{}, modes: map[string]string{}, Time: time.Now}
		p.own = cache.New(protocol.Scope{By: protocol.ByKey, Partition: i, Partitions: partitions}, inputs, nil, p.note)
		p.own.Begin(1)
		w.parts = append(w.parts, p)
	}
	return w
}

// Partition returns one partition.
func (w *World) Partition(i int) *Partition { return w.parts[i] }

// Put tells of objects as the watcher publishes them.
func (w *World) Put(t testing.TB, objects ...Object) {
	t.Helper()
	for _, obj := range objects {
		obj, _ := obj.DeepCopyObject().(Object)
		m := w.message(t, obj, event.Put)
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

// Drop tells that objects are gone.
func (w *World) Drop(t testing.TB, objects ...Object) {
	t.Helper()
	for _, obj := range objects {
		w.deliver(w.message(t, obj, event.Delete))
	}
}

// Hide tells of objects that could not be carried.
func (w *World) Hide(t testing.TB, objects ...Object) {
	t.Helper()
	for _, obj := range objects {
		w.deliver(w.message(t, obj, event.Opaque))
	}
}

func (w *World) message(t testing.TB, obj Object, op event.Op) event.Message {
	t.Helper()
	kind := kindOf(t, obj)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seq++
	return event.Message{
		Kind: kind, Key: event.Key{Namespace: obj.GetNamespace(), Name: obj.GetName()}, Version: w.seq + 1<<40,
		Seq: w.seq, Op: op, UID: string(obj.GetUID()), Epoch: 1, Projection: w.versions[kind],
	}
}

func (w *World) deliver(m event.Message) {
	if w.wide.Has(m.Kind) {
		w.wide.Deliver(m)
		return
	}
	w.parts[partition.OfKey(m.Key, len(w.parts))].own.Deliver(m)
}

// kindOf names the kind of an object: pods, endpointslices.discovery.k8s.io.
func kindOf(t testing.TB, obj Object) event.Kind {
	t.Helper()
	kinds, _, err := scheme.Scheme.ObjectKinds(obj)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.ToLower(kinds[0].Kind) + "s"
	if kinds[0].Group != "" {
		name += "." + kinds[0].Group
	}
	return event.Kind(name)
}
