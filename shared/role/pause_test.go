package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/controller/controllertest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/protocol"
)

// bench is a reader behind a proxy that can be cut, with the rights of a role,
// and an operator who needs no proxy.
type bench struct {
	*testing.T

	proxy    *kubetest.Proxy
	operator *kube.API
	role     *kube.API
	pause    *pause
}

func newBench(t *testing.T) *bench {
	t.Helper()
	cluster := kubetest.Shared(t)
	b := &bench{T: t, proxy: kubetest.StartProxy(t, cluster)}
	cfg := kube.Config{Namespace: cluster.Namespace(t), QPS: 0.1, Burst: 1} // a pause must not wait for that
	var err error
	if b.role, err = kube.ConnectTo(b.proxy.Config(kubetest.RoleEndpoints), cfg, "millrace-endpoints", nil, nil); err != nil {
		t.Fatal(err)
	}
	cfg.QPS = -1
	if b.operator, err = kube.ConnectTo(cluster.Admin(), cfg, "millrace-operator", nil, nil); err != nil {
		t.Fatal(err)
	}
	b.pause = newPause("endpoints", b.role.Paused, slog.New(slog.DiscardHandler), nil)
	return b
}

func (b *bench) set(word string, pause bool) {
	b.Helper()
	if _, changed, err := b.operator.SetPaused(b.Context(), word, pause); err != nil || !changed {
		b.Fatalf("SetPaused(%s, %t): changed %t, %v", word, pause, changed, err)
	}
}

// want checks, one second after what came before, which dangers are paused.
func (b *bench) want(what string, paused ...controller.Danger) {
	b.Helper()
	deadline := time.Now().Add(time.Second)
	for _, d := range []controller.Danger{controller.Harmless, controller.Destructive, controller.Evicting} {
		for {
			err := b.pause.Paused(b.Context(), d)
			if (err != nil) == slices.Contains(paused, d) {
				break
			}
			if time.Now().After(deadline) {
				b.Errorf("%s: %s: Paused() = %v after a second", what, d, err)
				break
			}
			time.Sleep(10 * time.Millisecond) // the API server is real
		}
	}
}

func TestAPauseCountsWithinASecond(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.want("there is no ConfigMap")
	b.set("evictions", true)
	b.want("evictions are paused", controller.Evicting)
	b.set("endpoints", true)
	b.want("the role is paused", controller.Harmless, controller.Destructive, controller.Evicting)
	b.set("endpoints", false)
	b.want("the role is not paused any more", controller.Evicting)
	b.set("quota", true)
	b.set("evictions", false)
	b.want("another role is paused")
	if got := b.pause.status(); !slices.Equal(got, []string{"quota"}) {
		t.Errorf("status is %q", got)
	}
}

// What cannot be read pauses what is destructive, and nothing else while the
// last look allowed it.
func TestAnUnreachableServerPausesWhatIsDestructive(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.want("everything is well")
	b.proxy.Down()
	b.want("cut off", controller.Destructive, controller.Evicting)
	b.proxy.Up()
	b.want("back")

	t.Log("what was paused before the cut stays paused")
	b.set("endpoints", true)
	b.want("paused", controller.Harmless, controller.Destructive, controller.Evicting)
	b.proxy.Down()
	time.Sleep(pauseAge)
	b.want("paused and cut off", controller.Harmless, controller.Destructive, controller.Evicting)
	if got := b.pause.status(); !slices.Equal(got, []string{"endpoints", "unknown"}) {
		t.Errorf("status is %q", got)
	}

	t.Log("who has never looked writes nothing at all")
	b.pause = newPause("endpoints", b.role.Paused, slog.New(slog.DiscardHandler), nil)
	b.want("never looked", controller.Harmless, controller.Destructive, controller.Evicting)
}

// Operators who pause at the same moment lose nothing of each other's.
func TestPausesOfManyAtOnce(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var all sync.WaitGroup
	var want []string
	for i := range 8 {
		word := fmt.Sprint("role-", i)
		want = append(want, word)
		all.Go(func() { b.set(word, true) })
	}
	all.Wait()
	got, err := b.role.Paused(t.Context())
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("paused are %q, %v, want %q", got, err, want)
	}
	for _, word := range want {
		all.Go(func() { b.set(word, false) })
	}
	all.Wait()
	if got, err := b.role.Paused(t.Context()); err != nil || len(got) != 0 {
		t.Errorf("paused are %q, %v, want none", got, err)
	}
	if err := b.operator.TellPaused(t.Context(), "Resumed", "all of it"); err != nil {
		t.Error(err)
	}
}

