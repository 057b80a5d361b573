package e2e

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// tombstones is how long the last word on a deleted object lives here, so that
// it expires while a test runs.
const tombstones = 3 * time.Second

// faults is an installation that is being broken.
type faults struct {
	t        *testing.T
	f        *fleet.Fleet
	proxy    *kubetest.Proxy // between watchers and the API server
	env      []string        // of watchers
	watchers []*fleet.Member
	members  []*fleet.Member
	rng      *rand.Rand
}

// kindsOfFault are all there are; two rounds have them all.
var kindsOfFault = []struct {
	name string
	do   func(ctx context.Context, b *faults)
}{
	{"watcher killed", func(ctx context.Context, b *faults) {
		b.killWatchers()
		pause(ctx, 1500*time.Millisecond)
		b.startWatcher(ctx)
	}},
	{"watcher killed, another standing by", func(ctx context.Context, b *faults) {
		first := b.watchers
		b.watchers = nil
		b.startWatcher(ctx)
		ready(ctx, b.t, b.watchers...)
		for _, w := range first {
			w.Kill()
		}
	}},
	{"replica killed", func(ctx context.Context, b *faults) {
		i := b.rng.IntN(len(b.members))
		b.members[i].Kill()
		b.members[i] = start(ctx, b.t, b.f, "endpoints")
	}},
	{"NATS killed", func(ctx context.Context, b *faults) {
		b.f.NATS.Kill()
		pause(ctx, time.Second)
		b.restartNATS(ctx)
	}},
	{"NATS killed after tombstones have expired", func(ctx context.Context, b *faults) {
		pause(ctx, 2*tombstones) // while the workload deletes
		before := messages(ctx, b.t, b.f)
		b.f.NATS.Kill()
		b.restartNATS(ctx)
		b.t.Logf("%d messages before, %d after: what is more had expired", before, messages(ctx, b.t, b.f))
	}},
	{"NATS killed and wiped", func(ctx context.Context, b *faults) {
		b.f.NATS.Kill()
		if err := b.f.NATS.Wipe(); err != nil {
			b.t.Fatal(err)
		}
		b.restartNATS(ctx)
	}},
	{"API server killed", func(ctx context.Context, b *faults) {
		b.f.Cluster.Kill()
		pause(ctx, time.Second)
		b.restartServer(ctx)
	}},
	{"history compacted while the watcher is away", func(ctx context.Context, b *faults) {
		b.proxy.Down()
		pause(ctx, time.Second) // there must be something to miss
		if err := b.f.Cluster.Compact(ctx); err != nil {
			b.t.Fatal(err)
		}
		b.restartServer(ctx)
		b.proxy.Up()
	}},
}

// messages is how many there are in the stream of events.
func messages(ctx context.Context, t *testing.T, f *fleet.Fleet) (n uint64) {
	t.Helper()
	withJetStream(t, f, func(js jetstream.JetStream) {
		eventually(ctx, t, 10*time.Second, "the stream tells its size", func() (bool, string) {
			stream, err := js.Stream(ctx, "K8S_default")
			if err != nil {
				return false, err.Error()
			}
			n = stream.CachedInfo().State.Msgs
			return true, ""
		})
	})
	return n
}

// withJetStream does something over a connection of its own.
func withJetStream(t *testing.T, f *fleet.Fleet, do func(js jetstream.JetStream)) {
	t.Helper()
	nc, err := nats.Connect(f.NATS.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	do(js)
}

// Contract: I4 and "nothing lost" of issue 2. Whatever is killed, wiped or cut
// while services and pods change: at rest, slices say what pods do, and no pod
// that stayed ready was absent on the way. Long form: ROUNDS=20.
func TestFaults(t *testing.T) {
	const perRound = 4
	rounds, seed := number(t, "ROUNDS", 2), uint64(number(t, "SEED", 1)) //nolint:gosec // positive
	ctx, f := begin(t, time.Duration(rounds)*4*time.Minute)
	b := &faults{
		t: t, f: f, proxy: kubetest.StartProxy(t, f.Cluster), rng: rand.New(rand.NewPCG(seed, 3)), //nolint:gosec // a seed is the point
		env: []string{"MILLRACE_WATCHER_TOMBSTONE_LIFE=" + tombstones.String()},
	}
	kubeconfig, err := b.proxy.Kubeconfig(kubetest.RoleWatcher)
	if err != nil {
		t.Fatal(err)
	}
	b.env = append(b.env, "KUBECONFIG="+kubeconfig)
	b.startWatcher(ctx)
	for range 3 {
		b.members = append(b.members, start(ctx, t, f, "endpoints"))
	}
	ready(ctx, t, append(b.watchers, b.members...)...)
	w := prepare(ctx, t, f, prefixOf(t), seed, 60)
	o := observe(ctx, t, f, w.prefix)
	var schedule []int
	for round := range rounds {
		if len(schedule) < perRound {
			schedule = b.rng.Perm(len(kindsOfFault))
		}
		var now []int
		now, schedule = schedule[:perRound], schedule[perRound:]
		b.round(ctx, w, o, round, now)
	}
	o.noHoles(t, inputsMayBe)
}

// round breaks things while the workload runs, heals them, and looks.
func (b *faults) round(ctx context.Context, w *workload, o *observer, round int, which []int) {
	working, stop := context.WithCancel(ctx)
	var worked sync.WaitGroup
	worked.Go(func() { w.run(working, 1<<40) })
	defer worked.Wait()
	defer stop()
	var names []string
	for _, i := range which {
		began := time.Now()
		kindsOfFault[i].do(ctx, b)
		b.settle(ctx)
		names = append(names, kindsOfFault[i].name+" "+time.Since(began).Round(100*time.Millisecond).String())
		pause(ctx, time.Second) // some work in health between two faults
	}
	stop()
	worked.Wait()
	rest := o.awaitRest(ctx, b.t, b.f, 60*time.Second)
	b.t.Logf("round %d: %s; %d changes so far, at rest after %s", round, strings.Join(names, ", "), w.changes.Load(), rest.Round(time.Millisecond))
}

// settle waits until everybody is ready again and everything is held and read,
// while the work goes on: whether anything was lost shows at rest.
func (b *faults) settle(ctx context.Context) {
	everybody := append(append([]*fleet.Member(nil), b.watchers...), b.members...)
	ready(ctx, b.t, everybody...)
	held(ctx, b.t, b.f)
}

func (b *faults) startWatcher(ctx context.Context) {
	b.watchers = append(b.watchers, start(ctx, b.t, b.f, "watcher", b.env...))
}

func (b *faults) killWatchers() {
	for _, w := range b.watchers {
		w.Kill()
	}
	b.watchers = nil
}

func (b *faults) restartNATS(ctx context.Context) {
	if err := b.f.NATS.Restart(ctx); err != nil {
		b.t.Fatal(err)
	}
}

func (b *faults) restartServer(ctx context.Context) {
	if err := b.f.Cluster.Restart(ctx); err != nil {
		b.t.Fatal(err)
	}
}
