package role

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/controller/controllertest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/process"
)

const pods event.Kind = "pods"

// courier carries what the watchers of a small world say to a real NATS.
type courier struct {
	t   *testing.T
	b   *bus.Bus
	seq map[string]uint64
}

func (c *courier) Begin(uint64) {}

func (c *courier) Gap(string) {}

func (c *courier) Broken(subject string, _ uint64, err error) { c.t.Errorf("%s: %v", subject, err) }

func (c *courier) Deliver(m event.Message) {
	at := fmt.Sprint(m.Kind, m.Key, m.Slice, m.Op == event.Bookmark)
	done := make(chan error, 1)
	c.b.Publish(bus.Publication{
		Message: m, PK: partition.OfKey(m.Key, c.b.Partitions()), PN: partition.OfNamespace(m.Key, c.b.Partitions()), Expect: c.seq[at],
	}, func(seq uint64, err error) {
		c.seq[at] = seq
		done <- err
	})
	if err := <-done; err != nil {
		c.t.Errorf("publishing %s: %v", at, err)
	}
}

// carrying lets a watcher of pods run in a world and carries what it says.
func carrying(t *testing.T, b *bus.Bus) *controllertest.World {
	t.Helper()
	w := controllertest.New(b.Partitions())
	w.Watch(pods, 1)
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { w.Tick(ctx) })
	tasks.Go(func() {
		feed := event.Feed{Name: "all", Filters: []string{event.KindFilter(event.Root(w.Cluster()), pods)}}
		_ = w.Follow(ctx, feed, &courier{t, b, map[string]uint64{}}, nil) // it ends with ctx
	})
	t.Cleanup(func() { cancel(); tasks.Wait() })
	return w
}

// terminal keeps the bodies of pods that have ended, and of the others only that
// they are there.
func terminal(m event.Message) (any, error) {
	if body := string(m.Body); body == "Succeeded" {
		return ended{m.Key, m.UID, m.Version}, nil
	}
	return running{}, nil
}

type (
	ended struct {
		key     event.Key
		uid     string
		version uint64
	}
	running struct{}
)

// trimmer is a job that deletes what is above a threshold.
type trimmer struct {
	w      *controllertest.World
	most   int
	passed chan int // how many a pass has deleted
}

func (tr *trimmer) work(ctx context.Context, j *controller.Job) error {
	return j.Every(ctx, time.Second, func(ctx context.Context) error { return tr.pass(ctx, j) })
}

func (tr *trimmer) pass(ctx context.Context, j *controller.Job) error {
	var found []ended
	if err := j.Look(ctx, func(r controller.Reader) { found = cache.List[ended](r, pods, "") }); err != nil {
		return err
	}
	slices.SortFunc(found, func(a, b ended) int { return a.key.Compare(b.key) })
	excess := max(0, len(found)-tr.most)
	for i, e := range found[:min(excess, 10)] { // so many a pass, so that there are some
		track := &Track{Partition: j, Key: e.key, Rule: "terminated", Danger: controller.Evicting, Detail: func() string {
			return fmt.Sprintf("%d ended, %d may stay", len(found), tr.most)
		}}
		if err := track.Guard(ctx); err != nil {
			tr.passed <- i
			return err
		}
		tr.w.Delete(pods, e.key)
		track.Wrote(kube.Write{Verb: kube.VerbDelete, Ref: kube.Ref{Kind: pods, Key: e.key, UID: e.uid, Version: e.version}})
	}
	tr.passed <- min(excess, 10)
	return nil
}

// A job that counts the whole cluster counts right: over passes that follow each
// other at once, and over a take-over in the middle, never one too many is deleted.
func TestAJobCountsTheWholeCluster(t *testing.T) {
	const all, most = 300, 75
	server := bustest.Start(t)
	w := carrying(t, bustest.Connect(t, server.Config(), "watcher"))
	for i := range all {
		body := "Running"
		if i%3 == 0 {
			body = "Succeeded" // 100 of them
		}
		w.Put(pods, event.Key{Namespace: fmt.Sprint("ns", i%17), Name: fmt.Sprint("p", i)}, body)
	}
	left := func() (n int) {
		for _, o := range w.Objects(pods) {
			if o.Body == "Succeeded" {
				n++
			}
		}
		return n
	}
	member := func(host string) (tr *trimmer, stop func()) {
		b := bustest.Connect(t, server.Config(), "tester")
		e := &Edges{Bus: b, name: "tester", host: host, env: &process.Env{Log: slog.New(slog.DiscardHandler), Registry: prometheus.NewRegistry()}}
		tr = &trimmer{w, most, make(chan int, 100)}
		e.Job(controller.JobDefinition{Name: "trim", Inputs: []cache.Input{{Kind: pods, Projection: 1, Decode: terminal}}}, tr.work)
		_, stop = serving(t, e, nil)
		return tr, stop
	}
	next := func(tr *trimmer) int {
		t.Helper()
		select {
		case n := <-tr.passed:
			return n
		case <-time.After(30 * time.Second):
			t.Fatal("there was no pass")
			return 0
		}
	}
	first, stop := member("a")
	if n := next(first); n != 10 {
		t.Errorf("the first pass deleted %d, want 10", n)
	}
	second, _ := member("b")
	stop() // in the middle: what it has deleted may be on its way
	for passes := 0; next(second) > 0; passes++ {
		if passes > 3 {
			t.Fatal("it goes on deleting")
		}
	}
	if n := left(); n != most || len(w.Objects(pods)) != all-100+most {
		t.Errorf("%d ended pods are left of %d, want %d", n, len(w.Objects(pods)), most)
	}
}
