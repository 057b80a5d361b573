package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// refusedThenWithin is how long after a refusal ends what was refused is done:
// the longest wait between two tries, and some. Source: issue 5.
const refusedThenWithin = 35 * time.Second

// evictFaults is a world whose every way to the API server leads through a proxy.
type evictFaults struct {
	*evictWorld
	proxy *kubetest.Proxy

	refused, away, held time.Duration
}

// Contract: "never forgets" and "never wrongly" of issue 5. Long form: ROUNDS=5.
func TestEvictFaults(t *testing.T) {
	rounds := number(t, "ROUNDS", 1)
	b := &evictFaults{refused: 6 * time.Second, away: 3 * time.Second, held: 8 * time.Second}
	if long("ROUNDS") {
		b.refused, b.away, b.held = time.Minute, 20*time.Second, 30*time.Second
	}
	ctx, w := evictIn(t, time.Duration(rounds+1)*5*time.Minute, evictSetup{replicas: 2, through: func(f *fleet.Fleet) (member, watcher []string) {
		b.proxy = kubetest.StartProxy(t, f.Cluster)
		through := func(role string) []string {
			kubeconfig, err := b.proxy.Kubeconfig(role)
			if err != nil {
				t.Fatal(err)
			}
			return []string{"KUBECONFIG=" + kubeconfig}
		}
		return through(kubetest.RolePodEvictor), through(kubetest.RoleWatcher)
	}})
	b.evictWorld = w
	for round := range rounds {
		t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
			together(t, map[string]func(*testing.T){ // each in a namespace of its own
				"DELETE refused":            func(t *testing.T) { b.refuse(ctx, t, admissionv1.Delete, "pods", false) },
				"PATCH refused":             func(t *testing.T) { b.refuse(ctx, t, admissionv1.Update, "pods/status", false) },
				"DELETE of orphans refused": func(t *testing.T) { b.refuse(ctx, t, admissionv1.Delete, "pods", true) },
			})
			w.log.judge(t)
			for _, kind := range []struct {
				name string
				do   func(context.Context, *testing.T)
			}{
				{"NATS away at the deadline", b.withoutNATS},
				{"the watch of nodes is held back", b.holdNodes},
				{"clock of the server ahead", func(ctx context.Context, t *testing.T) { b.otherTime(ctx, t, 10*time.Minute) }},
				{"clock of the server behind", func(ctx context.Context, t *testing.T) { b.otherTime(ctx, t, -10*time.Minute) }},
			} {
				t.Run(kind.name, func(t *testing.T) {
					kind.do(ctx, t)
					w.settled(ctx)
					w.log.judge(t)
				})
			}
		})
	}
}

// refuse: a write is refused at the deadline and long after.
func (b *evictFaults) refuse(ctx context.Context, t *testing.T, op admissionv1.OperationType, resource string, orphans bool) {
	const pods, seconds = 10, 2
	s := b.on(ctx, t)
	node := s.node(ctx, "n")
	for i := range pods {
		s.pod(ctx, fmt.Sprintf("p-%d", i), node, tolerating(tolerate(testTaint, seconds)))
	}
	mend, err := s.f.Cluster.DenyVerb(ctx, kubetest.Denial{
		Operation: op, Resource: resource, Namespace: s.ns, User: "millrace:podevictor",
	})
	if err != nil {
		t.Fatal(err)
	}
	due := time.Now().Add(seconds * time.Second)
	if orphans {
		due = time.Now().Add(b.quarantine + b.period)
		s.deleteNode(ctx, node)
	} else {
		s.taint(ctx, node, noExecute(testTaint, time.Now()))
	}
	pause(ctx, time.Until(due)+b.refused)
	if n := s.log.deletions(s.ns); n > 0 {
		t.Errorf("%d pods were deleted although that is refused: the test shows nothing", n)
	}
	mended := time.Now()
	if err := mend(ctx); err != nil {
		t.Fatal(err)
	}
	s.awaitDeleted(ctx, refusedThenWithin, pods)
	t.Logf("refused for %s after the deadline: deleted %s after that ended", b.refused, time.Since(mended).Round(10*time.Millisecond))
}

