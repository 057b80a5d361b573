package bus_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/bus/embedded"
	"github.com/millrace-io/millrace/shared/event"
)

func TestPublishExpectsTheLastSequence(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	first := mustPublish(t, b, pod("a", 1), 0)
	second := mustPublish(t, b, pod("a", 2), first)
	if second <= first {
		t.Errorf("sequence %d came after %d", second, first)
	}
	for name, expect := range map[string]uint64{"none": 0, "an old one": first, "a later one": second + 1} {
		if _, err := publish(t, b, publication(b, pod("a", 3), expect)); !errors.Is(err, bus.ErrRefused) {
			t.Errorf("publishing on %s = %v, want ErrRefused", name, err)
		}
	}
	mustPublish(t, b, pod("b", 1), 0) // another subject knows nothing of it
	want := pod("a", 2)
	want.Seq = second
	got, err := b.Last(within(t), "pods", want.Key)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("Last() differs (-want +got):\n%s", diff)
	}
	if _, err := b.Last(within(t), "pods", event.Key{Name: "never"}); !errors.Is(err, bus.ErrNone) {
		t.Errorf("Last() of nothing = %v, want ErrNone", err)
	}
}

func TestABookmarkStandsInItsSlice(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	want := event.Message{Kind: "pods", Op: event.Bookmark, Slice: 3, Upto: 9, Epoch: 4, Mark: &event.Mark{Counter: 1, ByKey: event.Sums{Count: 2}}}
	seq, err := publish(t, b, bus.Publication{Message: want})
	if err != nil {
		t.Fatal(err)
	}
	got, err := b.LastMark(within(t), "pods", 3)
	want.Seq = seq
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("LastMark() = %v, differs (-want +got):\n%s", err, diff)
	}
	if _, err := b.LastMark(within(t), "pods", 4); !errors.Is(err, bus.ErrNone) {
		t.Errorf("LastMark() of another slice = %v, want ErrNone", err)
	}
}

func TestATombstoneVanishesAndTheSubjectIsFree(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	seq := mustPublish(t, b, pod("a", 1), 0)
	gone := pod("a", 2)
	gone.Op, gone.Body = event.Delete, nil
	p := publication(b, gone, seq)
	p.TTL = time.Second
	if _, err := publish(t, b, p); err != nil {
		t.Fatal(err)
	}
	if m, err := b.Last(within(t), "pods", gone.Key); err != nil || m.Op != event.Delete {
		t.Errorf("Last() = %s, %v, want the tombstone", m.Op, err)
	}
	await(t, "the tombstone to vanish", func() bool {
		_, err := b.Last(within(t), "pods", gone.Key)
		return errors.Is(err, bus.ErrNone)
	})
	mustPublish(t, b, pod("a", 3), 0)
}

func TestWhatIsTooLargeIsRefused(t *testing.T) {
	for name, limit := range map[string]int32{"by us": embedded.MaxPayload, "by a server with a small limit": 1 << 20} {
		t.Run(name, func(t *testing.T) {
			s := bustest.Start(t, func(o *embedded.Options) { o.MaxPayload = limit })
			b := bustest.Connect(t, s.Config(), "watcher")
			m := pod("a", 1)
			m.Body = bytes.Repeat([]byte("x"), int(min(limit, 4<<20)))
			if _, err := publish(t, b, publication(b, m, 0)); !errors.Is(err, bus.ErrTooLarge) {
				t.Errorf("publishing %d bytes = %v, want ErrTooLarge", len(m.Body), err)
			}
			m.Body = m.Body[:len(m.Body)-1024]
			mustPublish(t, b, m, 0)
		})
	}
}

func TestAFullStreamRefusesNewKeysAndTakesUpdates(t *testing.T) {
	cfg := bustest.Start(t).Config()
	cfg.MaxBytes = 64 << 10
	b := bustest.Connect(t, cfg, "watcher")
	m := pod("first", 1)
	m.Body = bytes.Repeat([]byte("x"), 2000)
	seq := mustPublish(t, b, m, 0)
	var err error
	for i := 0; err == nil; i++ {
		m.Key.Name = fmt.Sprint("p", i)
		_, err = publish(t, b, publication(b, m, 0))
	}
	if !errors.Is(err, bus.ErrFull) {
		t.Errorf("filling the stream ended with %v, want ErrFull", err)
	}
	m.Key.Name, m.Body = "first", m.Body[:100]
	mustPublish(t, b, m, seq)
}

