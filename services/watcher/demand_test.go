package watcher

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/facts"
	"github.com/millrace-io/millrace/shared/lease"
)

// said are demands that the test says.
type said struct {
	mu       sync.Mutex
	kinds    []event.Kind
	complete bool
	changed  chan struct{}
}

func (s *said) Kinds() ([]event.Kind, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds, s.complete
}

func (s *said) Changed() <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changed
}

func (s *said) say(complete bool, kinds ...event.Kind) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kinds, s.complete = kinds, complete
	close(s.changed)
	s.changed = make(chan struct{})
}

// When a change of the demand begins a new membership, and with which kinds.
func TestDemandIsFollowedWhenItHasSettled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		s := &said{changed: make(chan struct{})}
		var memberships [][]string
		begun := time.Now()
		var at []time.Duration
		asked := map[string]bool{}
		h := &holder{metrics: newMetrics(nil), kinds: map[event.Kind]kindOf{}}
		d := &demanded{
			h: h, demands: s, set: []event.Kind{"services", "events"}, log: slog.New(slog.DiscardHandler),
			ready: func(name string, _ func() error) func() {
				asked[name] = true
				return func() { delete(asked, name) }
			},
			carry: func(ctx context.Context, units []string) {
				memberships, at = append(memberships, units), append(at, time.Since(begun).Round(time.Second))
				<-ctx.Done()
			},
		}
		done := make(chan struct{})
		go func() { defer close(done); d.run(ctx) }()

		s.say(false, "configmaps") // not all has been heard yet
		time.Sleep(10 * time.Second)
		s.say(true, "secrets", "configmaps", "services", "pods", "leases.coordination.k8s.io", "no kind", "configmaps")
		time.Sleep(500 * time.Millisecond)
		s.say(true, "configmaps", "secrets") // the same, said again
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if k := h.kind("secrets"); !k.metadataOnly || !asked["secrets"] {
			t.Error("a kind that is demanded is carried as metadata, and readiness asks for it")
		}
		s.say(false) // NATS was wiped
		s.say(true)
		time.Sleep(30 * time.Second)
		s.say(true, "configmaps", "secrets")
		time.Sleep(2 * time.Minute)
		s.say(true, "configmaps")
		time.Sleep(2 * time.Minute)
		s.say(true, "configmaps", "widgets.example.com")
		time.Sleep(10 * time.Second)
		cancel()
		<-done
		want := [][]string{{"configmaps", "secrets"}, {"configmaps"}, {"configmaps", "widgets.example.com"}}
		if diff := cmp.Diff(want, memberships); diff != "" {
			t.Errorf("memberships (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]time.Duration{12 * time.Second, 231 * time.Second, 292 * time.Second}, at); diff != "" {
			t.Errorf("begun (-want +got):\n%s", diff)
		}
		if len(asked) != 0 {
			t.Errorf("readiness still asks for %v", asked)
		}
	})
}

// demand makes a watcher of the world carry what is demanded.
func (w *world) demand(m *member) {
	w.t.Helper()
	log := slog.New(slog.NewTextHandler(w.t.Output(), nil))
	wanted := facts.NewDemand(m.bus.KV(bus.Facts))
	d := &demanded{
		h: m.h, demands: wanted, set: []event.Kind{"pods", "services"}, log: log,
		ready: func(string, func() error) func() { return func() {} },
		carry: func(ctx context.Context, units []string) {
			group := lease.Config{Role: roleName + ".demand", Cluster: m.bus.Cluster(), Units: units}
			_ = lease.New(group, m.bus.KV(bus.Own), m.bus, log, nil).Run(ctx, m.h.hold)
		},
	}
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { wanted.Run(ctx) })
	tasks.Go(func() { d.run(ctx) })
	m.stop = sync.OnceFunc(func(stop context.CancelFunc) func() {
		return func() { cancel(); tasks.Wait(); stop() }
	}(m.stop))
	w.t.Cleanup(m.stop)
}

// epoch returns under which epoch a watcher carries a kind; 0: it does not, or is
// not fresh.
func (m *member) epoch(kind event.Kind) (epoch uint64) {
	k := m.h.kind(kind)
	if k.status == nil || k.status.ready(time.Now()) != nil {
		return 0
	}
	k.status.note(func() {
		if k.status.held {
			epoch = k.status.epoch
		}
	})
	return epoch
}

// Kinds that are demanded are carried by one watcher each, as metadata, taken
// over when that one goes, and given up; those of the setting notice nothing.
func TestDemandedKindsAreCarried(t *testing.T) {
	w := newWorld(t)
	api := w.cluster.Admin() // what is demanded needs rights of its own
	a, b := w.watcher(api), w.watcher(api)
	w.demand(a)
	w.demand(b)
	await(t, 30*time.Second, "the kinds of the setting", func() bool {
		return a.epoch("pods")+b.epoch("pods") > 0 && a.epoch("services")+b.epoch("services") > 0
	})
	setting := [][2]uint64{{a.epoch("pods"), b.epoch("pods")}, {a.epoch("services"), b.epoch("services")}}
	quota := facts.NewDemand(bustest.Connect(t, w.server.Config(), "quota").KV(bus.Facts))
	demand := func(kinds ...event.Kind) {
		t.Helper()
		if err := quota.Set(t.Context(), "quota", kinds); err != nil {
			t.Fatal(err)
		}
	}
	carried := func(kinds ...event.Kind) bool {
		for _, kind := range kinds {
			if one, other := a.epoch(kind), b.epoch(kind); (one == 0) == (other == 0) {
				return false
			}
		}
		return true
	}
	demand("serviceaccounts", "configmaps")
	await(t, 60*time.Second, "two kinds to be carried by one watcher each", func() bool { return carried("serviceaccounts", "configmaps") })
	demand("serviceaccounts", "configmaps", "limitranges")
	await(t, 60*time.Second, "three kinds to be carried", func() bool { return carried("serviceaccounts", "configmaps", "limitranges") })
	if now := [][2]uint64{{a.epoch("pods"), b.epoch("pods")}, {a.epoch("services"), b.epoch("services")}}; !cmp.Equal(setting, now) {
		t.Errorf("the kinds of the setting have moved: %v, then %v", setting, now)
	}

	cm := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "secretive", Namespace: w.ns}, Data: map[string]string{"k": "do-not-carry"}}
	if _, err := w.cluster.Client().CoreV1().ConfigMaps(w.ns).Create(t.Context(), cm, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	await(t, 30*time.Second, "the object to be carried, without its data", func() bool {
		m, err := b.bus.Last(t.Context(), "configmaps", event.Key{Namespace: w.ns, Name: "secretive"})
		if err == nil && strings.Contains(string(m.Body), "do-not-carry") {
			t.Fatal("data of a ConfigMap is on the bus")
		}
		return err == nil
	})

	a.stop()
	<-a.done
	await(t, 60*time.Second, "the other watcher to carry everything", func() bool {
		for _, kind := range []event.Kind{"pods", "services", "serviceaccounts", "configmaps", "limitranges"} {
			if b.epoch(kind) == 0 {
				return false
			}
		}
		return true
	})
}
