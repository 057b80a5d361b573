package bus_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
)

// load is a pod as the watcher publishes it: 2 KB of body and every header.
func load(i int, version uint64) event.Message {
	now := time.Now()
	return event.Message{
		Kind: "pods", Key: event.Key{Namespace: fmt.Sprint("ns-", i%97), Name: fmt.Sprint("web-7d4b9c6f5d-", i)}, Op: event.Put,
		UID: "7b0e2c1a-3f1d-4c55-9d0e-3a1f5b6c7d8e", Version: version, Upto: version, Epoch: 1764493200000000,
		Hash: 0x9e3779b97f4a7c15, Projection: 1, Observed: now, Committed: now, Body: body,
	}
}

var body = func() []byte {
	b := make([]byte, 2048)
	for i := range b {
		b[i] = "abcdefghijklmnop/:{}\"0123456789"[(i*7+i/13)%31]
	}
	return b
}()

// fill publishes n keys, 256 at a time under way.
func fill(tb testing.TB, b *bus.Bus, n int) {
	tb.Helper()
	var failed atomic.Value
	var all sync.WaitGroup
	slots := make(chan struct{}, 256)
	for i := range n {
		slots <- struct{}{}
		all.Add(1)
		b.Publish(publication(b, load(i, 1), 0), func(_ uint64, err error) {
			if err != nil {
				failed.Store(err)
			}
			<-slots
			all.Done()
		})
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		tb.Fatal(err)
	}
}

// The server runs in a process of its own, as it does in production.
func benchBus(b *testing.B) (*bus.Bus, bus.Config) {
	cfg := bustest.StartProcess(b).Config()
	cfg.MaxBytes = 4 << 30
	return bustest.Connect(b, cfg, "bench"), cfg
}

// BenchmarkPublish: conditional, 256 under way, 5 000 keys, one message each at
// a time, as the watcher does.
func BenchmarkPublish(b *testing.B) {
	c, _ := benchBus(b)
	const keys = 5000
	var seqs [keys]atomic.Uint64
	slots := make(chan struct{}, 256)
	var failed atomic.Int64
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		k := i % keys
		slots <- struct{}{}
		c.Publish(publication(c, load(k, uint64(i+1)), seqs[k].Load()), func(seq uint64, err error) {
			if err != nil {
				failed.Add(1)
			}
			seqs[k].Store(seq)
			<-slots
		})
	}
	for range cap(slots) {
		slots <- struct{}{}
	}
	b.StopTimer()
	if n := failed.Load(); n > 0 {
		b.Fatalf("%d publications failed", n)
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkFeed: the replay of 50 000 pods, decoded.
func BenchmarkFeed(b *testing.B) {
	c, _ := benchBus(b)
	const keys = 50_000
	fill(b, c, keys)
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(context.Background())
		sink := &counter{want: keys, done: cancel}
		_ = c.Follow(ctx, bus.Feed{Name: "bench", Filters: []string{event.KindFilter(c.Root(), "pods")}}, sink, nil)
		if sink.n != keys {
			b.Fatalf("%d messages came", sink.n)
		}
	}
	b.ReportMetric(float64(keys)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

type counter struct {
	n, want int
	done    func()
}

func (c *counter) Begin(uint64) { c.n = 0 }
func (c *counter) Deliver(event.Message) {
	if c.n++; c.n == c.want {
		c.done()
	}
}
func (c *counter) Broken(string, uint64, error) {}
func (c *counter) Gap(string)                   {}

// BenchmarkSnapshot: the headers of 50 000 pods.
func BenchmarkSnapshot(b *testing.B) {
	c, _ := benchBus(b)
	const keys = 50_000
	fill(b, c, keys)
	b.ReportAllocs()
	for b.Loop() {
		n := 0
		if err := c.Snapshot(context.Background(), "pods", func(event.Message) { n++ }); err != nil || n != keys {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(keys)*float64(b.N)/b.Elapsed().Seconds(), "msg/s")
}

// BenchmarkKVPut: one writer renews one lease.
func BenchmarkKVPut(b *testing.B) {
	c, _ := benchBus(b)
	kv := c.KV(bus.Own)
	rev, err := kv.Put(context.Background(), "m.1", body[:100], 0, 6*time.Second)
	b.ReportAllocs()
	for b.Loop() {
		if err != nil {
			b.Fatal(err)
		}
		rev, err = kv.Put(context.Background(), "m.1", body[:100], rev, 6*time.Second)
	}
}

// BenchmarkLive: from Publish to Deliver, one message at a time.
func BenchmarkLive(b *testing.B) {
	c, cfg := benchBus(b)
	reader := bustest.Connect(b, cfg, "reader")
	got := make(chan struct{}, 1)
	ready := make(chan struct{})
	sink := &pulse{ready: ready, got: got}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = reader.Follow(ctx, bus.Feed{Name: "bench", Filters: []string{event.KindFilter(c.Root(), "pods")}}, sink, nil)
	}()
	defer func() { cancel(); <-done }()
	<-ready
	seqs := make(chan uint64, 1)
	seq := uint64(0)
	for b.Loop() {
		c.Publish(publication(c, load(1, seq+1), seq), func(s uint64, err error) {
			if err != nil {
				b.Error(err)
			}
			seqs <- s
		})
		<-got
		seq = <-seqs
	}
}

type pulse struct{ ready, got chan struct{} }

func (p *pulse) Begin(uint64)                 { close(p.ready) }
func (p *pulse) Deliver(event.Message)        { p.got <- struct{}{} }
func (p *pulse) Broken(string, uint64, error) {}
func (p *pulse) Gap(string)                   {}
