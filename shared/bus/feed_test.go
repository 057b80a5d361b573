package bus_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

func podFeed(b *bus.Bus) bus.Feed {
	return bus.Feed{Name: "test-p0-m.1-7", Filters: []string{event.KindFilter(b.Root(), "pods")}}
}

func TestAFeedReplaysInOrderAndGoesOnLive(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	var want []uint64
	for i := range 1000 {
		want = append(want, mustPublish(t, b, pod(fmt.Sprint("p", i), 1), 0))
	}
	// Superseded messages do not come; what superseded them does, later.
	want = append(want, mustPublish(t, b, pod("p10", 2), want[10]))
	want = slices.Delete(want, 10, 11)
	r := newRecorder()
	follow(t, b, podFeed(b), r, nil)
	r.await(t, "the replay", func() bool { return len(r.got) == 1000 })
	want = append(want, mustPublish(t, b, pod("live", 1), 0))
	r.await(t, "the live message", func() bool { return len(r.got) == 1001 })
	var got []uint64
	for _, m := range r.got {
		got = append(got, m.Seq)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("sequences differ (-want +got):\n%s", diff)
	}
	if last := r.got[1000]; string(last.Body) != "live@1" || last.UID != "uid-live" {
		t.Errorf("delivered %+v", last)
	}
	if r.replay != 1 || len(r.gaps) != 0 {
		t.Errorf("replay %d, gaps %q", r.replay, r.gaps)
	}
}

func TestAPartitionsFeedGetsItsSlice(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	mine, others := 0, 0
	const slice = 3
	for i := range 100 {
		m := pod(fmt.Sprint("p", i), 1)
		mustPublish(t, b, m, 0)
		if partition.OfKey(m.Key, b.Partitions()) == slice {
			mine++
		} else {
			others++
		}
	}
	for i := range b.Partitions() {
		mark := event.Message{Kind: "pods", Op: event.Bookmark, Slice: i, Mark: &event.Mark{}}
		if _, err := publish(t, b, bus.Publication{Message: mark}); err != nil {
			t.Fatal(err)
		}
	}
	r := newRecorder()
	follow(t, b, bus.Feed{Name: "x", Filters: b.Filters(bus.ByKey, []event.Kind{"pods", "nodes"}, slice)}, r, nil)
	r.await(t, "the bookmark", func() bool { return len(r.got) > 0 && r.got[len(r.got)-1].Op == event.Bookmark })
	if len(r.got) != mine+1 || r.got[mine].Slice != slice {
		t.Errorf("delivered %d messages, want %d and the bookmark of %d", len(r.got), mine, slice)
	}
}

func TestHeadersOnly(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	mustPublish(t, b, pod("a", 5), 0)
	mark := event.Message{Kind: "pods", Op: event.Bookmark, Upto: 5, Mark: &event.Mark{Counter: 1}}
	if _, err := publish(t, b, bus.Publication{Message: mark}); err != nil {
		t.Fatal(err)
	}
	f := podFeed(b)
	f.HeadersOnly = true
	r := newRecorder()
	follow(t, b, f, r, nil)
	r.await(t, "both", func() bool { return len(r.got) == 2 })
	if m := r.got[0]; m.Version != 5 || len(m.Body) != 0 {
		t.Errorf("delivered %+v, want headers without a body", m)
	}
	if m := r.got[1]; m.Upto != 5 || m.Mark != nil {
		t.Errorf("delivered %+v, want a bookmark without a mark", m)
	}
}

func TestForeignMessagesAreBrokenAndStopNothing(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "watcher")
	_, js := native(t, s.URL())
	for _, subject := range []string{"k8s.test.pods.1.1.ns.foreign", "k8s.test.pods.what"} {
		if _, err := js.Publish(within(t), subject, []byte("?")); err != nil {
			t.Fatal(err)
		}
	}
	mustPublish(t, b, pod("a", 1), 0)
	r := newRecorder()
	follow(t, b, podFeed(b), r, nil)
	r.await(t, "the good one", func() bool { return len(r.got) == 1 })
	if len(r.broken) != 2 {
		t.Errorf("%d messages were broken, want 2", len(r.broken))
	}
}