func TestNobodyKeepsTheStream(t *testing.T) {
	b, err := bus.Connect(within(t), bustest.Start(t).Config(), "watcher", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	bustest.AwaitConnected(t, b)
	if _, err := publish(t, b, publication(b, pod("a", 1), 0)); !errors.Is(err, bus.ErrNoResponders) {
		t.Errorf("publishing without a stream = %v, want ErrNoResponders", err)
	}
}

// ⚠ Fails without nats.ReconnectBufSize(-1): the library would keep the message
// and send it after the reconnect, when a newer object may stand there.
func TestNothingIsKeptWhileTheServerIsAway(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "watcher")
	s.Stop()
	bustest.AwaitDisconnected(t, b)
	for i := range 10 {
		if _, err := publish(t, b, publication(b, pod(fmt.Sprint("p", i), 1), 0)); !errors.Is(err, bus.ErrDisconnected) {
			t.Fatalf("publishing while the server is away = %v, want ErrDisconnected", err)
		}
	}
	if _, err := b.Ask(within(t), "nobody", nil); !errors.Is(err, bus.ErrDisconnected) {
		t.Errorf("asking while the server is away = %v, want ErrDisconnected", err)
	}
	if err := b.Verify(within(t)); !errors.Is(err, bus.ErrDisconnected) {
		t.Errorf("Verify() while the server is away = %v, want ErrDisconnected", err)
	}
	s.Restart()
	bustest.AwaitConnected(t, b)
	mustPublish(t, b, pod("after", 1), 0)
	for i := range 10 {
		if m, err := b.Last(within(t), "pods", pod(fmt.Sprint("p", i), 1).Key); !errors.Is(err, bus.ErrNone) {
			t.Fatalf("a message from before the reconnect arrived: %v, %v", m.Key, err)
		}
	}
}

func TestConnectWaitsForAServer(t *testing.T) {
	s := bustest.Start(t)
	s.Stop()
	b, err := bus.Connect(within(t), s.Config(), "watcher", nil, nil)
	if err != nil {
		t.Fatalf("connecting while the server is away: %v", err)
	}
	t.Cleanup(b.Close)
	if st := b.State(); st.Connected || st.Generation != 0 {
		t.Errorf("State() = %+v, want not connected", st)
	}
	if _, err := publish(t, b, publication(b, pod("a", 1), 0)); !errors.Is(err, bus.ErrDisconnected) {
		t.Errorf("publishing before the first connection = %v, want ErrDisconnected", err)
	}
	s.Restart()
	bustest.AwaitConnected(t, b)
	st := b.State()
	if st.Generation != 1 || st.ServerID == "" || st.MaxPayload != embedded.MaxPayload {
		t.Errorf("State() = %+v, want the first generation and what the server said", st)
	}
	if err := b.Ensure(within(t)); err != nil {
		t.Error(err)
	}
}

// A server that hangs answers nothing: the publication comes back all the same,
// and the connected clock stands still.
func TestAFrozenServer(t *testing.T) {
	p := bustest.StartProcess(t)
	b := bustest.Connect(t, p.Config(), "watcher")
	await(t, "the clock to run", func() bool { return b.Now() > 0 })
	p.Freeze()
	start := time.Now()
	_, err := publish(t, b, publication(b, pod("a", 1), 0))
	if took := time.Since(start); err == nil || took > 10*time.Second {
		t.Errorf("publishing to a frozen server = %v after %s, want an error after 2 s", err, took)
	}
	bustest.AwaitDisconnected(t, b)
	froze := time.Since(start)
	stood := b.Now()
	p.Thaw()
	bustest.AwaitConnected(t, b)
	if ran := b.Now() - stood; ran > time.Second {
		t.Errorf("the clock ran %s at the thaw, frozen for %s", ran, froze)
	}
	if _, err := b.Last(within(t), "pods", pod("a", 1).Key); err != nil && !errors.Is(err, bus.ErrNone) {
		t.Errorf("Last() after the thaw = %v", err)
	}
}

