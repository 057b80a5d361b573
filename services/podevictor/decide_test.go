package podevictor

import (
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// since is a taint that a node has borne for a while.
func since(key string, d time.Duration) term { return term{untimed(key), at(d)} }

// judged says a verdict as seconds after then: "at 10 by a", "never".
func judged(v verdict) string {
	if !v.evict {
		return "never"
	}
	return fmt.Sprintf("at %d by %s", int64(v.due.Sub(then)/second), v.taint.Key)
}

// Contract 2, A6, row by row, and the deadlines of architecture section 9. The pod is
// made at 0.
func TestJudge(t *testing.T) {
	t.Parallel()
	scheduled := func(d time.Duration, status corev1.ConditionStatus) podOption {
		return func(p *corev1.Pod) {
			p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodScheduled, Status: status, LastTransitionTime: metav1.NewTime(at(d))})
		}
	}
	tests := map[string]struct {
		pod   []podOption
		terms []term
		want  string
	}{
		"no taint":                             {nil, nil, "never"},
		"some taint has no matching: at once":  {[]podOption{tol("a", 100)}, []term{since("a", 0), since("b", 5*second)}, "at 5 by b"},
		"every used one is infinite: it stays": {[]podOption{tol("a"), tol("b")}, []term{since("a", 0), since("b", 0)}, "never"},
		"seconds of 0: at once":                {[]podOption{tol("a", 0)}, []term{since("a", 5*second)}, "at 5 by a"},
		"seconds below 0: at once":             {[]podOption{tol("a", -5)}, []term{since("a", 5*second)}, "at 5 by a"},
		"the least of the finite ones; infinite ones do not matter": {
			[]podOption{tol("a", 20), tol("b"), tol("c", 10)}, []term{since("a", 0), since("b", 0), since("c", 0)}, "at 10 by c",
		},
		"A12, minimum: [] -> 0":            {nil, []term{since("a", 0)}, "at 0 by a"},
		"A12, minimum: [nil] -> infinite":  {[]podOption{tol("a")}, []term{since("a", 0)}, "never"},
		"A12, minimum: [1, 2] -> 1":        {[]podOption{tol("a", 1), tol("b", 2)}, []term{since("a", 0), since("b", 0)}, "at 1 by a"},
		"A12, minimum: [1, nil] -> 1":      {[]podOption{tol("a", 1), tol("b")}, []term{since("a", 0), since("b", 0)}, "at 1 by a"},
		"A12, minimum: [nil, 1] -> 1":      {[]podOption{tol("a"), tol("b", 1)}, []term{since("a", 0), since("b", 0)}, "at 1 by b"},
		"A12, update: no longer tolerated": {[]podOption{tol("b", 300)}, []term{since("a", 0)}, "at 0 by a"},
		"the first in the list, not the longest": {
			[]podOption{tol("a", 10), tol("a", 300), tol("a")}, []term{since("a", 0)}, "at 10 by a",
		},
		"the first in the list, not the most specific": {
			[]podOption{everything, tol("a", 10)}, []term{since("a", 0)}, "never",
		},
		"another taint may come first though it began later": {[]podOption{tol("a", 300), tol("b", 10)}, []term{since("a", 0), since("b", 100*second)}, "at 110 by b"},
		"made after the taint: from then on":                 {[]podOption{tol("a", 300)}, []term{since("a", -3600*second)}, "at 300 by a"},
		"bound after the taint: from then on":                {[]podOption{tol("a", 300), scheduled(50*second, "True")}, []term{since("a", 20*second)}, "at 350 by a"},
		"bound before the taint: from the taint on":          {[]podOption{tol("a", 300), scheduled(50*second, "True")}, []term{since("a", 70*second)}, "at 370 by a"},
		"not bound says nothing":                             {[]podOption{tol("a", 300), scheduled(50*second, "False")}, []term{since("a", 20*second)}, "at 320 by a"},
		"very long is 100 years":                             {[]podOption{tol("a", math.MaxInt64)}, []term{since("a", 0)}, "at 3153600000 by a"},
		"a deadline that has passed stays when what is not tolerated comes": {
			[]podOption{tol("a", 10)}, []term{since("a", 0), since("b", 100*second)}, "at 10 by b",
		},
		"of two that are not tolerated the first to come": {nil, []term{since("b", 100*second), since("a", 50*second)}, "at 50 by a"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := judged(judge(podOf(tt.pod...), tt.terms, false)); got != tt.want {
				t.Errorf("judge() = %s, want %s", got, tt.want)
			}
		})
	}
}

