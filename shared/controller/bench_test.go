package controller

import (
	"context"
	"fmt"
	"testing"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller/controllertest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

type idle struct{}

func (idle) Reconcile(context.Context, event.Key) (Result, error) { return Result{}, nil }

// One change on its way through cache, mapping, queue, gate and an idle
// reconcile, on one goroutine.
func BenchmarkMessageToReconcile(b *testing.B) {
	for _, keys := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("%d keys", keys), func(b *testing.B) { benchMessages(b, keys) })
	}
}

func benchMessages(b *testing.B, keys int) {
	obj := any("object")
	c, err := New(Default(), Definition{
		Role: "bench", By: protocol.ByNamespace,
		Inputs: []cache.Input{{Kind: things, Decode: func(event.Message) (any, error) { return obj, nil }}},
		Keys:   func(_ *Partition, c cache.Change) []event.Key { return []event.Key{c.Key} },
		All:    func(*Partition) []event.Key { return nil },
		New:    func(*Partition) Reconciler { return idle{} },
	}, controllertest.New(1), nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer c.work.close()
	g := &benchGrant{}
	p := newPartition(b.Context(), c, g)
	p.feed.Begin(1)
	p.feed.Deliver(event.Message{Kind: things, Op: event.Bookmark, Seq: 1, Mark: &event.Mark{}})
	p.open(0)
	names := make([]event.Key, keys)
	for i := range names {
		names[i] = event.Key{Namespace: "ns", Name: fmt.Sprint("thing-", i)}
	}
	seq := uint64(1)
	b.ReportAllocs()
	for b.Loop() {
		seq++
		p.feed.Deliver(event.Message{Kind: things, Key: names[seq%uint64(keys)], Op: event.Put, UID: "u", Version: seq, Seq: seq})
		i, _ := c.work.get()
		if i.p.admit(i.key) {
			i.p.run(i.key)
			i.p.leave()
		}
		c.work.done(i)
	}
	if n := p.reconciles.Load(); n < uint64(b.N) {
		b.Errorf("%d reconciles of %d messages", n, b.N)
	}
}

type benchGrant struct{}

func (*benchGrant) Index() int                { return 0 }
func (*benchGrant) Epoch() uint64             { return 1 }
func (*benchGrant) Member() string            { return "m1" }
func (*benchGrant) Valid() error              { return nil }
func (*benchGrant) Draining() <-chan struct{} { return nil }
