package bus_test

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// limit bounds whatever a test waits for. It is long, because the machine may be
// busy, and never reached where the test passes.
const limit = 30 * time.Second

func within(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	t.Cleanup(cancel)
	return ctx
}

// native is a plain client of the server, to look at and to spoil what the bus
// made.
func native(t testing.TB, url string) (*nats.Conn, jetstream.JetStream) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return nc, js
}

func pod(name string, version uint64) event.Message {
	return event.Message{
		Kind: "pods", Key: event.Key{Namespace: "ns", Name: name}, Op: event.Put,
		UID: "uid-" + name, Version: version, Body: fmt.Appendf(nil, "%s@%d", name, version),
	}
}

func publication(b *bus.Bus, m event.Message, expect uint64) bus.Publication {
	return bus.Publication{
		Message: m, Expect: expect,
		PK: partition.OfKey(m.Key, b.Partitions()), PN: partition.OfNamespace(m.Key, b.Partitions()),
	}
}

// publish sends one event and waits for what became of it.
func publish(t testing.TB, b *bus.Bus, p bus.Publication) (uint64, error) {
	t.Helper()
	type result struct {
		seq uint64
		err error
	}
	got := make(chan result, 1)
	b.Publish(p, func(seq uint64, err error) { got <- result{seq, err} })
	select {
	case r := <-got:
		return r.seq, r.err
	case <-time.After(limit):
		t.Fatal("publish was never answered")
		return 0, nil
	}
}

func mustPublish(t testing.TB, b *bus.Bus, m event.Message, expect uint64) uint64 {
	t.Helper()
	seq, err := publish(t, b, publication(b, m, expect))
	if err != nil {
		t.Fatalf("publishing %s: %v", m.Key, err)
	}
	return seq
}

// recorder is a sink that remembers, and lets a test wait for what it wants to
// see.
type recorder struct {
	mu      sync.Mutex
	changed chan struct{}
	replay  uint64
	got     []event.Message // of the current replay
	broken  []uint64
	gaps    []string
}

func newRecorder() *recorder { return &recorder{changed: make(chan struct{})} }

func (r *recorder) note(fn func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fn()
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *recorder) Begin(replay uint64) {
	r.note(func() { r.replay, r.got, r.broken = replay, nil, nil })
}
func (r *recorder) Deliver(m event.Message) { r.note(func() { r.got = append(r.got, m) }) }
func (r *recorder) Broken(_ string, seq uint64, _ error) {
	r.note(func() { r.broken = append(r.broken, seq) })
}
func (r *recorder) Gap(reason string) { r.note(func() { r.gaps = append(r.gaps, reason) }) }

// await waits until ok, which may read r's fields.
func (r *recorder) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	after := time.After(limit)
	for {
		r.mu.Lock()
		done, changed := ok(), r.changed
		r.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-after:
			r.mu.Lock()
			defer r.mu.Unlock() //nolint:gocritic // Fatalf ends the loop
			t.Fatalf("waited in vain for %s; replay %d, %d messages, gaps %q", what, r.replay, len(r.got), r.gaps)
		}
	}
}

// last maps the keys of the current replay to their newest version.
func (r *recorder) last() map[string]uint64 {
	out := map[string]uint64{}
	for _, m := range r.got {
		out[m.Key.String()] = m.Version
	}
	return out
}

// follow runs Follow until the test ends.
func follow(t testing.TB, b *bus.Bus, f bus.Feed, sink bus.Sink, again <-chan struct{}) {
	t.Helper()
	background(t, func(ctx context.Context) { _ = b.Follow(ctx, f, sink, again) })
}

// background runs fn until the test ends.
func background(t testing.TB, fn func(ctx context.Context)) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		fn(ctx)
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// await asks until ok says yes: for what only the server knows.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	after := time.After(limit)
	for !ok() {
		select {
		case <-ticker.C:
		case <-after:
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

func write(t testing.TB, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func deadLetter(node string) *millracev1.DeadLetter {
	return &millracev1.DeadLetter{Role: "quota", Kind: "nodes", Name: node, Reason: "cannot form the write"}
}
