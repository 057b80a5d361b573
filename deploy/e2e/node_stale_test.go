package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// stale is an installation whose knowledge of heartbeats is made old.
type stale struct {
	*nodeWorld
	proxy   *kubetest.Proxy // between watchers and the API server
	proxied []string        // environment of a watcher that goes through it
	grace   time.Duration
	frost   time.Duration // for how long a watcher is frozen
	held    time.Duration // for how long a watch is held back
	death   time.Duration // for how long everything is away
	away    time.Duration // for how long NATS is, and the API server hangs
}

// behindProxy is in the long form alone.
const behindProxy = "the API server hangs behind a proxy that answers pings"

// Ways to know nothing of those who beat. The first makes the watcher's way to
// the API server one through a proxy, and "everything" makes it straight again.
var kindsOfBlindness = []struct {
	name string
	do   func(ctx context.Context, t *testing.T, s *stale)
}{
	{"the watcher is killed", func(ctx context.Context, _ *testing.T, s *stale) {
		s.kill(s.watchers...)
		pause(ctx, s.grace) // a later one must not count this as silence
		s.watcherEnv = s.proxied
		s.addWatcher(ctx)
	}},
	{"the watcher is frozen and thaws", func(ctx context.Context, _ *testing.T, s *stale) {
		s.must(s.watchers[0].Freeze())
		pause(ctx, s.frost)
		s.must(s.watchers[0].Thaw())
	}},
	{"NATS is away", func(ctx context.Context, _ *testing.T, s *stale) {
		s.f.NATS.Kill()
		pause(ctx, s.away)
		s.must(s.f.NATS.Restart(ctx))
	}},
	{"the watch of Leases is held back", func(ctx context.Context, t *testing.T, s *stale) { s.holdLeases(ctx, t) }},
	{behindProxy, func(ctx context.Context, _ *testing.T, s *stale) {
		s.resume(s.names[0]) // to who believes such a proxy, a node that does not beat is silent
		s.hang(ctx)
		pause(ctx, s.grace)
		s.silence(s.names[0])
	}},
	{"everything is away, nodes as well", func(ctx context.Context, _ *testing.T, s *stale) {
		from, replicas := time.Now(), len(s.members)
		s.kill(append(slices.Clone(s.watchers), s.members...)...)
		s.silence(s.names...)
		pause(ctx, s.death)
		back := time.Now()
		s.log.nobodyHears(from, back)
		s.watcherEnv = nil
		s.addWatcher(ctx)
		for range replicas {
			s.addMember(ctx)
		}
		pause(ctx, s.grace/2-time.Since(back))
		s.resume(s.names[1:]...)
	}},
	{"the API server hangs", func(ctx context.Context, _ *testing.T, s *stale) { s.hang(ctx) }},
	{"a node is made anew under its name", func(ctx context.Context, t *testing.T, s *stale) { s.makeAnew(ctx, t) }},
}

// Contract: I2 and I5, "never on stale knowledge" of issue 4. Whatever takes the
// knowledge of heartbeats away: at no revision is a node Unknown that has beaten
// within its grace, and none bears a taint that its condition does not tell of.
// One node is silent all the while, and is found so. Long form: ROUNDS=20.
func TestNodeStaleKnowledge(t *testing.T) {
	rounds := number(t, "ROUNDS", 1)
	ctx, f := begin(t, time.Duration(rounds)*10*time.Minute)
	s := &stale{proxy: kubetest.StartProxy(t, f.Cluster), grace: 4 * time.Second, frost: 9 * time.Second, held: 9 * time.Second, death: 9 * time.Second, away: 8 * time.Second}
	if long("ROUNDS") {
		s.grace, s.frost, s.held, s.death, s.away = 6*time.Second, time.Minute, time.Minute, time.Minute, 18*time.Second
	}
	kubeconfig, err := s.proxy.Kubeconfig(kubetest.RoleWatcher)
	if err != nil {
		t.Fatal(err)
	}
	s.proxied = []string{"KUBECONFIG=" + kubeconfig}
	s.nodeWorld = nodesIn(ctx, t, f, nodeSetup{nodes: 20, zones: []string{"a", "b"}, beat: beatEvery, grace: s.grace, replicas: 2})
	for round := range rounds {
		for _, kind := range kindsOfBlindness {
			if kind.name == behindProxy && !long("ROUNDS") {
				continue
			}
			t.Run(fmt.Sprintf("%s/%d", kind.name, round), func(t *testing.T) {
				began := time.Now()
				s.silence(s.names[0])
				kind.do(ctx, t, s)
				s.await(ctx, t, 60*time.Second, "the silent node is found", s.names[:1], unreachableNoSchedule)
				s.resume(s.names[0])
				s.await(ctx, t, 60*time.Second, "all are healthy", s.names, healthyNow)
				s.settled(ctx)
				s.log.judge(t)
				t.Logf("took %s; %g live checks so far", time.Since(began).Round(100*time.Millisecond), s.checks(ctx))
			})
		}
	}
}

