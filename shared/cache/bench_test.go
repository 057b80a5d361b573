package cache

import (
	"fmt"
	"runtime"
	"testing"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

func benchCache(n int) (*Cache, []event.Message) {
	obj := any("object")
	c := New(protocol.Scope{By: protocol.ByNamespace, Partitions: 1}, []Input{{
		Kind: pods, Decode: func(event.Message) (any, error) { return obj, nil },
		Indexes: map[string]func(any) []string{"node": func(any) []string { return []string{"n1"} }},
	}}, nil, nil)
	c.Begin(1)
	messages := make([]event.Message, n)
	for i := range messages {
		messages[i] = event.Message{
			Kind: pods, Key: event.Key{Namespace: fmt.Sprint("ns-", i%100), Name: fmt.Sprint("pod-abcdefghij-", i)},
			Op: event.Put, UID: fmt.Sprintf("00000000-0000-0000-0000-%012d", i), Hash: uint64(i + 1),
		}
	}
	return c, messages
}

// One update of a cached, indexed object; decoding costs nothing here.
func BenchmarkDeliver(b *testing.B) {
	c, messages := benchCache(10_000)
	seq := uint64(0)
	b.ReportAllocs()
	for b.Loop() {
		seq++
		m := messages[seq%10_000]
		m.Seq, m.Version = seq, seq
		c.Deliver(m)
	}
}

// A replay that tells what is cached already.
func BenchmarkDeliverRepeated(b *testing.B) {
	c, messages := benchCache(10_000)
	for i := range messages {
		messages[i].Seq, messages[i].Version = uint64(i+1), uint64(i+1)
		c.Deliver(messages[i])
	}
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if i%10_000 == 0 {
			c.Gap("")
			c.Begin(2)
		}
		c.Deliver(messages[i%10_000])
	}
}

func BenchmarkListNamespace(b *testing.B) {
	c, messages := benchCache(10_000)
	for i := range messages {
		messages[i].Seq = uint64(i + 1)
		c.Deliver(messages[i])
	}
	b.ReportAllocs()
	for b.Loop() {
		c.View(func(r Reader) { r.List(pods, "ns-7") })
	}
}

// What an object costs besides itself, its key and its UID.
func BenchmarkOverheadPerObject(b *testing.B) {
	for b.Loop() {
		c, messages := benchCache(100_000)
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for i := range messages {
			messages[i].Seq = uint64(i + 1)
			c.Deliver(messages[i])
		}
		runtime.GC()
		runtime.ReadMemStats(&after)
		b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/100_000, "B/object")
		runtime.KeepAlive(c)
		runtime.KeepAlive(messages)
	}
}
