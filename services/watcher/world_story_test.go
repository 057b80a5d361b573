package watcher

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/partition"
)

// raw is JetStream without our bus, to look at the stream and to spoil it.
func (w *world) raw() jetstream.Stream {
	w.t.Helper()
	nc, err := nats.Connect(w.server.URL())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		w.t.Fatal(err)
	}
	s, err := js.Stream(w.t.Context(), "K8S_test")
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

func (w *world) subject(name string) string {
	key, p := event.Key{Namespace: w.ns, Name: name}, w.server.Config().Partitions
	return event.Subject(event.Root("test"), "pods", key, partition.OfKey(key, p), partition.OfNamespace(key, p))
}

func TestPodsComeChangeAndGo(t *testing.T) {
	w := newWorld(t)
	w.createMany("before", 10)
	w.watcher(nil)
	w.agree(30 * time.Second)
	w.createMany("after", 10)
	w.label("before-003", "1")
	w.remove("before-005")
	w.agree(10 * time.Second)

	m, err := w.raw().GetLastMsgForSubject(t.Context(), w.subject("before-005"))
	if err != nil {
		t.Fatal(err)
	}
	if op, ttl := m.Header.Get("Mr-Op"), m.Header.Get(jetstream.MsgTTLHeader); op != "delete" || ttl != "24h0m0s" || len(m.Data) != 0 {
		t.Errorf("the last word on a deleted pod is %s with a life of %s and %d bytes, want an empty tombstone for a day", op, ttl, len(m.Data))
	}
}

func TestAKilledWatcherIsReplacedAndNothingIsLost(t *testing.T) {
	w := newWorld(t)
	w.createMany("p", 20)
	first := w.watcher(nil)
	await(t, 30*time.Second, "the first watcher to publish", func() bool { return w.reader.lastEpoch() > 0 })
	second := w.watcher(nil)
	third := w.watcher(nil) // two others must answer for the quick way of finding it dead
	for round := range 3 {
		await(t, 30*time.Second, "an owner of pods", func() bool {
			return first.holds("pods") || second.holds("pods") || third.holds("pods")
		})
		w.agree(30 * time.Second)
		victim := &first
		if second.holds("pods") {
			victim = &second
		} else if third.holds("pods") {
			victim = &third
		}
		before := w.reader.lastEpoch()
		w.create(fmt.Sprintf("during-%d", round))
		(*victim).kill()
		w.remove(fmt.Sprintf("p-%03d", round))
		w.label(fmt.Sprintf("p-%03d", 10+round), "1")
		killed := time.Now()
		await(t, 30*time.Second, "bookmarks of the next epoch", func() bool { return w.reader.lastEpoch() > before })
		t.Logf("bookmarks of the next epoch %s after the kill", time.Since(killed).Round(time.Millisecond))
		w.agree(30 * time.Second)
		*victim = w.watcher(nil)
	}
}

func TestAHandOverLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.createMany("p", 10)
	first := w.watcher(nil)
	await(t, 30*time.Second, "the first watcher to publish", func() bool { return w.reader.lastEpoch() > 0 })
	w.agree(30 * time.Second)
	before := w.reader.lastEpoch()
	w.watcher(nil)
	first.stop()
	<-first.done
	stopped := time.Now()
	w.label("p-001", "1")
	await(t, 30*time.Second, "bookmarks of the next epoch", func() bool { return w.reader.lastEpoch() > before })
	t.Logf("bookmarks of the next epoch %s after the release", time.Since(stopped).Round(time.Millisecond))
	w.agree(30 * time.Second)
}

func TestARestartOfNATSLosesNothing(t *testing.T) {
	w := newWorld(t)
	w.createMany("p", 20)
	w.watcher(nil)
	w.agree(30 * time.Second)
	w.server.Stop()
	w.label("p-001", "1")
	w.remove("p-002")
	w.create("while-away")
	w.server.Restart()
	w.agree(45 * time.Second)
}

func TestAWipedNATSIsFilledAgain(t *testing.T) {
	w := newWorld(t)
	w.createMany("p", 60)
	w.watcher(nil)
	w.agree(30 * time.Second)
	w.remove("p-002")
	w.server.Wipe()
	w.create("after")
	w.agree(60 * time.Second)
}