func (s *stale) checks(ctx context.Context) float64 {
	return s.sum(ctx, "millrace_nodelifecycle_live_checks_total")
}

// hangShows is for how much of a hang of the API server a node may age: until it
// shows, for the watcher's answerLife, and once more as it ends, for a digest's
// second: who reads the digests counts on from the last one. Unit: time.
const hangShows = 1500*time.Millisecond + time.Second

// hang stops the API server for a while, in which nobody can beat.
func (s *stale) hang(ctx context.Context) {
	from := time.Now().Add(hangShows)
	s.must(s.f.Cluster.Freeze())
	pause(ctx, s.away)
	s.must(s.f.Cluster.Thaw())
	s.log.nobodyHears(from, time.Now())
}

// holdLeases: the watch tells of no beat any more while it looks alive. Only live
// reads can know, and one in each partition is enough.
func (s *stale) holdLeases(ctx context.Context, t *testing.T) {
	before, from := s.checks(ctx), time.Now()
	contradicted := s.sum(ctx, "millrace_nodelifecycle_live_checks_total", "result", "contradicted")
	s.proxy.Hold("leases")
	pause(ctx, s.held)
	checks, lasted := s.checks(ctx)-before, time.Since(from)
	contradicted = s.sum(ctx, "millrace_nodelifecycle_live_checks_total", "result", "contradicted") - contradicted
	s.proxy.Release("leases")
	used := map[string]bool{}
	for _, name := range s.names {
		used[unitOfNode(name)] = true
	}
	// The one that is silent is read every 5 s: there, and only there, live reads
	// agree. Source: architecture section 7.
	most := float64(2*len(used)) + 1 + lasted.Seconds()/5
	t.Logf("%g live checks, of which %g disagree, in %d partitions within %s", checks, contradicted, len(used), lasted.Round(time.Millisecond))
	if contradicted < 1 || checks > most {
		t.Errorf("%g live checks of which %g disagree, want 1 to %g", checks, contradicted, most)
	}
}

// makeAnew replaces a node that beats and one that is silent. The first must not
// be touched; the second has its whole grace again (the log judges that).
func (s *stale) makeAnew(ctx context.Context, t *testing.T) {
	beats, silent := s.names[1], s.names[0]
	s.await(ctx, t, 20*time.Second, "the silent node is found", s.names[:1], unreachableNoSchedule)
	began := time.Now()
	for _, name := range []string{beats, silent} {
		old := s.log.node(name)
		s.must(s.api.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
		made := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: old.Labels}}
		if name == silent { // it says that it is ready, and no more
			made.Status.Conditions = []corev1.NodeCondition{{
				Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
			}}
		}
		_, err := s.api.CoreV1().Nodes().Create(ctx, made, metav1.CreateOptions{})
		s.must(err)
	}
	s.await(ctx, t, 20*time.Second, "the new node is healthy", []string{beats}, healthyNow)
	s.await(ctx, t, 20*time.Second, "the new silent node is found", []string{silent}, unknownNow)
	if at, ok := s.log.first(silent, began, unknownNow); ok {
		t.Logf("the new silent node was found after %s", at.Sub(began).Round(time.Millisecond))
	}
}
