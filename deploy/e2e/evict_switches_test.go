package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// busy is a world in which every rule has pods to delete all the time.
type busy struct {
	*evictWorld
	taint, orphan, ended, terminal *stage
}

// Contract: "pause" of issue 5, and its parts switched at run time.
func TestEvictSwitches(t *testing.T) {
	ctx, w := evictIn(t, 6*time.Minute, evictSetup{replicas: 3, env: []string{"MILLRACE_PODEVICTOR_TERMINATED_POD_GC_THRESHOLD=5"}})
	t.Cleanup(func() {
		ctx := context.WithoutCancel(ctx)
		_, _ = w.f.Run(ctx, "resume", "evictions")
		for _, part := range []string{"", "taint-eviction", "garbage-collection"} {
			w.mode(ctx, t, part, "default")
		}
	})
	t.Run("pause", func(t *testing.T) { w.paused(ctx, t) })
	t.Run("parts", func(t *testing.T) { w.parts(ctx, t) })
	w.log.judge(t)
}

// stages are the rules' names and where their pods are.
func (b *busy) stages() map[string]*stage {
	return map[string]*stage{"taint-eviction": b.taint, "orphaned": b.orphan, "out-of-service": b.ended, "terminated": b.terminal}
}

func (w *evictWorld) busy(ctx context.Context, t *testing.T) *busy {
	at := func(name string) *stage {
		s := &stage{evictWorld: w, t: t, ns: prefixOf(t) + name}
		w.namespace(ctx, s.ns)
		return s
	}
	return &busy{w, at("taint"), at("orphan"), at("ended"), at("terminal")}
}

// feed gives every rule one more pod, several times a second, until ctx ends.
func (b *busy) feed(ctx context.Context) (made map[string]int) {
	made = map[string]int{}
	life := context.WithoutCancel(ctx)
	oos := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: corev1.TaintEffectNoSchedule}
	tainted, dead, calm := b.taint.node(life, "n", noExecute(testTaint, time.Now())), b.ended.node(life, "n", oos), b.terminal.node(life, "n")
	for i := 0; ctx.Err() == nil; i++ {
		name := fmt.Sprintf("p-%03d", i)
		b.taint.pod(life, name, tainted, tolerating(tolerate(testTaint, 2)))
		made["taint-eviction"]++
		b.orphan.pod(life, name, fmt.Sprintf("%s-nowhere-%d", b.orphan.ns, i)) // each has a quarantine of its own
		made["orphaned"]++
		b.ended.delete(life, b.ended.pod(life, name, dead, lingering), metav1.DeleteOptions{})
		made["out-of-service"]++
		b.terminal.status(life, b.terminal.pod(life, name, calm).Name, succeeded)
		made["terminated"]++
		pause(ctx, 200*time.Millisecond)
	}
	return made
}

// acts are when each rule deleted pods; of those that were terminating, when they
// were ended.
func (b *busy) acts() map[string][]time.Time {
	out := map[string][]time.Time{}
	for rule, s := range b.stages() {
		for _, l := range s.log.of(s.ns) {
			if _, at := l.deletion(); rule != "out-of-service" && at != nil {
				out[rule] = append(out[rule], at.at)
			} else if at, over := l.end(); rule == "out-of-service" && over {
				out[rule] = append(out[rule], at)
			}
		}
	}
	return out
}

