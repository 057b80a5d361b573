package podevictor

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/rates"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// queue is a line under fake time, with real buckets, and who was woken when.
type queue struct {
	*line
	p *roletest.Partition

	mu    sync.Mutex
	began time.Time
	woken []string
	when  map[string]time.Duration
}

func lined(t *testing.T, set func(p *policy), f func(q *queue)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		p := defaults()
		set(&p)
		began := time.Now()
		limits := rates.New(rates.Config{Role: role}, roletest.NewFacts(nil), connected{}, nil, nil)
		roletest.Replace(limits, "boot", func() time.Duration { return time.Since(began) + time.Hour })
		var tasks sync.WaitGroup
		tasks.Go(func() { limits.Run(ctx) })
		q := &queue{line: newLine(ctx, p, limits, workers), began: began, when: map[string]time.Duration{}}
		q.p = roletest.NewWorld(1, partitionInputs(), wideInputs()).Partition(0)
		q.p.OnWake = func(key event.Key) {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.woken = append(q.woken, key.Name)
			q.when[key.Name] = time.Since(began)
		}
		f(q)
		cancel()
		tasks.Wait()
	})
}

func keyOf(name string) event.Key { return event.Key{Namespace: "ns", Name: name} }

func in(zone string) *corev1.Node {
	n := nodeOf("n")
	n.Labels = map[string]string{corev1.LabelTopologyZone: zone}
	return n
}

// wants puts pods in line, due one second after another in the order given.
func (q *queue) wants(t *testing.T, n *corev1.Node, pods ...string) {
	t.Helper()
	for i, pod := range pods {
		if _, ok := q.pass(q.p, keyOf(pod), n, q.began.Add(seconds(i))); ok {
			t.Errorf("%s passes without a token", pod)
		}
	}
}

func (q *queue) order() []string {
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Clone(q.woken)
}

func (q *queue) at(pod string) time.Duration {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.when[pod]
}

// Without a limit nobody waits, and nothing is asked of NATS.
func TestWithoutALimit(t *testing.T) {
	lined(t, func(*policy) {}, func(q *queue) {
		valid, ok := q.pass(q.p, keyOf("p"), in("a"), q.began)
		if valid != nil || !ok || q.lines != nil {
			t.Error("there is a limit")
		}
		q.forget(q.p, keyOf("p"))
		q.leave(q.p)
		if ahead, waiting := q.place(q.p, keyOf("p")); ahead != 0 || waiting != 0 {
			t.Error("somebody waits")
		}
	})
}

// Who was due first is first, whoever came first; at the rate, and with no more at
// once than the burst.
func TestTheOrderOfTheLine(t *testing.T) {
	lined(t, func(p *policy) { p.PodEvictionQPS = 1 }, func(q *queue) {
		q.pass(q.p, keyOf("last"), in("a"), q.began.Add(time.Hour))
		q.wants(t, in("a"), "p0", "p1", "p2", "p3", "p4")
		q.pass(q.p, keyOf("first"), in("b"), q.began.Add(-time.Hour))
		if ahead, waiting := q.place(q.p, keyOf("p1")); ahead != 2 || waiting != 7 {
			t.Errorf("p1 has %d of %d before it", ahead, waiting)
		}
		time.Sleep(time.Minute)
		if got := strings.Join(q.order(), " "); got != "first p0 p1 p2 p3 p4 last" {
			t.Errorf("woke %q", got)
		}
		for i, pod := range []string{"p0", "p1", "p2", "p3", "p4"} {
			between := q.at(pod) - q.at("first")
			if want := seconds(i + 1); between < want-second || between > want+second {
				t.Errorf("%s %s after the first, want about %s", pod, between, want)
			}
		}
	})
}

// The token with which a pod was woken is its own, once, and dies.
func TestTheTokenOfAPod(t *testing.T) {
	lined(t, func(p *policy) { p.PodEvictionQPS = 1 }, func(q *queue) {
		q.wants(t, in("a"), "p")
		for len(q.order()) == 0 {
			time.Sleep(50 * time.Millisecond)
		}
		valid, ok := q.pass(q.p, keyOf("p"), in("a"), q.began)
		if !ok || valid() != nil {
			t.Fatal("it has no token")
		}
		time.Sleep(second)
		if err := valid(); !lapsed(err) {
			t.Errorf("after a second: %v", err)
		}
		if _, ok := q.pass(q.p, keyOf("p"), in("a"), q.began); ok {
			t.Error("it has two tokens")
		}
		before := len(q.order())
		q.forget(q.p, keyOf("p")) // and its token with it
		if _, ok := q.pass(q.p, keyOf("p"), in("a"), q.began); ok {
			t.Error("who is forgotten has a token")
		}
		q.forget(q.p, keyOf("p"))
		time.Sleep(time.Minute)
		if got := q.order(); len(got) != before {
			t.Errorf("who is forgotten was woken: %q", got)
		}
	})
}