// Every publication is answered once, whatever happens to the connection.
func TestEveryPublicationIsAnsweredOnce(t *testing.T) {
	s := bustest.Start(t)
	proxy := bustest.NewProxy(t, s.URL())
	cfg := s.Config()
	cfg.URL = proxy.URL()
	b := bustest.Connect(t, cfg, "watcher")
	const total = 4000
	var answers [total]atomic.Int32
	var acked [total]atomic.Uint64
	var all sync.WaitGroup
	slots := make(chan struct{}, 256)
	for i := range total {
		if i%500 == 250 {
			proxy.Drop()
		}
		slots <- struct{}{}
		all.Add(1)
		b.Publish(publication(b, pod(fmt.Sprint("p", i), 1), 0), func(seq uint64, err error) {
			if answers[i].Add(1) == 1 {
				<-slots
				all.Done()
			}
			if err == nil {
				acked[i].Store(seq)
			}
		})
	}
	all.Wait()
	b.Close()
	check := bustest.Connect(t, s.Config(), "check")
	for i := range total {
		if n := answers[i].Load(); n != 1 {
			t.Errorf("publication %d was answered %d times", i, n)
		}
		if seq := acked[i].Load(); seq != 0 {
			m, err := check.Last(within(t), "pods", pod(fmt.Sprint("p", i), 1).Key)
			if err != nil || m.Seq != seq {
				t.Fatalf("publication %d was acknowledged at %d and stands at %d, %v", i, seq, m.Seq, err)
			}
		}
	}
}

func TestCloseAnswersWhatIsUnderWay(t *testing.T) {
	p := bustest.StartProcess(t)
	b := bustest.Connect(t, p.Config(), "watcher")
	p.Freeze()
	got := make(chan error, 1)
	b.Publish(publication(b, pod("a", 1), 0), func(_ uint64, err error) { got <- err })
	b.Close()
	if err := <-got; !errors.Is(err, bus.ErrClosed) && !errors.Is(err, bus.ErrDisconnected) && !errors.Is(err, bus.ErrTimeout) {
		t.Errorf("publication under way at Close = %v", err)
	}
	if _, err := publish(t, b, publication(b, pod("a", 1), 0)); !errors.Is(err, bus.ErrClosed) {
		t.Errorf("publishing after Close = %v, want ErrClosed", err)
	}
	b.Close()
}

func TestMetricsStartAtZeroAndCount(t *testing.T) {
	s := bustest.Start(t)
	reg := prometheus.NewRegistry()
	b, err := bus.Connect(within(t), s.Config(), "watcher", nil, reg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	bustest.AwaitConnected(t, b)
	if err := b.Ensure(within(t)); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := map[string]int{}
	for _, f := range families {
		series[f.GetName()] = len(f.GetMetric())
	}
	want := map[string]int{
		"millrace_bus_publishes_total": 7, "millrace_bus_kv_cas_total": 21, "millrace_bus_feed_replays_total": 6,
		"millrace_bus_publish_seconds": 1, "millrace_bus_feed_gaps_total": 1, "millrace_bus_reconnects_total": 1,
		"millrace_bus_broken_messages_total": 1, "millrace_bus_connected": 1,
	}
	if diff := cmp.Diff(want, series); diff != "" {
		t.Errorf("series differ (-want +got):\n%s", diff)
	}
}

func TestLogin(t *testing.T) {
	s := bustest.Start(t, bustest.Configure(func(o *server.Options) { o.Username, o.Password = "mill", "race" }))
	cfg := s.Config()
	cfg.User, cfg.PasswordFile = "mill", t.TempDir()+"/password"
	if _, err := bus.Connect(within(t), cfg, "watcher", nil, nil); err == nil {
		t.Error("a password file that does not exist was accepted")
	}
	write(t, cfg.PasswordFile, "wrong\n")
	b, err := bus.Connect(within(t), cfg, "watcher", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	write(t, cfg.PasswordFile, "race\n") // rotated while it tries
	bustest.AwaitConnected(t, b)
}
