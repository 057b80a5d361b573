package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// evictRate is a world in which many pods are to go at once, at a rate.
type evictRate struct {
	*stage
	rate  float64 // deletions per second
	burst float64
	pods  int
}

// unrest is what happens to the members once a share of the pods is deleted.
type unrest struct {
	share float64
	name  string
	do    func(ctx context.Context, r *evictRate)
}

var unrests = []unrest{
	{0.3, "one is added", func(ctx context.Context, r *evictRate) { ready(ctx, r.t, r.addMember(ctx)) }},
	{0.4, "one is killed", func(_ context.Context, r *evictRate) { r.kill(r.members[0]) }},
	{0.5, "one is frozen", func(ctx context.Context, r *evictRate) {
		if len(r.members) == 1 { // somebody has to go on
			ready(ctx, r.t, r.addMember(ctx))
		}
		r.must(r.members[0].Freeze())
	}},
	{0.7, "the frozen one thaws", func(_ context.Context, r *evictRate) { r.must(r.members[0].Thaw()) }},
	{0.8, "all are killed and started anew", func(ctx context.Context, r *evictRate) {
		replicas := len(r.members)
		r.kill(slices.Clone(r.members)...)
		for range replicas {
			r.addMember(ctx)
		}
	}},
}

// Contract: I3, "rate" of issue 5. Long form: REPLICAS=1,4,8, with 10 000 pods on
// 100 dead nodes.
func TestEvictRates(t *testing.T) {
	t.Parallel() // as its parts do
	nodes, pods, rate, share := 6, 90, 6.0, 0.6
	if long("REPLICAS") {
		nodes, pods, rate, share = 100, number(t, "PODS", 10_000), float64(number(t, "RATE", 50)), 0.95
	}
	for _, replicas := range numbers(t, "REPLICAS", 2) {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) { evictAtRate(t, replicas, nodes, pods, rate, share) })
	}
	t.Run("of a zone", zoneRate)
}

func evictAtRate(t *testing.T, replicas, nodes, pods int, rate, share float64) {
	const burst = 3
	ctx, w := evictIn(t, 10*time.Minute, evictSetup{replicas: replicas, pace: strict, env: []string{
		fmt.Sprintf("MILLRACE_PODEVICTOR_POD_EVICTION_QPS=%g", rate), fmt.Sprintf("MILLRACE_PODEVICTOR_POD_EVICTION_BURST=%d", burst),
	}})
	r := &evictRate{stage: w.on(ctx, t), rate: rate, burst: burst, pods: pods}
	names := r.fill(ctx, nodes, pods)
	began := nextSecond(ctx)
	each(16, names, func(n string) { r.taint(ctx, n, noExecute(testTaint, began)) })
	calm := int(unrests[0].share * float64(pods))
	for _, c := range unrests {
		r.reach(ctx, int(c.share*float64(pods)))
		t.Logf("%5d pods deleted after %s: %s", len(r.deleted()), time.Since(began).Round(100*time.Millisecond), c.name)
		c.do(ctx, r)
		r.memory(t)
	}
	r.reach(ctx, pods)
	got := r.deleted()
	took := got[len(got)-1].Sub(began)
	seen := (float64(calm) - burst) / got[calm-1].Sub(got[0]).Seconds()
	t.Logf("%d pods on %d nodes, %d replicas: %.2f/s while nothing changed, %.2f/s over all of %s, want %g/s",
		pods, nodes, replicas, seen, float64(pods)/took.Seconds(), took.Round(100*time.Millisecond), rate)
	if seen < share*rate {
		t.Errorf("%.2f deletions per second while work waited, want at least %g of %g", seen, share, rate)
	}
	withinBurst(t, rate, burst, got)
	w.log.judge(t)
}

// fill makes nodes, and pods that tolerate nothing.
func (r *evictRate) fill(ctx context.Context, nodes, pods int) []string {
	names := r.nodes(ctx, nodes)
	numbers := make([]int, pods)
	for i := range numbers {
		numbers[i] = i
	}
	each(32, numbers, func(i int) { r.pod(ctx, fmt.Sprintf("p-%05d", i), names[i%nodes]) })
	return names
}

func (r *evictRate) reach(ctx context.Context, n int) {
	r.t.Helper()
	within := 60*time.Second + time.Duration(float64(n)/r.rate*float64(time.Second))
	eventually(ctx, r.t, within, fmt.Sprintf("%d pods deleted", n), func() (bool, string) {
		got := r.log.deletions(r.ns)
		return got >= n, fmt.Sprint(got)
	})
}

// deleted is when pods were deleted, in order.
func (r *evictRate) deleted() (times []time.Time) {
	for _, l := range r.log.of(r.ns) {
		if _, at := l.deletion(); at != nil {
			times = append(times, at.at)
		}
	}
	slices.SortFunc(times, time.Time.Compare)
	return times
}

func (r *evictRate) memory(t *testing.T) {
	var most uint64
	for _, m := range r.members {
		if u, err := m.Usage(); err == nil {
			most = max(most, u.ResidentBytes)
		}
	}
	t.Logf("      the largest of %d replicas has %d MiB", len(r.members), most>>20)
}

// withinBurst: in no window more than rate·(t + 1 s) + burst. Source: I3. Times
// are in order.
func withinBurst(t *testing.T, rate, burst float64, times []time.Time) {
	t.Helper()
	worst := 0.0
	for i := range times {
		for j := i; j < len(times); j++ {
			window := times[j].Sub(times[i])
			n, most := float64(j-i+1), rate*(window+time.Second+lateBy).Seconds()+burst
			if worst = max(worst, n/most); n > most {
				t.Fatalf("%g deletions within %s, at %g per second and burst %g", n, window, rate, burst)
			}
		}
	}
	t.Logf("the busiest window had %.0f %% of what is allowed", 100*worst)
}

// zoneRate: each zone has its rate, and one that has none left holds up no other.
func zoneRate(t *testing.T) {
	const rate, pods = 4.0, 16
	ctx, w := evictIn(t, 3*time.Minute, evictSetup{replicas: 2, env: []string{
		fmt.Sprintf("MILLRACE_PODEVICTOR_ZONE_POD_EVICTION_QPS=%g", rate), "MILLRACE_PODEVICTOR_ZONE_POD_EVICTION_BURST=1",
	}})
	var zones []*evictRate
	began := nextSecond(ctx)
	for i, size := range []int{pods, 2 * pods} {
		name := fmt.Sprintf("%szone-%d", prefixOf(t), i)
		w.namespace(ctx, name)
		r := &evictRate{stage: &stage{evictWorld: w, t: t, ns: name}, rate: rate, burst: 1, pods: size}
		zones = append(zones, r)
		_, err := w.api.CoreV1().Nodes().Create(ctx, &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelTopologyZone: name}},
			Spec:       corev1.NodeSpec{Taints: []corev1.Taint{noExecute(testTaint, began)}},
		}, metav1.CreateOptions{})
		r.must(err)
		for i := range size {
			r.pod(ctx, fmt.Sprintf("p-%02d", i), name)
		}
	}
	for _, r := range zones {
		r.reach(ctx, r.pods)
		withinBurst(t, rate, 1, r.deleted())
	}
	small, large := zones[0].deleted(), zones[1].deleted()
	if small[len(small)-1].After(large[len(large)-1]) {
		t.Error("the smaller zone waited for the larger one")
	}
	w.log.judge(t)
}