// What is not tolerated is not waited for, whatever two clocks say.
func TestWaitOfAVerdict(t *testing.T) {
	t.Parallel()
	ahead := since("a", time.Hour)
	for name, tt := range map[string]struct {
		pod  []podOption
		now  time.Duration
		want time.Duration
	}{
		"not tolerated, and its time is ahead":   {nil, 0, 0},
		"for 0 s, and its time is ahead":         {[]podOption{tol("a", 0)}, 0, 0},
		"tolerated: until then":                  {[]podOption{tol("a", 60)}, time.Hour, time.Minute},
		"tolerated: the last nanosecond counts":  {[]podOption{tol("a", 60)}, time.Hour + time.Minute - 1, 1},
		"tolerated: it is over":                  {[]podOption{tol("a", 60)}, time.Hour + time.Minute, 0},
		"tolerated: it has been over for a year": {[]podOption{tol("a", 60)}, 8760 * time.Hour, 0},
	} {
		if got := judge(podOf(tt.pod...), []term{ahead}, false).wait(at(tt.now)); got != tt.want {
			t.Errorf("%s: wait() = %s, want %s", name, got, tt.want)
		}
	}
}

// One toleration against one taint, A6's last paragraph: effects × keys × operators ×
// values × seconds, each before and behind one that tolerates for 7 s.
func TestEveryTolerationAgainstATaint(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "k", Value: "10", Effect: corev1.TaintEffectNoExecute}
	seconds := map[string]*int64{"nil": nil, "-1": new(int64(-1)), "0": new(int64(0)), "1": new(int64(1)), "large": new(int64(1 << 40))}
	behind := corev1.Toleration{Key: "k", Operator: "Exists", TolerationSeconds: new(int64(7))}
	cases := 0
	for _, effect := range []corev1.TaintEffect{"", "NoExecute", "NoSchedule", "PreferNoSchedule"} {
		for _, key := range []string{"", "k", "other"} {
			for _, operator := range []corev1.TolerationOperator{"", "Equal", "Exists", "Lt", "Gt", "Unknown"} {
				for _, value := range []string{"", "10", "9", "11", "x"} {
					for name, s := range seconds {
						for _, lenient := range []bool{false, true} {
							cases++
							first := corev1.Toleration{Key: key, Operator: operator, Value: value, Effect: effect, TolerationSeconds: s}
							what := fmt.Sprintf("effect %q, key %q, %q %q, %s s, lenient %t", effect, key, operator, value, name, lenient)
							matches := (effect == "" || effect == "NoExecute") && (key == "" || key == "k") && compares(operator, value, lenient)
							want := 7 * second
							if matches {
								want = lasts(s)
							}
							check(t, what+", before", []corev1.Toleration{first, behind}, taint, lenient, want)
							check(t, what+", behind", []corev1.Toleration{behind, first}, taint, lenient, 7*second)
							if !matches {
								want = 0
							}
							check(t, what+", alone", []corev1.Toleration{first}, taint, lenient, want)
						}
					}
				}
			}
		}
	}
	if cases != 4*3*6*5*5*2 {
		t.Errorf("%d cases", cases)
	}
}

// compares is A6's table of operators, for a taint of the value 10.
func compares(operator corev1.TolerationOperator, value string, lenient bool) bool {
	n, err := strconv.ParseInt(value, 10, 64)
	switch operator {
	case "", "Equal":
		return value == "10"
	case "Exists":
		return true
	case "Lt":
		return lenient && err == nil && 10 < n
	case "Gt":
		return lenient && err == nil && 10 > n
	default:
		return false
	}
}

const forEver = time.Duration(math.MaxInt64)

// lasts is A6's table of seconds.
func lasts(s *int64) time.Duration {
	switch {
	case s == nil:
		return forEver
	case *s <= 0:
		return 0
	case *s > 100*365*24*3600:
		return 100 * 365 * 24 * time.Hour
	default:
		return time.Duration(*s) * second
	}
}

func check(t *testing.T, what string, tolerations []corev1.Toleration, taint corev1.Taint, lenient bool, want time.Duration) {
	t.Helper()
	v := judge(podOf(func(p *corev1.Pod) { p.Spec.Tolerations = tolerations }), []term{{taint, then}}, lenient)
	got := forEver
	if v.evict {
		got = v.due.Sub(then)
	}
	if got != want {
		t.Errorf("%s: tolerated for %s, want %s", what, got, want)
	}
}