// One zone's line is not held up by that of another, and all together keep to the
// rate of the whole fleet.
func TestZonesAndAll(t *testing.T) {
	count := func(q *queue, prefix string, from, to time.Duration) (n int) {
		for pod, at := range q.when {
			if strings.HasPrefix(pod, prefix) && at >= from && at < to {
				n++
			}
		}
		return n
	}
	names := func(prefix string, n int) (out []string) {
		for i := range n {
			out = append(out, prefix+string(rune('A'+i)))
		}
		return out
	}
	for name, tt := range map[string]struct {
		set         func(p *policy)
		a, b, total int // woken in 20 s, from the 5th on
	}{
		"each zone at its own":      {func(p *policy) { p.ZonePodEvictionQPS = 1 }, 20, 20, 40},
		"all, whatever the zones":   {func(p *policy) { p.PodEvictionQPS = 1 }, -1, -1, 20},
		"both: all is the narrower": {func(p *policy) { p.PodEvictionQPS, p.ZonePodEvictionQPS = 1, 2 }, -1, -1, 20},
		"both: zones are narrower":  {func(p *policy) { p.PodEvictionQPS, p.ZonePodEvictionQPS = 10, 0.5 }, 10, 10, 20},
	} {
		t.Run(name, func(t *testing.T) {
			lined(t, tt.set, func(q *queue) {
				q.wants(t, in("a"), names("a", 50)...)
				q.wants(t, in("b"), names("b", 50)...)
				time.Sleep(25 * second)
				q.order()
				q.mu.Lock()
				defer q.mu.Unlock()
				for prefix, want := range map[string]int{"a": tt.a, "b": tt.b, "": tt.total} {
					if got := count(q, prefix, 5*second, 25*second); want >= 0 && (got < want-want/10-1 || got > want+want/10+1) {
						t.Errorf("%q: %d in 20 s, want about %d", prefix, got, want)
					}
				}
			})
		})
	}
}

// Who gives a partition up leaves the line with all its pods.
func TestLeavingTheLine(t *testing.T) {
	lined(t, func(p *policy) { p.PodEvictionQPS = 1 }, func(q *queue) {
		q.wants(t, in("a"), "p", "q")
		q.leave(q.p)
		time.Sleep(time.Minute)
		if got := q.order(); len(got) > 1 {
			t.Errorf("woke %q", got)
		}
		if _, waiting := q.place(q.p, keyOf("q")); waiting != 0 {
			t.Error("it still stands in line")
		}
	})
}

// A zone is called what people call it.
func TestNameOfZone(t *testing.T) {
	t.Parallel()
	both := in("b")
	both.Labels[corev1.LabelTopologyRegion] = "eu"
	for want, n := range map[string]*corev1.Node{"": nodeOf("n"), "a": in("a"), "eu/b": both} {
		if got := nameOfZone(n); got != want {
			t.Errorf("nameOfZone() = %q, want %q", got, want)
		}
	}
	tainted := in("a")
	tainted.Spec.Taints = []corev1.Taint{untimed("x")}
	if got := nameOfZone(trimNode(tainted)); got != "a" {
		t.Errorf("as it is kept: %q", got)
	}
}

// In a role with a limit: a pod in line waits for its rate, is seen to, and leaves
// the line when its taint goes; nothing is read live meanwhile.
func TestWaitingForARate(t *testing.T) {
	t.Parallel()
	r := newRig(t, func(p *policy) { p.PodEvictionQPS = 0.001 })
	r.node("n", bad("a", r.at(-10*second)))
	r.pod("p", "n")
	r.pod("q", "n")
	r.wire.Take()
	r.run("p")
	r.run("q")
	if p := r.waiting("p"); p.Waiting != waitsRate {
		t.Fatalf("%+v", p)
	}
	if sent := r.wire.Take(); len(sent) > 0 {
		t.Errorf("sent %v", sent)
	}
	if text := join(r.explained("q")); !contains(text, "waits for rate") || !contains(text, "of 2 that wait have been due longer") {
		t.Errorf("explained %q", text)
	}
	if got := r.counted("millrace_podevictor_pending"); got != 2 {
		t.Errorf("%g pending", got)
	}
	r.taint("n")
	r.run("p")
	if _, waiting := r.role.line.place(r.p, r.key("p")); waiting != 0 || r.waiting("p").Waiting != "" {
		t.Errorf("still in line: %+v", r.waiting("p"))
	}
	if got := r.told(); !slices.Equal(got, []string{"Normal TaintManagerEviction Cancelling deletion of Pod p"}) {
		t.Errorf("events %q", got)
	}
}