// What ends a feed and starts the next: each way must end with a complete replay
// and with nothing delivered in between.
func TestAFeedStartsAnew(t *testing.T) {
	const n = 50
	tests := map[string]struct {
		disturb func(t *testing.T, s *bustest.Server, b *bus.Bus, again chan<- struct{})
		want    int // keys after it
	}{
		"when it is asked to": {
			func(_ *testing.T, _ *bustest.Server, _ *bus.Bus, again chan<- struct{}) { again <- struct{}{} }, n,
		},
		"when its consumer is deleted": {
			func(t *testing.T, s *bustest.Server, _ *bus.Bus, _ chan<- struct{}) { deleteConsumers(t, s.URL()) }, n,
		},
		"when the server restarts": {
			func(_ *testing.T, s *bustest.Server, _ *bus.Bus, _ chan<- struct{}) { s.Restart() }, n,
		},
		"when the stream is wiped": {
			func(t *testing.T, s *bustest.Server, b *bus.Bus, _ chan<- struct{}) {
				s.Wipe()
				bustest.AwaitConnected(t, b)
				await(t, "the streams", func() bool { return b.Ensure(within(t)) == nil })
			}, 0,
		},
		"when the stream is reset": {
			func(t *testing.T, _ *bustest.Server, b *bus.Bus, _ chan<- struct{}) {
				if err := b.Reset(within(t)); err != nil {
					t.Fatal(err)
				}
			}, 0,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			s := bustest.Start(t)
			b := bustest.Connect(t, s.Config(), "watcher")
			for i := range n {
				mustPublish(t, b, pod(fmt.Sprint("p", i), 1), 0)
			}
			r, again := newRecorder(), make(chan struct{}, 1)
			follow(t, b, podFeed(b), r, again)
			r.await(t, "the first replay", func() bool { return len(r.got) == n })
			tt.disturb(t, s, b, again)
			r.await(t, "the second replay", func() bool { return r.replay >= 2 && len(r.got) == tt.want })
			seq := mustPublish(t, b, pod("after", 1), 0)
			r.await(t, "a live message", func() bool { return len(r.got) == tt.want+1 && r.got[tt.want].Seq == seq })
			if len(r.gaps) == 0 || len(r.gaps) < int(r.replay)-1 {
				t.Errorf("%d replays and gaps %q: a feed ended unsaid", r.replay, r.gaps)
			}
		})
	}
}

// A cut connection alone breaks nothing: the same consumer goes on.
func TestAFeedSurvivesACut(t *testing.T) {
	s := bustest.Start(t)
	proxy := bustest.NewProxy(t, s.URL())
	cfg := s.Config()
	writer := bustest.Connect(t, cfg, "watcher")
	cfg.URL = proxy.URL()
	b := bustest.Connect(t, cfg, "reader")
	r := newRecorder()
	follow(t, b, podFeed(b), r, nil)
	r.await(t, "the feed", func() bool { return r.replay == 1 })
	seq := uint64(0)
	for i := range 5 {
		proxy.Drop()
		seq = mustPublish(t, writer, pod("a", uint64(i+1)), seq)
		r.await(t, "the last version", func() bool { return len(r.got) > 0 && r.got[len(r.got)-1].Seq == seq })
	}
}

// No run of disturbances may leave the reader with another picture than the
// stream has: the conformance test of a feed.
func TestAFeedEndsWithWhatTheStreamHolds(t *testing.T) {
	s := bustest.StartProcess(t)
	proxy := bustest.NewProxy(t, s.URL())
	cfg := s.Config()
	writer := bustest.Connect(t, cfg, "watcher")
	cfg.URL = proxy.URL()
	b := bustest.Connect(t, cfg, "reader")
	r := newRecorder()
	follow(t, b, podFeed(b), r, nil)
	r.await(t, "the feed", func() bool { return r.replay == 1 })
	version := uint64(0)
	disturb := []func(){proxy.Drop, func() { deleteConsumers(t, s.URL()) }, func() { s.Kill(); s.Restart() }, proxy.Drop, s.Wipe}
	for round := range disturb {
		for i := range 200 {
			if i == 100 {
				disturb[round]()
				bustest.AwaitConnected(t, writer)
				await(t, "the streams", func() bool { return writer.Ensure(within(t)) == nil })
			}
			version++
			key := pod(fmt.Sprint("p", i%37), version)
			last, err := writer.Last(within(t), "pods", key.Key)
			for err != nil && !errors.Is(err, bus.ErrNone) {
				last, err = writer.Last(within(t), "pods", key.Key)
			}
			_, _ = publish(t, writer, publication(writer, key, last.Seq)) // a failed one is simply not there
		}
		want := map[string]uint64{}
		if err := writer.Snapshot(within(t), "pods", func(m event.Message) { want[m.Key.String()] = m.Version }); err != nil {
			t.Fatal(err)
		}
		r.await(t, fmt.Sprint("the picture of round ", round), func() bool { return cmp.Equal(want, r.last()) })
	}
}

