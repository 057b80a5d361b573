package bus_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
)

var streams = []string{"K8S_test", "BEATS_test", "DLQ_test", "DECISIONS_test", "KV_own_test", "KV_rates_test", "KV_facts_test"}

func configs(t *testing.T, js jetstream.JetStream) map[string]jetstream.StreamConfig {
	t.Helper()
	found := map[string]jetstream.StreamConfig{}
	list := js.ListStreams(within(t))
	for info := range list.Info() {
		found[info.Config.Name] = info.Config
	}
	if list.Err() != nil {
		t.Fatal(list.Err())
	}
	return found
}

func TestEnsureCreatesEverythingAndThenChangesNothing(t *testing.T) {
	s := bustest.Start(t)
	before := uint64(time.Now().UnixMicro())
	b := bustest.Connect(t, s.Config(), "watcher")
	_, js := native(t, s.URL())
	first := configs(t, js)
	for _, name := range streams {
		c, ok := first[name]
		if !ok {
			t.Errorf("stream %s was not created", name)
		}
		if c.FirstSeq < before {
			t.Errorf("stream %s starts at %d, want at the time of its creation, %d", name, c.FirstSeq, before)
		}
	}
	if len(first) != len(streams) {
		t.Errorf("there are %d streams, want %d", len(first), len(streams))
	}
	if err := b.Ensure(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := b.Verify(within(t)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(first, configs(t, js)); diff != "" {
		t.Errorf("a second Ensure changed something:\n%s", diff)
	}
}

func TestEnsureHealsAChangedSetting(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "watcher")
	_, js := native(t, s.URL())
	want := configs(t, js)
	for _, name := range streams {
		c := want[name]
		c.MaxMsgSize, c.MaxBytes, c.Duplicates, c.Discard = 1000, 1<<20, 2*time.Second, jetstream.DiscardOld
		c.MaxConsumers, c.Description = 7, "somebody else's"
		if _, err := js.UpdateStream(within(t), c); err != nil {
			t.Fatalf("spoiling %s: %v", name, err)
		}
	}
	if err := b.Ensure(within(t)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, configs(t, js)); diff != "" {
		t.Errorf("Ensure did not mend everything (-want +got):\n%s", diff)
	}
}

func TestVerifyRefuses(t *testing.T) {
	s := bustest.Start(t)
	fresh, err := bus.Connect(within(t), s.Config(), "quota", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(fresh.Close)
	bustest.AwaitConnected(t, fresh)
	if err := fresh.Verify(within(t)); !errors.Is(err, bus.ErrMissing) {
		t.Errorf("Verify() of an empty server = %v, want ErrMissing", err)
	}
	bustest.Connect(t, s.Config(), "watcher")

	other := s.Config()
	other.Partitions = 16
	wrong, err := bus.Connect(within(t), other, "quota", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(wrong.Close)
	bustest.AwaitConnected(t, wrong)
	for name, err := range map[string]error{"Verify": wrong.Verify(within(t)), "Ensure": wrong.Ensure(within(t))} {
		if !errors.Is(err, bus.ErrPartitions) || !strings.Contains(err.Error(), "millrace bus reset") {
			t.Errorf("%s() with another number of partitions = %v, want ErrPartitions, naming the way out", name, err)
		}
	}
	if err := wrong.Reset(within(t)); err != nil {
		t.Fatal(err)
	}
	if err := wrong.Verify(within(t)); err != nil {
		t.Errorf("Verify() after Reset() = %v", err)
	}

	_, js := native(t, s.URL())
	c := configs(t, js)["K8S_test"]
	c.Metadata["millrace.wire"] = "2"
	if _, err := js.UpdateStream(within(t), c); err != nil {
		t.Fatal(err)
	}
	for name, err := range map[string]error{"Verify": wrong.Verify(within(t)), "Ensure": wrong.Ensure(within(t))} {
		if !errors.Is(err, bus.ErrWireVersion) {
			t.Errorf("%s() of a newer wire version = %v, want ErrWireVersion", name, err)
		}
	}
}

// ⚠ Sequences must not repeat, or a reader takes an old copy for the newest and
// a lease's epoch goes back.
func TestSequencesGrowOverAWipeAndAReset(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "watcher")
	var event1, epoch1 uint64
	grow := func(how string) {
		t.Helper()
		seq := mustPublish(t, b, pod("a", 1), 0)
		epoch, err := b.KV(bus.Own).Put(within(t), "p.1", []byte("me"), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		if seq <= event1 || epoch <= epoch1 {
			t.Errorf("after %s: sequence %d, epoch %d; before %d, %d", how, seq, epoch, event1, epoch1)
		}
		event1, epoch1 = seq, epoch
	}
	grow("the start")
	s.Wipe()
	bustest.AwaitDisconnected(t, b)
	bustest.AwaitConnected(t, b)
	if err := b.Ensure(within(t)); err != nil {
		t.Fatal(err)
	}
	grow("a wipe")
	for range 3 {
		if err := b.Reset(within(t)); err != nil {
			t.Fatal(err)
		}
		grow("a reset")
	}
}

// The library's own buckets must read what we write, or no tool does.
func TestBucketsAreBuckets(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "watcher")
	_, js := native(t, s.URL())
	rev, err := b.KV(bus.Facts).Put(within(t), "taint.n1", []byte("x"), 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	kv, err := js.KeyValue(within(t), "facts_test")
	if err != nil {
		t.Fatal(err)
	}
	entry, err := kv.Get(within(t), "taint.n1")
	if err != nil {
		t.Fatal(err)
	}
	if entry.Revision() != rev || string(entry.Value()) != "x" {
		t.Errorf("the library reads %q at %d, want x at %d", entry.Value(), entry.Revision(), rev)
	}
	if err := b.KV(bus.Facts).Delete(within(t), "taint.n1", rev); err != nil {
		t.Fatal(err)
	}
	if _, err := kv.Get(within(t), "taint.n1"); !errors.Is(err, jetstream.ErrKeyNotFound) {
		t.Errorf("the library still reads a deleted key: %v", err)
	}
}

func TestDurables(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "watcher")
	roles := []bus.Durable{
		{Role: "podevictor", By: bus.ByKey, Kinds: []event.Kind{"pods", "nodes"}},
		{Role: "quota", By: bus.ByNamespace, Kinds: []event.Kind{"pods"}},
	}
	for range 2 {
		if err := b.EnsureDurables(within(t), roles); err != nil {
			t.Fatal(err)
		}
	}
	a := mustPublish(t, b, pod("a", 1), 0)
	p := publication(b, pod("a", 1), 0)
	backlog := func(role string, slice int, want uint64) {
		t.Helper()
		// The server counts a moment after it has answered.
		ctx := within(t)
		for {
			got, err := b.Backlog(ctx, role, slice)
			if err == nil && got == want {
				return
			}
			if err != nil {
				t.Fatalf("backlog of %s is %d, %v, want %d", role, got, err, want)
			}
		}
	}
	backlog("podevictor", p.PK, 1)
	backlog("quota", p.PN, 1)
	if err := b.MoveDurable(within(t), "podevictor", p.PK, a+1); err != nil {
		t.Fatal(err)
	}
	backlog("podevictor", p.PK, 0)
	mustPublish(t, b, pod("a", 2), a)
	backlog("podevictor", p.PK, 1)
	if err := b.MoveDurable(within(t), "podevictor", p.PK, 1); err != nil { // back: allowed
		t.Fatal(err)
	}
	backlog("podevictor", p.PK, 1)

	// Other filters: made anew, so that nothing behind the position is skipped.
	roles[1].Kinds = []event.Kind{"pods", "services"}
	if err := b.MoveDurable(within(t), "quota", p.PN, a+100); err != nil {
		t.Fatal(err)
	}
	backlog("quota", p.PN, 0)
	if err := b.EnsureDurables(within(t), roles); err != nil {
		t.Fatal(err)
	}
	backlog("quota", p.PN, 1)
}

func TestThreeServersKeepThreeReplicas(t *testing.T) {
	servers := bustest.Cluster(t, 3)
	b := bustest.Connect(t, servers[0].Config(), "watcher")
	_, js := native(t, servers[1].URL())
	for name, c := range configs(t, js) {
		if c.Replicas != 3 {
			t.Errorf("stream %s has %d replicas, want 3", name, c.Replicas)
		}
	}
	seq := mustPublish(t, b, pod("a", 1), 0)
	if _, err := publish(t, b, publication(b, pod("a", 2), seq+1)); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("publishing on a wrong sequence = %v, want ErrRefused", err)
	}
	if m, err := b.Last(within(t), "pods", pod("a", 1).Key); err != nil || m.Seq != seq {
		t.Errorf("Last() = %d, %v, want %d", m.Seq, err, seq)
	}
}