// paused: while every rule is at work, a pause of evictions stops them all.
func (w *evictWorld) paused(ctx context.Context, t *testing.T) {
	b := w.busy(ctx, t)
	feeding, stop := context.WithCancel(ctx)
	made := map[string]int{}
	var tasks sync.WaitGroup
	tasks.Go(func() { made = b.feed(feeding) })
	defer tasks.Wait()
	defer stop()
	eventually(ctx, t, w.collectedWithin()+10*time.Second, "every rule is at work", func() (bool, string) {
		acts := b.acts()
		for rule := range b.stages() {
			if len(acts[rule]) < 3 {
				return false, fmt.Sprintf("%s: %d", rule, len(acts[rule]))
			}
		}
		return true, ""
	})
	if out, err := w.f.Run(ctx, "pause", "evictions"); err != nil || !strings.Contains(out, "evictions: paused") {
		t.Fatalf("pausing: %v: %s", err, out)
	}
	at := time.Now()
	pause(ctx, w.quarantine+2*w.period) // in which every rule would have work
	stop()
	tasks.Wait()
	for rule, times := range b.acts() {
		late := 0
		for _, act := range times {
			if act.After(at.Add(time.Second)) {
				late++
			}
		}
		t.Logf("%s: %d before and during the pause, %d later than a second after it, %d to do", rule, len(times), late, made[rule])
		if late > 0 {
			t.Errorf("%s: %d deletions later than a second after the pause", rule, late)
		}
		if len(times) >= made[rule] {
			t.Errorf("%s: nothing was left to do: the test shows nothing", rule)
		}
	}
	out, err := w.f.Run(ctx, "evictions")
	if err != nil || !strings.Contains(out, "pause") {
		t.Errorf("evictions does not tell of the pause: %v\n%s", err, out)
	}
	resumed := time.Now()
	if out, err := w.f.Run(ctx, "resume", "evictions"); err != nil {
		t.Fatalf("resuming: %v: %s", err, out)
	}
	made["terminated"] -= 5 // the threshold
	eventually(ctx, t, 40*time.Second, "what waited is done", func() (bool, string) {
		acts := b.acts()
		for rule, n := range made {
			if len(acts[rule]) < n {
				return false, fmt.Sprintf("%s: %d of %d", rule, len(acts[rule]), n)
			}
		}
		return true, ""
	})
	t.Logf("all done %s after the end of the pause", time.Since(resumed).Round(10*time.Millisecond))
}

// parts: each half is turned off and made a shadow while the other is at work.
func (w *evictWorld) parts(ctx context.Context, t *testing.T) {
	w.halved(ctx, t, "garbage-collection", "off")
	w.halved(ctx, t, "taint-eviction", "shadow")
	if long("LONG") {
		w.halved(ctx, t, "garbage-collection", "shadow")
		w.halved(ctx, t, "taint-eviction", "off")
	}
}

// halved puts one part into a mode, in which it deletes nothing while the other
// does; active again it does what it had left.
func (w *evictWorld) halved(ctx context.Context, t *testing.T, part, mode string) {
	t.Run(part+" "+mode, func(t *testing.T) {
		const pods = 5
		b := w.busy(ctx, t)
		quiet, works := b.orphan, b.taint
		if part == "taint-eviction" {
			quiet, works = works, quiet
		}
		w.mode(ctx, t, part, mode)
		node := b.taint.node(ctx, "n")
		for i := range pods {
			b.taint.pod(ctx, fmt.Sprintf("p-%d", i), node)
			b.orphan.pod(ctx, fmt.Sprintf("p-%d", i), b.orphan.ns+"-nowhere")
		}
		b.taint.taint(ctx, node, noExecute(testTaint, time.Now()))
		works.awaitDeleted(ctx, w.collectedWithin(), pods)
		if pause(ctx, 2*time.Second); part == "garbage-collection" {
			pause(ctx, w.quarantine+w.period)
		}
		if n := quiet.log.deletions(quiet.ns); n > 0 {
			t.Errorf("%d pods were deleted by %s, which is %s", n, part, mode)
		}
		for _, l := range quiet.log.of(quiet.ns) {
			if len(l.revisions) != 1 {
				t.Errorf("pod %s was written to", l.name)
			}
		}
		w.mode(ctx, t, part, "active")
		quiet.awaitDeleted(ctx, w.collectedWithin(), pods)
		w.mode(ctx, t, part, "default")
	})
}