func TestFollowReturnsTheContextsError(t *testing.T) {
	s := bustest.Start(t)
	b := bustest.Connect(t, s.Config(), "watcher")
	r := newRecorder()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- b.Follow(ctx, podFeed(b), r, nil) }()
	r.await(t, "the feed", func() bool { return r.replay == 1 })
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("Follow() = %v, want the context's error", err)
	}
	if len(r.gaps) != 0 {
		t.Errorf("gaps %q, want none at the end", r.gaps)
	}
	_, js := native(t, s.URL())
	await(t, "the consumer to go", func() bool { return len(consumers(t, js)) == 0 })
}

func TestFollowWaitsForTheStream(t *testing.T) {
	s := bustest.Start(t)
	b, err := bus.Connect(within(t), s.Config(), "quota", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	r := newRecorder()
	follow(t, b, podFeed(b), r, nil)
	watcher := bustest.Connect(t, s.Config(), "watcher")
	mustPublish(t, watcher, pod("a", 1), 0)
	r.await(t, "the message", func() bool { return len(r.got) == 1 })
}

func TestSnapshot(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	got := map[string]uint64{}
	take := func() map[string]uint64 {
		t.Helper()
		clear(got)
		err := b.Snapshot(within(t), "pods", func(m event.Message) {
			if m.Body != nil {
				t.Error("a snapshot has bodies")
			}
			got[m.Key.String()] = m.Version
		})
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if n := len(take()); n != 0 {
		t.Errorf("the snapshot of nothing has %d messages", n)
	}
	want := map[string]uint64{}
	for i := range 700 {
		m := pod(fmt.Sprint("p", i), 1)
		mustPublish(t, b, m, 0)
		want[m.Key.String()] = 1
	}
	node := event.Message{Kind: "nodes", Key: event.Key{Name: "n"}, Op: event.Put}
	mustPublish(t, b, node, 0)
	if diff := cmp.Diff(want, take()); diff != "" {
		t.Errorf("snapshot differs (-want +got):\n%s", diff)
	}
}

// A key that changes ahead of the cursor must not be missing from a snapshot:
// its owner would take it for deleted.
func TestASnapshotMissesNoKeyThatChangesMeanwhile(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	const keys = 400
	seqs := make([]uint64, keys)
	for i := range keys {
		seqs[i] = mustPublish(t, b, pod(fmt.Sprint("p", i), 1), 0)
	}
	background(t, func(ctx context.Context) {
		for i := 0; ctx.Err() == nil; i = (i + 1) % keys {
			seqs[i] = mustPublish(t, b, pod(fmt.Sprint("p", i), 2), seqs[i])
		}
	})
	for range 20 {
		got := map[string]bool{}
		if err := b.Snapshot(within(t), "pods", func(m event.Message) { got[m.Key.String()] = true }); err != nil {
			t.Fatal(err)
		}
		if len(got) != keys {
			t.Fatalf("the snapshot has %d keys, want %d", len(got), keys)
		}
	}
}

// What was still to come may expire before it comes: tombstones do. Nothing then
// says that the snapshot is whole, but the next heartbeat.
func TestASnapshotEndsThoughWhatWasPendingHasExpired(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	for i := range 300 { // more than one pull brings
		p := publication(b, pod(fmt.Sprint("p", i), 1), 0)
		if i > 250 {
			p.TTL = time.Second
		}
		if _, err := publish(t, b, p); err != nil {
			t.Fatal(err)
		}
	}
	slow := sync.OnceFunc(func() { <-time.After(3 * time.Second) }) // real servers, real time
	if err := b.Snapshot(within(t), "pods", func(event.Message) { slow() }); err != nil {
		t.Fatal(err)
	}
}

func TestDeadLetters(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "quota")
	letter := deadLetter("n1")
	for _, reason := range []string{"once", "twice"} {
		letter.Reason = reason
		if err := b.DeadLetter(within(t), letter); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.DeadLetter(within(t), deadLetter("n2")); err != nil {
		t.Fatal(err)
	}
	if err := b.ClearDeadLetter(within(t), "quota", "nodes", event.Key{Name: "n2"}); err != nil {
		t.Fatal(err)
	}
	got, err := b.DeadLetters(within(t))
	if err != nil || len(got) != 1 || got[0].GetName() != "n1" || got[0].GetReason() != "twice" {
		t.Errorf("DeadLetters() = %v, %v, want the last one of n1", got, err)
	}
}

func TestDigests(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	sent := make(chan error, 8)
	for i := range 4 {
		b.PublishDigest(i, fmt.Append(nil, "digest ", i), func(_ uint64, err error) { sent <- err })
	}
	for range 4 {
		if err := <-sent; err != nil {
			t.Fatal(err)
		}
	}
	if body, err := b.LastDigest(within(t), 2); err != nil || string(body) != "digest 2" {
		t.Errorf("LastDigest(2) = %q, %v", body, err)
	}
	if _, err := b.LastDigest(within(t), 7); !errors.Is(err, bus.ErrNone) {
		t.Errorf("LastDigest of a slice without one: %v", err)
	}
	all, some := newDigests(), newDigests()
	background(t, func(ctx context.Context) { _ = b.FollowDigests(ctx, "all", nil, all) })
	background(t, func(ctx context.Context) { _ = b.FollowDigests(ctx, "some", []int{1, 3}, some) })
	for name, want := range map[string]struct {
		sink *digests
		n    int
	}{"all": {all, 4}, "some": {some, 2}} {
		for range want.n {
			if d := <-want.sink.got; d.body != fmt.Sprint("digest ", d.slice) {
				t.Errorf("%s: slice %d has %q", name, d.slice, d.body)
			}
		}
	}
}

type digest struct {
	slice int
	body  string
}

type digests struct{ got chan digest }

func newDigests() *digests { return &digests{make(chan digest, 16)} }

func (d *digests) Begin(uint64)                            {}
func (d *digests) Digest(slice int, _ uint64, body []byte) { d.got <- digest{slice, string(body)} }
func (d *digests) Gap(string)                              {}

func consumers(t testing.TB, js jetstream.JetStream) []string {
	t.Helper()
	stream, err := js.Stream(within(t), "K8S_test")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	list := stream.ConsumerNames(within(t))
	for name := range list.Name() {
		names = append(names, name)
	}
	if list.Err() != nil {
		t.Fatal(list.Err())
	}
	return names
}

func deleteConsumers(t testing.TB, url string) {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range consumers(t, js) {
		if err := js.DeleteConsumer(within(t), "K8S_test", name); err != nil && !errors.Is(err, jetstream.ErrConsumerNotFound) {
			t.Fatal(err)
		}
	}
}

// What "caught up" rests on: not "nothing pending", but that the last message is
// not behind the reader.
func TestCompleteLooksAtTheLastMessage(t *testing.T) {
	b := bustest.Connect(t, bustest.Start(t).Config(), "watcher")
	pods := []string{event.KindFilter(b.Root(), "pods")}
	ask := func(filters []string, seq uint64, want bool) {
		t.Helper()
		if got, err := b.Complete(within(t), filters, seq); got != want || err != nil {
			t.Errorf("complete at %d = %t, %v, want %t", seq, got, err, want)
		}
	}
	ask(pods, 0, true) // there is nothing
	first := mustPublish(t, b, pod("a", 1), 0)
	ask(pods, 0, false)
	ask(pods, first, true)
	last := mustPublish(t, b, pod("a", 2), first) // it replaced the only one
	ask(pods, first, false)
	ask(pods, last, true)
	mustPublish(t, b, event.Message{Kind: "nodes", Key: event.Key{Name: "n"}, Op: event.Put}, 0)
	ask(pods, last, true) // another kind is not our concern
	ask([]string{pods[0], event.KindFilter(b.Root(), "nodes")}, last, false)
}