// After a crash a server may have lost keys, or brought back some; nobody tells.
func TestAComparisonRepairsTheStream(t *testing.T) {
	w := newWorld(t)
	w.createMany("p", 20)
	m := w.watcher(nil)
	w.agree(30 * time.Second)
	stream := w.raw()
	lost, err := stream.GetLastMsgForSubject(t.Context(), w.subject("p-001"))
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.DeleteMsg(t.Context(), lost.Sequence); err != nil {
		t.Fatal(err)
	}
	ghost := nats.NewMsg(w.subject("ghost"))
	ghost.Header, ghost.Data = lost.Header, lost.Data
	nc, err := nats.Connect(w.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	if err := nc.PublishMsg(ghost); err != nil {
		t.Fatal(err)
	}
	if _, err := m.bus.Ask(t.Context(), askSubject("test", "pods", "compare"), nil); err != nil {
		t.Fatal(err)
	}
	await(t, 20*time.Second, "the lost pod to be published again", func() bool {
		m, err := stream.GetLastMsgForSubject(t.Context(), w.subject("p-001"))
		return err == nil && m.Header.Get("Mr-Op") == "put"
	})
	await(t, 20*time.Second, "the ghost to be withdrawn", func() bool {
		m, err := stream.GetLastMsgForSubject(t.Context(), w.subject("ghost"))
		return err == nil && m.Header.Get("Mr-Op") == "delete"
	})
	w.agree(30 * time.Second)
}

// What cannot be read is replaced, whether something should stand there or not,
// and whether it came while a watcher looked or before.
func TestGarbageInTheStreamIsReplaced(t *testing.T) {
	for name, before := range map[string]bool{"while watched": false, "before": true} {
		t.Run(name, func(t *testing.T) { replaceGarbage(t, before) })
	}
}

func replaceGarbage(t *testing.T, before bool) {
	w := newWorld(t)
	w.createMany("p", 5)
	if !before {
		w.watcher(nil)
		w.agree(30 * time.Second)
	}
	nc, err := nats.Connect(w.server.URL())
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	for _, subject := range []string{w.subject("p-001"), w.subject("nobody"), event.BookmarkSubject(event.Root("test"), "pods", 1)} {
		if err := nc.Publish(subject, []byte("garbage")); err != nil {
			t.Fatal(err)
		}
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	if before {
		w.watcher(nil)
	}
	stream := w.raw()
	await(t, 20*time.Second, "garbage to be replaced", func() bool {
		one, err1 := stream.GetLastMsgForSubject(t.Context(), w.subject("p-001"))
		two, err2 := stream.GetLastMsgForSubject(t.Context(), w.subject("nobody"))
		return err1 == nil && err2 == nil && one.Header.Get("Mr-Op") == "put" && two.Header.Get("Mr-Op") == "delete"
	})
	w.agree(30 * time.Second)
}

func TestDeletionsWhileTheWatchWasCutAreToldExactly(t *testing.T) {
	w := newWorld(t)
	proxy := kubetest.StartProxy(t, w.cluster)
	w.createMany("p", 50)
	w.watcher(proxy.Config(kubetest.RoleWatcher))
	w.agree(30 * time.Second)
	w.reader.forgot()
	proxy.Refuse("pods")
	var want []event.Key
	for i := range 10 {
		name := fmt.Sprintf("p-%03d", i*5)
		w.remove(name)
		want = append(want, event.Key{Namespace: w.ns, Name: name})
	}
	marks := func() int { w.reader.mu.Lock(); defer w.reader.mu.Unlock(); return w.reader.marks }
	time.Sleep(1500 * time.Millisecond)
	before := marks()
	time.Sleep(2 * time.Second)
	if more := marks() - before; more != 0 {
		t.Errorf("%d bookmarks while there was no watch", more)
	}
	proxy.Accept("pods")
	w.agree(45 * time.Second)
	got := w.reader.forgot()
	slices.SortFunc(got, event.Key.Compare)
	if !slices.Equal(got, want) {
		t.Errorf("forgotten: %v, want %v", got, want)
	}
}

// An unlistable kind degrades itself and nothing else.
func TestAKindThatCannotBeWatchedStopsNothingElse(t *testing.T) {
	w := newWorld(t)
	proxy := kubetest.StartProxy(t, w.cluster)
	proxy.Refuse("services")
	w.createMany("p", 5)
	m := w.watcher(proxy.Config(kubetest.RoleWatcher))
	w.agree(30 * time.Second)
	await(t, 10*time.Second, "pods to be ready", func() bool {
		return m.h.kinds["pods"].status.ready(time.Now()) == nil
	})
	await(t, 10*time.Second, "a reason for services", func() bool {
		return m.h.kinds["services"].status.ready(time.Now()) != nil
	})
	t.Log(m.h.kinds["services"].status.ready(time.Now()))
}
