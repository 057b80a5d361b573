package bus_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
)

func TestKVWritesByRevision(t *testing.T) {
	kv := bustest.Connect(t, bustest.Start(t).Config(), "quota").KV(bus.Own)
	ctx := within(t)
	put := func(expect uint64, value string) uint64 {
		t.Helper()
		rev, err := kv.Put(ctx, "p.1", []byte(value), expect, 0)
		if err != nil {
			t.Fatal(err)
		}
		return rev
	}
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, bus.ErrRefused) {
			t.Errorf("%s = %v, want ErrRefused", what, err)
		}
	}
	if _, rev, err := kv.Get(ctx, "p.1"); !errors.Is(err, bus.ErrNone) || rev != 0 {
		t.Errorf("Get() of nothing = %d, %v, want ErrNone", rev, err)
	}
	first := put(0, "a")
	_, err := kv.Put(ctx, "p.1", []byte("b"), 0, 0)
	refused("creating what exists", err)
	second := put(first, "b")
	_, err = kv.Put(ctx, "p.1", []byte("c"), first, 0)
	refused("writing over an old revision", err)
	if value, rev, err := kv.Get(ctx, "p.1"); err != nil || rev != second || string(value) != "b" {
		t.Errorf("Get() = %q, %d, %v, want b, %d", value, rev, err, second)
	}
	refused("deleting an old revision", kv.Delete(ctx, "p.1", first))
	if err := kv.Delete(ctx, "p.1", second); err != nil {
		t.Fatal(err)
	}
	_, marker, err := kv.Get(ctx, "p.1")
	if !errors.Is(err, bus.ErrNone) || marker <= second {
		t.Errorf("Get() of a deleted key = %d, %v, want ErrNone and the marker's revision", marker, err)
	}
	refused("writing over a deleted revision", func() error { _, err := kv.Put(ctx, "p.1", nil, second, 0); return err }())
	third := put(0, "d") // a delete marker counts as nothing
	if third <= marker {
		t.Errorf("revision %d is not above the marker's %d", third, marker)
	}
	if _, err := kv.Put(ctx, "not valid", nil, 0, 0); err == nil {
		t.Error("a key with a space was taken")
	}
}

// A key that is renewed lives; one that is not goes, and then counts as nothing.
// The library's buckets cannot do both ⚠: an update there loses the expiry.
func TestAKeyExpiresUnlessItIsRenewed(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "quota")
	kv, ctx := b.KV(bus.Own), within(t)
	seen := newBucket()
	background(t, func(ctx context.Context) { _ = kv.Follow(ctx, ">", seen) })
	rev, err := kv.Put(ctx, "m.1", []byte("me"), 0, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	for time.Since(start) < 2*time.Second { // twice its life
		if rev, err = kv.Put(ctx, "m.1", []byte("me"), rev, time.Second); err != nil {
			t.Fatal(err)
		}
		<-time.After(200 * time.Millisecond) // the renewal itself is what is tested
	}
	seen.await(t, "the expiry", func() bool { return len(seen.deleted) == 1 && seen.deleted[0] == "m.1" })
	_, marker, err := kv.Get(ctx, "m.1")
	if !errors.Is(err, bus.ErrNone) || marker <= rev {
		t.Errorf("Get() of an expired key = %d, %v, want ErrNone and the marker's revision", marker, err)
	}
	if _, err := kv.Put(ctx, "m.1", []byte("late"), rev, time.Second); !errors.Is(err, bus.ErrRefused) {
		t.Errorf("renewing an expired key = %v, want ErrRefused", err)
	}
	if _, err := kv.Put(ctx, "m.1", []byte("next"), 0, time.Second); err != nil {
		t.Errorf("creating an expired key = %v", err)
	}
}

func TestOneOfManyWins(t *testing.T) {
	s := bustest.Start(t)
	first := bustest.Connect(t, s.Config(), "m0")
	var wins atomic.Int32
	var all sync.WaitGroup
	rev := uint64(0)
	for round := range 20 {
		wins.Store(0)
		var won atomic.Uint64
		for i := range 8 {
			all.Go(func() {
				r, err := first.KV(bus.Own).Put(within(t), "p.1", fmt.Append(nil, i), rev, 0)
				switch {
				case err == nil:
					wins.Add(1)
					won.Store(r)
				case !errors.Is(err, bus.ErrRefused):
					t.Error(err)
				}
			})
		}
		all.Wait()
		if wins.Load() != 1 {
			t.Fatalf("round %d had %d winners", round, wins.Load())
		}
		rev = won.Load()
	}
}

// bucket is a KVSink that remembers.
type bucket struct {
	mu      sync.Mutex
	changed chan struct{}
	values  map[string]string
	deleted []string
	replay  uint64
	caught  uint64 // the replay that was
	atCatch int    // values at that moment
	gaps    []string
}

func newBucket() *bucket {
	return &bucket{changed: make(chan struct{}), values: map[string]string{}}
}

func (k *bucket) note(fn func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	fn()
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *bucket) Begin(replay uint64) {
	k.note(func() { k.replay = replay; clear(k.values) })
}

func (k *bucket) Entry(key string, value []byte, _ uint64, deleted bool) {
	k.note(func() {
		if deleted {
			delete(k.values, key)
			k.deleted = append(k.deleted, key)
		} else {
			k.values[key] = string(value)
		}
	})
}