// The frame and a real API server that is cut off: nothing destructive happens,
// whatever comes; when it is back, everything that waited does, without an event.
func TestNothingDestructiveWhileTheServerIsCutOff(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	var acts [controller.Evicting + 1]atomic.Int64
	world, lease := controllertest.New(1), controllertest.NewLease()
	world.Watch("pods", 1)
	dangers := map[string]controller.Danger{"h": controller.Harmless, "d": controller.Destructive, "e": controller.Evicting}
	def := controller.Definition{
		Role: "endpoints", By: protocol.ByNamespace, Pause: b.pause, Clock: b.role,
		Inputs: []cache.Input{{Kind: "pods", Projection: 1, Decode: func(event.Message) (any, error) { return "pod", nil }}},
		Keys:   func(_ *controller.Partition, c cache.Change) []event.Key { return []event.Key{c.Key} },
		All: func(p *controller.Partition) (keys []event.Key) {
			p.View(func(r controller.Reader) { keys = r.Keys("pods") })
			return keys
		},
		New: func(p *controller.Partition) controller.Reconciler {
			return reconcile(func(ctx context.Context, key event.Key) error {
				p.ReadLive(key)
				d := dangers[key.Name[:1]]
				if err := p.Guard(ctx, key, d); err != nil {
					return err
				}
				acts[d].Add(1)
				return nil
			})
		},
	}
	c, err := controller.New(controller.Default(), def, world, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer cancel()
	tasks.Go(func() { world.Tick(ctx) })
	tasks.Go(func() {
		if err := controller.Serve(ctx, c, lease); err != nil {
			t.Error(err)
		}
	})
	lease.Claim(0)

	n := int64(0)
	put := func() {
		n++
		for first := range dangers {
			world.Put("pods", event.Key{Namespace: "a", Name: fmt.Sprint(first, n)}, "x")
		}
	}
	count := func(d controller.Danger) int64 { return acts[d].Load() }
	await := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !ok(); {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not yet: %d harmless, %d destructive, %d evicting of %d", what, count(controller.Harmless), count(controller.Destructive), count(controller.Evicting), n)
			}
			time.Sleep(10 * time.Millisecond) // the API server is real
		}
	}
	all := func() bool {
		return count(controller.Harmless) == n && count(controller.Destructive) == n && count(controller.Evicting) == n
	}
	put()
	await("everything acts", all)

	b.proxy.Down()
	time.Sleep(pauseAge) // the last look counts for that long
	for range 20 {
		put()
		time.Sleep(100 * time.Millisecond)
	}
	await("what harms nobody goes on", func() bool { return count(controller.Harmless) == n })
	if count(controller.Destructive) != 1 || count(controller.Evicting) != 1 {
		t.Errorf("cut off, it acted: %d destructive, %d evicting, want the one of before", count(controller.Destructive), count(controller.Evicting))
	}
	b.proxy.Up()
	await("what waited is done", all)
}

type reconcile func(ctx context.Context, key event.Key) error

func (f reconcile) Reconcile(ctx context.Context, key event.Key) (controller.Result, error) {
	return controller.Result{}, f(ctx, key)
}

var errAway = errors.New("away")

// A server that accepts and does not answer is as good as none, and is not asked
// over and over.
func TestALookThatHangsPausesWhatIsDestructive(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		hangs, looks := false, 0
		p := newPause("endpoints", func(ctx context.Context) ([]string, error) {
			looks++
			if hangs {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return nil, nil
		}, slog.New(slog.DiscardHandler), nil)
		if err := p.Paused(t.Context(), controller.Evicting); err != nil {
			t.Fatal(err)
		}
		hangs = true
		began := time.Now()
		for p.Paused(t.Context(), controller.Evicting) == nil {
			time.Sleep(time.Millisecond)
		}
		if took := time.Since(began); took > pauseAge+pauseLook {
			t.Errorf("it took %s", took)
		}
		looks = 0
		for began := time.Now(); time.Since(began) < time.Minute; time.Sleep(time.Millisecond) {
			if p.Paused(t.Context(), controller.Evicting) == nil || p.Paused(t.Context(), controller.Harmless) != nil {
				t.Fatal("it was not what is destructive alone that is paused")
			}
		}
		if looks > 61 {
			t.Errorf("%d looks in a minute", looks)
		}
		if p.ready() == nil {
			t.Error("it is ready")
		}
		synctest.Wait()
	})
}

// One look at a time, whoever asks, and none while a young one is known.
func TestLooksAreShared(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	answer := make(chan error)
	p := newPause("endpoints", func(context.Context) ([]string, error) {
		looks.Add(1)
		return nil, <-answer
	}, slog.New(slog.DiscardHandler), nil)
	var all sync.WaitGroup
	for range 20 {
		all.Go(func() {
			if err := p.Paused(t.Context(), controller.Harmless); !errors.Is(err, errAway) {
				t.Errorf("Paused() = %v", err)
			}
		})
	}
	answer <- errAway
	all.Wait()
	if n := looks.Load(); n != 1 {
		t.Errorf("%d looks, want one", n)
	}
}
