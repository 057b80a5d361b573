package e2e

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Contract: "all zones silent in the same second" of issue 4. Nobody is tainted
// NoExecute then, and who was is so no more; members come and go meanwhile. When
// one node is back, all others have their whole grace again, and then those of
// the zone that is still dead are tainted. Long form: SECONDS=120.
func TestNodeAllDown(t *testing.T) {
	const grace = 4 * time.Second
	lasts := time.Duration(number(t, "SECONDS", 12)) * time.Second
	ctx, f := begin(t, 4*time.Minute+lasts)
	w := nodesIn(ctx, t, f, nodeSetup{
		nodes: 8, zones: []string{"a", "b"}, beat: beatEvery, grace: grace, replicas: 2, env: append(evictions(5), unlimited...),
	})
	c := &crowded{nodeWorld: w, namespace: prefixOf(t) + "pods", host: w.names[1]}
	c.fill(ctx, 10) // they tolerate nothing
	first, back := w.names[1], w.names[0]

	w.silence(first)
	w.await(ctx, t, 60*time.Second, "one is tainted while others live", []string{first}, unreachableNoExecute)
	down := time.Now()
	w.silence(w.names...)
	w.await(ctx, t, 30*time.Second, "all are Unknown", w.names, unknownNow)
	w.await(ctx, t, 10*time.Second, "nobody bears NoExecute", w.names, not(anyNoExecute))
	pause(ctx, lasts/3)
	w.kill(w.members[0])
	pause(ctx, lasts/3)
	ready(ctx, t, w.addMember(ctx))
	pause(ctx, lasts-time.Since(down))
	if added := w.log.additions(w.names, down); len(added) > 0 {
		t.Errorf("%d NoExecute taints while all zones were down, the first after %s", len(added), added[0].Sub(down))
	}
	t.Logf("no NoExecute taint in %s, though all %d nodes are silent", time.Since(down).Round(time.Second), len(w.names))

	up := time.Now()
	w.resume(back)
	w.await(ctx, t, 20*time.Second, "the one that is back is healthy", []string{back}, healthyNow)
	zoneB := w.zone(1, 2) // nobody there is back
	w.await(ctx, t, 60*time.Second, "the dead zone is tainted", zoneB, unreachableNoExecute)
	added := w.log.additions(w.names, up)
	t.Logf("the first NoExecute taint %s after one was back, the last %s", added[0].Sub(up).Round(time.Millisecond), added[len(added)-1].Sub(up).Round(time.Millisecond))
	if early := added[0].Sub(up); early < grace {
		t.Errorf("tainted %s after one node was back, want at least %s", early, grace)
	}
	withinRate(t, 5, added)
	w.resume(w.names...)
	w.await(ctx, t, 30*time.Second, "all are healthy again", w.names, healthyNow)
	if pods, err := w.api.CoreV1().Pods(c.namespace).List(ctx, metav1.ListOptions{}); err != nil || len(pods.Items) != len(c.pods) {
		t.Errorf("%d pods are left of %d: %v", len(pods.Items), len(c.pods), err)
	}
	w.log.judge(t)
}
