package watcher

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// onRealNATS starts owners of kinds on a real server, with API servers that are
// made up, and lists to each.
func onRealNATS(b *testing.B, partitions int, kinds ...event.Kind) (owners []*owner, servers []*fakeServer) {
	b.Helper()
	cfg := bustest.Start(b).Config()
	cfg.Partitions = partitions
	events := bustest.Connect(b, cfg, "bench")
	m := newMetrics(prometheus.NewRegistry())
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	for _, kind := range kinds {
		api := &fakeServer{objects: map[event.Key]kube.Object{}, version: 100}
		k := kindOf{kind: kind, tombstones: tombstoneLife, metrics: m.of(kind), status: &kindStatus{kind: kind}}
		o := newOwner(k, &fakeGrant{epoch: 7}, events, api, slog.New(slog.DiscardHandler), func(error) {})
		tasks.Go(func() { _ = o.run(ctx) })
		owners, servers = append(owners, o), append(servers, api)
	}
	b.Cleanup(func() { cancel(); tasks.Wait() })
	for i, api := range servers {
		for ready := false; !ready; time.Sleep(time.Millisecond) {
			api.set(func() { ready = api.events != nil })
		}
		api.list()
		settle(owners[i])
	}
	return owners, servers
}

// settle waits until everything is acknowledged.
func settle(o *owner) {
	for dirty := 1; dirty > 0; {
		told := make(chan int)
		o.send(func() { told <- o.pub.Dirty() })
		dirty = <-told
	}
}

// BenchmarkPublish is the whole path of one changed pod: projected, encoded,
// judged, published by compare-and-set into a file store, acknowledged, and
// heard of again by the owner's follower. Server and client share the machine.
func BenchmarkPublish(b *testing.B) {
	owners, _ := onRealNATS(b, 32, "pods")
	o := owners[0]
	const keys = 2000
	template := benchPod()
	version := uint64(1000)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		version++
		pod := *template
		pod.Name, pod.Labels = fmt.Sprintf("pod-%d", i%keys), map[string]string{"i": fmt.Sprint(i)}
		o.Changed(kube.Object{
			Key: event.Key{Namespace: "n", Name: pod.Name}, UID: pod.Name, Version: version, Raw: &pod, Observed: time.Now(),
		}, false)
	}
	settle(o)
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(valueOf(o.metrics.results[resultPublished])/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkIdle is what 20 kinds cost when nothing happens: bookmarks only.
// Server and watcher are one process here.
func BenchmarkIdle(b *testing.B) {
	for _, partitions := range []int{32, 256} {
		b.Run(fmt.Sprintf("partitions=%d", partitions), func(b *testing.B) {
			var kinds []event.Kind
			for i := range 20 {
				kinds = append(kinds, event.Kind(fmt.Sprintf("kind%d.example.com", i)))
			}
			owners, _ := onRealNATS(b, partitions, kinds...)
			before := cpuTime()
			b.ResetTimer()
			for range b.N {
				time.Sleep(5 * time.Second)
			}
			b.StopTimer()
			b.ReportMetric(100*(cpuTime()-before).Seconds()/b.Elapsed().Seconds(), "%core")
			var marks float64
			for _, o := range owners {
				marks += valueOf(o.metrics.bookmarks)
			}
			b.ReportMetric(marks/b.Elapsed().Seconds(), "bookmarks/s")
		})
	}
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBulk is 20 000 new pods of one namespace at once, while bookmarks go
// on, on a real server: how long until all are acknowledged.
func BenchmarkBulk(b *testing.B) {
	for b.Loop() {
		owners, _ := onRealNATS(b, 32, "pods")
		began := time.Now()
		owners[0].Replaced(300, manyPods())
		settle(owners[0])
		b.ReportMetric(time.Since(began).Seconds(), "s/20000-pods")
	}
}

// BenchmarkMemory is what a key costs at rest, by the heap: everything the
// watcher keeps of 20 000 pods. The stream takes all and keeps nothing.
func BenchmarkMemory(b *testing.B) {
	for b.Loop() {
		stream, api := newFakeStream(), &fakeServer{objects: map[event.Key]kube.Object{}, version: 100}
		stream.judge = func(bus.Publication) (bool, error) { return false, nil }
		k := kindOf{kind: testKind, metrics: newMetrics(prometheus.NewRegistry()).of(testKind), status: &kindStatus{kind: testKind}}
		o := newOwner(k, &fakeGrant{epoch: 7}, stream, api, slog.New(slog.DiscardHandler), func(error) {})
		ctx, cancel := context.WithCancel(b.Context())
		var tasks sync.WaitGroup
		tasks.Go(func() { _ = o.run(ctx) })
		for ready := false; !ready; time.Sleep(time.Millisecond) {
			api.set(func() { ready = api.events != nil })
		}
		before := heap()
		o.Replaced(300, manyPods())
		settle(o)
		b.ReportMetric(float64(heap()-before)/benchPods, "B/key")
		cancel()
		tasks.Wait()
		time.Sleep(10 * time.Millisecond)
	}
}

const benchPods = 20000

func manyPods() []kube.Object {
	list := make([]kube.Object, benchPods)
	template := benchPod()
	for i := range list {
		pod := *template
		pod.Name = fmt.Sprintf("pod-%d", i)
		list[i] = kube.Object{Key: event.Key{Namespace: "n", Name: pod.Name}, UID: pod.Name, Version: 200, Raw: &pod, Observed: time.Now()}
	}
	return list
}

// heap is what is in use after a collection.
func heap() int64 {
	runtime.GC()
	runtime.GC()
	var s runtime.MemStats
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc) //nolint:gosec // memory
}