func (k *bucket) Caught() { k.note(func() { k.caught, k.atCatch = k.replay, len(k.values) }) }

func (k *bucket) Gap(reason string) { k.note(func() { k.gaps = append(k.gaps, reason) }) }

func (k *bucket) await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	after := time.After(limit)
	for {
		k.mu.Lock()
		done, changed := ok(), k.changed
		k.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-after:
			k.mu.Lock()
			defer k.mu.Unlock() //nolint:gocritic // Fatalf ends the loop
			t.Fatalf("waited in vain for %s; replay %d, caught %d, values %v, gaps %q", what, k.replay, k.caught, k.values, k.gaps)
		}
	}
}

func TestKVFollow(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "quota")
	kv, ctx := b.KV(bus.Own), within(t)
	empty := newBucket()
	background(t, func(ctx context.Context) { _ = kv.Follow(ctx, "quota.>", empty) })
	empty.await(t, "being caught up with nothing", func() bool { return empty.caught == 1 })
	want := map[string]string{}
	revs := map[string]uint64{}
	for i := range 300 {
		key := fmt.Sprint("quota.p.", i)
		rev, err := kv.Put(ctx, key, []byte(key), 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		want[key], revs[key] = key, rev
	}
	if _, err := kv.Put(ctx, "other.p.1", nil, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := kv.Delete(ctx, "quota.p.7", revs["quota.p.7"]); err != nil {
		t.Fatal(err)
	}
	delete(want, "quota.p.7")
	same := func(k *bucket) func() bool { return func() bool { return maps.Equal(want, k.values) } }
	empty.await(t, "all live entries", same(empty))
	full := newBucket()
	background(t, func(ctx context.Context) { _ = kv.Follow(ctx, "quota.>", full) })
	full.await(t, "being caught up", func() bool { return full.caught == 1 })
	if full.atCatch != len(want) {
		t.Errorf("caught up with %d values, want %d", full.atCatch, len(want))
	}

	s.Restart()
	bustest.AwaitConnected(t, b)
	full.await(t, "the second replay", func() bool { return full.caught >= 2 && maps.Equal(want, full.values) })

	s.Wipe()
	bustest.AwaitConnected(t, b)
	await(t, "the streams", func() bool { return b.Ensure(within(t)) == nil })
	full.await(t, "an empty bucket", func() bool { return full.caught == full.replay && full.replay >= 3 && len(full.values) == 0 })
	if _, err := kv.Put(within(t), "quota.p.1", []byte("new"), 0, 0); err != nil {
		t.Fatal(err)
	}
	full.await(t, "the new value", func() bool { return cmp.Equal(full.values, map[string]string{"quota.p.1": "new"}) })
}

func TestAskAndAnswer(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "quota")
	if _, err := b.Ask(within(t), "millrace.test.m.1", nil); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("asking nobody = %v, want ErrNoResponders", err)
	}
	stop, err := b.Answer("millrace.test.m.1", func(data []byte) []byte { return append([]byte("you said "), data...) })
	if err != nil {
		t.Fatal(err)
	}
	other := bustest.Connect(t, s.Config(), "watcher")
	answer, err := other.Ask(within(t), "millrace.test.m.1", []byte("hello"))
	if err != nil || string(answer) != "you said hello" {
		t.Errorf("Ask() = %q, %v", answer, err)
	}
	stop()
	await(t, "the subscription to end", func() bool {
		_, err := other.Ask(within(t), "millrace.test.m.1", nil)
		return errors.Is(err, bus.ErrNoResponders)
	})

	// Somebody who listens and says nothing is not nobody.
	nc, _ := native(t, s.URL())
	if _, err := nc.Subscribe("millrace.test.m.2", func(*nats.Msg) {}); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if _, err := b.Ask(ctx, "millrace.test.m.2", nil); !errors.Is(err, bus.ErrTimeout) {
		t.Errorf("asking a silent one = %v, want ErrTimeout", err)
	}
}

func TestAskAll(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "status")
	if answers, err := b.AskAll(within(t), "millrace.test.status", nil, limit); err != nil || len(answers) != 0 {
		t.Errorf("asking nobody = %q, %v, want nothing, at once", answers, err)
	}
	for i := range 3 {
		m := bustest.Connect(t, s.Config(), fmt.Sprint("m", i))
		stop, err := m.Answer("millrace.test.status", func([]byte) []byte { return fmt.Append(nil, i) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(stop)
		if _, err := m.Ask(within(t), "millrace.test.status", nil); err != nil { // the subscription is there
			t.Fatal(err)
		}
	}
	answers, err := b.AskAll(within(t), "millrace.test.status", nil, 300*time.Millisecond)
	if err != nil || len(answers) != 3 {
		t.Errorf("AskAll() = %q, %v, want three answers", answers, err)
	}
}

func TestChangesAreTold(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "quota")
	before := b.State()
	await(t, "the connected clock to run", func() bool { return b.Now() > 0 })
	s.Stop()
	bustest.AwaitDisconnected(t, b)
	stood := b.Now()
	s.Restart()
	bustest.AwaitConnected(t, b)
	after := b.State()
	if after.Generation != before.Generation+1 || after.ServerID == before.ServerID || !after.Since.After(before.Since) {
		t.Errorf("before %+v, after %+v, want the next generation of another server", before, after)
	}
	await(t, "the connected clock to run on", func() bool { return b.Now() > stood })
}