// Only the effect NoExecute evicts: A12's filter.
func TestExecuting(t *testing.T) {
	t.Parallel()
	n := nodeOf("n", corev1.Taint{Key: "a", Effect: "NoSchedule"}, untimed("b"), corev1.Taint{Key: "c", Effect: "PreferNoSchedule"}, untimed("d"))
	if got := executing(n); len(got) != 2 || got[0].Key != "b" || got[1].Key != "d" {
		t.Errorf("executing() = %v", got)
	}
}

// What people are told.
func TestWhy(t *testing.T) {
	t.Parallel()
	taint := corev1.Taint{Key: "example.com/x", Value: "y", Effect: "NoExecute"}
	for want, options := range map[string][]podOption{
		"taint example.com/x=y:NoExecute, not tolerated":      nil,
		"taint example.com/x=y:NoExecute, tolerated for 5m0s": {tol("example.com/x", 300)},
	} {
		if got := judge(podOf(options...), []term{{taint, then}}, false).why(); got != want {
			t.Errorf("why() = %q, want %q", got, want)
		}
	}
}

// The properties of every judgement: a pod all of whose first matching tolerations
// are infinite is never evicted; no deadline is before the start of the taint by
// which it goes, nor before the pod came to its node; the order of taints does not
// matter; one taint more never makes it later.
func FuzzJudge(f *testing.F) {
	f.Add([]byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16})
	f.Add([]byte{0, 0, 0, 255, 128, 3, 3, 3})
	f.Fuzz(func(t *testing.T, seed []byte) {
		next := func() int {
			if len(seed) == 0 {
				return 0
			}
			b := seed[0]
			seed = seed[1:]
			return int(b)
		}
		keys := []string{"a", "b", notReady, unreachable}
		pod := podOf()
		pod.CreationTimestamp = metav1.NewTime(at(time.Duration(next()) * second))
		for range next() % 6 {
			to := corev1.Toleration{Key: append(keys, "")[next()%5], Operator: []corev1.TolerationOperator{"Exists", "Equal", "", "Gt"}[next()%4], Effect: []corev1.TaintEffect{"", "NoExecute", "NoSchedule"}[next()%3]}
			if n := next(); n%3 > 0 {
				to.TolerationSeconds = new(int64(n - 10))
			}
			pod.Spec.Tolerations = append(pod.Spec.Tolerations, to)
		}
		var terms []term
		for range next() % 5 {
			terms = append(terms, since(keys[next()%4], time.Duration(next())*second))
		}
		lenient := next()%2 == 1
		now := at(time.Duration(next()) * second)

		v := judge(pod, terms, lenient)
		finite := 0
		for _, term := range terms {
			if d, forever := toleration(pod.Spec.Tolerations, &term.taint, lenient); !forever {
				finite++
				if earliest := later(term.since, pod.CreationTimestamp.Time).Add(d); v.due.After(earliest) {
					t.Errorf("due %s after %s of %s", v.due, earliest, term.taint.Key)
				}
			}
		}
		if v.evict != (finite > 0) {
			t.Errorf("evict %t for %d taints that are not tolerated for ever", v.evict, finite)
		}
		if v.evict && v.due.Before(pod.CreationTimestamp.Time) {
			t.Error("due before it was there")
		}
		for i := range terms { // turned round and round
			turned := append(append([]term{}, terms[i:]...), terms[:i]...)
			if w := judge(pod, turned, lenient); !w.due.Equal(v.due) || w.evict != v.evict || w.wait(now) != v.wait(now) {
				t.Errorf("in another order %s, not %s", judged(w), judged(v))
			}
			fewer := append(append([]term{}, terms[:i]...), terms[i+1:]...)
			w := judge(pod, fewer, lenient)
			if w.evict && (!v.evict || v.due.After(w.due) || v.wait(now) > w.wait(now)) {
				t.Errorf("with %s besides: %s, without: %s", terms[i].taint.Key, judged(v), judged(w))
			}
		}
		if v.evict && len(terms) > 0 {
			first := terms[0].since
			for _, term := range terms {
				if term.since.Before(first) {
					first = term.since
				}
			}
			if v.due.Before(first) {
				t.Error("due before any taint")
			}
		}
	})
}

func BenchmarkJudge(b *testing.B) {
	pod := podOf(tol("x"), tol("y", 10), tol(notReady, 300), tol(unreachable, 300))
	terms := []term{since(unreachable, 0), since("y", time.Minute)}
	b.ReportAllocs()
	for b.Loop() {
		judge(pod, terms, false)
	}
}
