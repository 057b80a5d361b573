package facts_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/facts"
)

var _ facts.Store = (*bus.KV)(nil)

// account is a message that has something to count; what it is for otherwise does
// not matter here.
type accounts = facts.Topic[millracev1.TokenBucket, *millracev1.TokenBucket]

func open(t *testing.T, server *bustest.Server) *accounts {
	t.Helper()
	return facts.New[millracev1.TokenBucket](bustest.Connect(t, server.Config(), "tester").KV(bus.Facts), "first.sight")
}

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// What was recorded first stands, whoever comes later and however often.
func TestOnce(t *testing.T) {
	server, ctx := bustest.Start(t), within(t)
	a, b := open(t, server), open(t, server)
	const name = "uid/node.kubernetes.io=gone/NoExecute"
	if _, err := a.Get(ctx, name); !errors.Is(err, event.ErrNone) {
		t.Errorf("Get() of nothing = %v, want ErrNone", err)
	}
	var same sync.Map
	var all sync.WaitGroup
	for i, topic := range []*accounts{a, b, a, b, a, b} {
		all.Go(func() {
			got, err := topic.Once(ctx, name, &millracev1.TokenBucket{Taker: fmt.Sprint(i), Now: durationpb.New(time.Second)})
			if err != nil {
				t.Error(err)
				return
			}
			same.Store(got.GetTaker(), true)
		})
	}
	all.Wait()
	n := 0
	same.Range(func(any, any) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d different facts were found, want one", n)
	}
	if err := a.Forget(ctx, name); err != nil {
		t.Fatal(err)
	}
	if err := b.Forget(ctx, name); err != nil {
		t.Errorf("forgetting what is forgotten: %v", err)
	}
	if got, err := b.Once(ctx, name, &millracev1.TokenBucket{Taker: "again"}); err != nil || got.GetTaker() != "again" {
		t.Errorf("after it was forgotten: %v, %v", got, err)
	}
}

// No change is lost among many writers.
func TestUpdate(t *testing.T) {
	server, ctx := bustest.Start(t), within(t)
	a, b := open(t, server), open(t, server)
	var all sync.WaitGroup
	for _, topic := range []*accounts{a, b, a, b} {
		all.Go(func() {
			for range 10 {
				for {
					_, err := topic.Update(ctx, "n", func(m *millracev1.TokenBucket) bool { m.Spent++; return true })
					if err == nil {
						break
					}
					if !errors.Is(err, event.ErrRefused) {
						t.Error(err)
						return
					}
				}
			}
		})
	}
	all.Wait()
	got, err := a.Update(ctx, "n", func(*millracev1.TokenBucket) bool { return false })
	if err != nil || got.GetSpent() != 40 {
		t.Errorf("counted %d, %v, want 40", got.GetSpent(), err)
	}
}

func TestWhatCannotBeReadIsOverwrittenOnPurposeOnly(t *testing.T) {
	server, ctx := bustest.Start(t), within(t)
	kv := bustest.Connect(t, server.Config(), "tester").KV(bus.Facts)
	topic := facts.New[millracev1.TokenBucket](kv, "t")
	if _, err := kv.Put(ctx, "t.n", []byte("\xff"), 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := topic.Once(ctx, "n", &millracev1.TokenBucket{}); err == nil {
		t.Error("what cannot be read was taken for a fact")
	}
	if _, err := topic.Update(ctx, "n", func(m *millracev1.TokenBucket) bool { m.Spent = 7; return true }); err != nil {
		t.Error(err)
	}
	if got, err := topic.Get(ctx, "n"); err != nil || got.GetSpent() != 7 {
		t.Errorf("%v, %v", got, err)
	}
}

// A view shows what stands, live, over restarts; a wipe forgets.
func TestDemandIsFollowed(t *testing.T) {
	server, ctx := bustest.Start(t), within(t)
	wb := bustest.Connect(t, server.Config(), "quota")
	writer := facts.NewDemand(wb.KV(bus.Facts))
	reader := facts.NewDemand(bustest.Connect(t, server.Config(), "watcher").KV(bus.Facts))
	var following sync.WaitGroup
	run, stop := context.WithCancel(ctx)
	following.Go(func() { reader.Run(run) })
	defer following.Wait()
	defer stop()

	await := func(what string, want ...event.Kind) {
		t.Helper()
		for {
			changed := reader.Changed()
			got, complete := reader.Kinds()
			if complete && cmp.Equal(want, got) {
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				t.Fatalf("%s: %v, complete %t, want %v", what, got, complete, want)
			}
		}
	}
	set := func(who string, kinds ...event.Kind) {
		t.Helper()
		if err := writer.Set(ctx, who, kinds); err != nil {
			t.Fatal(err)
		}
	}
	await("nothing is demanded")
	set("quota", "widgets.example.com", "gadgets.example.com")
	await("one demands", "gadgets.example.com", "widgets.example.com")
	set("other", "gadgets.example.com", "bolts.example.com")
	await("another demands", "bolts.example.com", "gadgets.example.com", "widgets.example.com")
	_, before, err := wb.KV(bus.Facts).Get(ctx, "demand.quota")
	if err != nil {
		t.Fatal(err)
	}
	set("quota", "gadgets.example.com", "widgets.example.com")
	if _, after, err := wb.KV(bus.Facts).Get(ctx, "demand.quota"); err != nil || after != before {
		t.Errorf("the same demand was written again: %d, %d, %v", before, after, err)
	}
	set("quota")
	await("one demands no more", "bolts.example.com", "gadgets.example.com")
	server.Restart()
	await("NATS was restarted", "bolts.example.com", "gadgets.example.com")
	server.Wipe()
	bustest.AwaitConnected(t, wb)
	if err := wb.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	await("NATS was wiped")
	set("quota", "widgets.example.com")
	await("and it is said again", "widgets.example.com")
}