// withoutNATS: nothing is deleted while NATS is away, and everything that is due
// soon after it is back.
func (b *evictFaults) withoutNATS(ctx context.Context, t *testing.T) {
	const pods, seconds = 10, 4
	s := b.on(ctx, t)
	stay, leave := s.node(ctx, "stay"), s.node(ctx, "leave")
	for i := range pods {
		s.pod(ctx, fmt.Sprintf("stay-%d", i), stay, tolerating(tolerate(testTaint, seconds)))
		s.pod(ctx, fmt.Sprintf("leave-%d", i), leave, tolerating(tolerate(testTaint, seconds)))
	}
	began := nextSecond(ctx)
	s.taint(ctx, stay, noExecute(testTaint, began))
	s.taint(ctx, leave, noExecute(testTaint, began))
	pause(ctx, time.Until(began.Add((seconds-2)*time.Second)))
	b.f.NATS.Kill()
	pause(ctx, time.Until(began.Add(seconds*time.Second+b.away)))
	early := s.log.deletions(s.ns)
	s.taint(ctx, stay) // by its return they are not to go any more
	back := time.Now()
	s.must(b.f.NATS.Restart(ctx))
	eventually(ctx, t, 60*time.Second, "what is due is done", func() (bool, string) {
		living := s.log.living(s.ns)
		return len(living) == pods && strings.HasPrefix(living[0], "stay-"), fmt.Sprint(living)
	})
	t.Logf("%d deletions while NATS was away; all done %s after its return", early, time.Since(back).Round(10*time.Millisecond))
	if early > 0 {
		t.Errorf("%d deletions while NATS was away", early)
	}
	pause(ctx, 2*time.Second)
}

// holdNodes: the watch of nodes tells nothing new while it looks alive. Pods
// whose taint has gone stay; those of a node that is tainted meanwhile go later.
func (b *evictFaults) holdNodes(ctx context.Context, t *testing.T) {
	const pods, seconds = 10, 3
	s := b.on(ctx, t)
	stay, leave := s.node(ctx, "stay"), s.node(ctx, "leave")
	for i := range pods {
		s.pod(ctx, fmt.Sprintf("stay-%d", i), stay, tolerating(tolerate(testTaint, seconds)))
		s.pod(ctx, fmt.Sprintf("leave-%d", i), leave, tolerating(tolerate(testTaint, 1)))
	}
	began := nextSecond(ctx)
	s.taint(ctx, stay, noExecute(testTaint, began))
	pause(ctx, time.Until(began.Add(time.Second))) // seen
	b.proxy.Hold("nodes")
	s.taint(ctx, stay)
	s.taint(ctx, leave, noExecute(testTaint, time.Now()))
	pause(ctx, b.held)
	held := s.log.deletions(s.ns)
	b.proxy.Release("nodes")
	eventually(ctx, t, 30*time.Second, "what is due is done", func() (bool, string) {
		living := s.log.living(s.ns)
		return len(living) == pods && strings.HasPrefix(living[0], "stay-"), fmt.Sprint(living)
	})
	t.Logf("watch of nodes held back for %s: %d deletions meanwhile", b.held, held)
	pause(ctx, time.Second)
}

// otherTime: role and server do not agree about the time, from the role's start
// on. Nothing is deleted, the role says why it is not ready, and when they agree
// again what is due is done.
func (b *evictFaults) otherTime(ctx context.Context, t *testing.T, ahead time.Duration) {
	const pods, seconds = 10, 3
	s := b.on(ctx, t)
	node, other := s.node(ctx, "n"), s.node(ctx, "other")
	b.proxy.Ahead(ahead)
	replicas := len(b.members)
	b.kill(slices.Clone(b.members)...)
	for range replicas {
		b.addMember(ctx)
	}
	for _, m := range b.members {
		eventually(ctx, t, 30*time.Second, m.Name+" knows of it", func() (bool, string) {
			is, reasons, err := m.Readyz(ctx)
			return err == nil && !is && strings.Contains(reasons, "from ours"), reasons
		})
	}
	for i := range pods {
		s.pod(ctx, fmt.Sprintf("due-%d", i), node, tolerating(tolerate(testTaint, seconds)))
		s.pod(ctx, fmt.Sprintf("later-%d", i), node, tolerating(tolerate(testTaint, 300)))
		s.pod(ctx, fmt.Sprintf("orphan-%d", i), other)
	}
	s.taint(ctx, node, noExecute(testTaint, time.Now()))
	s.deleteNode(ctx, other)
	pause(ctx, seconds*time.Second+b.quarantine)
	early := s.log.deletions(s.ns)
	for _, m := range b.members {
		if is, reasons, err := m.Readyz(ctx); err != nil || is {
			t.Errorf("%s is ready while the clocks disagree: %s %v", m.Name, reasons, err)
		}
	}
	b.proxy.Ahead(0)
	eventually(ctx, t, 30*time.Second, "what is due is done", func() (bool, string) {
		living := s.log.living(s.ns)
		return len(living) == pods && strings.HasPrefix(living[0], "later-"), fmt.Sprint(living)
	})
	t.Logf("server %s ahead: %d deletions meanwhile", ahead, early)
	if early > 0 {
		t.Errorf("%d deletions while the clocks disagreed", early)
	}
}
