package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
)

// fakeAssets are streams that are as the test says.
type fakeAssets struct {
	mu    sync.Mutex
	err   error
	looks int
}

func (f *fakeAssets) Ensure(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	return f.err
}

func (f *fakeAssets) EnsureDurables(context.Context, []bus.Durable) error { return nil }
func (f *fakeAssets) Changes() (<-chan struct{}, func())                  { return make(chan struct{}), func() {} }

func (f *fakeAssets) set(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// holding runs hold on the rig's kind until the returned function is called.
func holding(t *testing.T, r *rig, assets *fakeAssets) (h *holder, release func()) {
	h = &holder{bus: r.bus, api: r.api, log: slog.New(slog.DiscardHandler), keeper: newKeeper(assets, slog.New(slog.DiscardHandler))}
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	k := kindOf{kind: testKind, tombstones: tombstoneLife, metrics: newMetrics(prometheus.NewRegistry()).of(testKind), status: &kindStatus{kind: testKind}}
	h.kinds = map[event.Kind]kindOf{testKind: k}
	tasks.Go(func() { h.keeper.run(ctx) })
	tasks.Go(func() {
		_ = h.publish(ctx, k, r.grant)
		r.released.Store(true)
	})
	synctest.Wait()
	return h, func() {
		cancel()
		tasks.Wait()
		time.Sleep(10 * time.Millisecond)
	}
}

func TestNothingIsReadBeforeTheStreamsAreInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, assets := newRig(t), &fakeAssets{err: fmt.Errorf("verifying: %w", bus.ErrPartitions)}
		h, release := holding(t, r, assets)
		defer release()
		r.after(time.Minute)
		if r.api.events != nil {
			t.Error("the kind was watched while the streams were another installation's")
		}
		if err := h.kinds[testKind].status.ready(time.Now()); err == nil {
			t.Error("the kind says that it is ready")
		}
		assets.set(nil)
		r.after(10 * time.Second)
		if r.api.events == nil {
			t.Error("the kind is not watched although the streams are in order")
		}
	})
}

func TestStreamsThatBecomeAnotherInstallationsStopEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, assets := newRig(t), &fakeAssets{}
		h, release := holding(t, r, assets)
		defer release()
		r.api.list()
		r.after(2 * time.Second)
		assets.set(bus.ErrWireVersion)
		h.keeper.missing(bus.ErrMissing) // look now
		r.after(2 * time.Second)
		n := r.bus.tries()
		r.after(time.Minute)
		if r.bus.tries() != n {
			t.Error("it went on publishing")
		}
	})
}

// A kind may stand under two leases for a while, when replicas disagree about
// which there are. Whoever is left with the lower epoch gives it back, to claim
// it anew with the highest.
func TestAKindOfAHigherEpochIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.bus.put(event.Message{Op: event.Put, Key: event.Key{Namespace: "ns-a", Name: "a"}, UID: "u", Version: 50, Epoch: r.grant.Epoch() + 1, Projection: 1})
		_, release := holding(t, r, &fakeAssets{})
		defer release()
		r.after(time.Minute)
		if !r.released.Load() {
			t.Error("it begins again and again with an epoch that cannot win")
		}
		if n := r.bus.tries(); n != 0 {
			t.Errorf("it tried %d times to publish", n)
		}
	})
}

// Readers ignore a bookmark whose counter does not grow within an epoch.
func TestCountersGrowOverTheRunsOfAnEpoch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		_, release := holding(t, r, &fakeAssets{})
		defer release()
		r.api.list()
		r.after(5 * time.Second)
		r.grant.lose(errors.New("for a moment"))
		r.after(2 * time.Second)
		r.grant.lose(nil)
		r.after(5 * time.Second)
		r.api.list()
		r.after(5 * time.Second)
		last, runs := map[int]uint64{}, 0
		for _, m := range r.bus.marks() {
			if m.Mark.Counter <= last[m.Slice] {
				t.Fatalf("counter %d of slice %d came after %d", m.Mark.Counter, m.Slice, last[m.Slice])
			}
			if m.Mark.Counter > last[m.Slice]+1 {
				runs++
			}
			last[m.Slice] = m.Mark.Counter
		}
		if len(r.bus.marks()) < 7*testPartitions {
			t.Errorf("%d bookmarks, want those of two runs", len(r.bus.marks()))
		}
	})
}

func TestAHistoryThatWentBackNamesTheRemedy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.bus.put(event.Message{Op: event.Put, Key: event.Key{Namespace: "n", Name: "x"}, Version: 5000, Epoch: 3, Projection: 1})
		h, release := holding(t, r, &fakeAssets{})
		defer release()
		r.api.list()
		r.after(time.Second)
		err := h.kinds[testKind].status.ready(time.Now())
		if err == nil || !strings.Contains(err.Error(), "millrace bus reset") {
			t.Errorf("ready says %v, want the remedy", err)
		}
		if r.bus.tries() != 0 {
			t.Errorf("%d publications", r.bus.tries())
		}
	})
}

func TestTheKeeperLooksAgainForEverAndWhenSomethingIsMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, assets := newRig(t), &fakeAssets{}
		h, release := holding(t, r, assets)
		defer release()
		r.after(5 * time.Minute)
		if assets.looks < 10 || assets.looks > 12 {
			t.Errorf("%d looks in five minutes, want one in 30 s", assets.looks)
		}
		n := assets.looks
		h.keeper.missing(errors.New("something else"))
		h.keeper.missing(bus.ErrNoResponders)
		r.after(time.Second)
		if assets.looks != n+1 {
			t.Errorf("%d looks at once, want 1", assets.looks-n)
		}
	})
}
