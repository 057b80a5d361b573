package podevictor

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

// watch is one node under fake time, and members who see it. A member that sleeps
// is told nothing.
type watch struct {
	testing.TB
	facts   *roletest.Facts
	began   time.Time
	version int
	node    *corev1.Node
}

// sentry is what one member knows of taints.
type sentry struct {
	w *watch
	*sightings
	stop func()
}

func watched(t *testing.T, f func(w *watch)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := &watch{TB: t, facts: roletest.NewFacts(nil), began: time.Now()}
		w.bears()
		f(w)
	})
}

// member starts one, which reads the node as it is.
func (w *watch) member() *sentry {
	ctx, cancel := context.WithCancel(w.Context())
	s := &sentry{w: w, sightings: newSightings(w.facts)}
	var tasks sync.WaitGroup
	tasks.Go(func() { s.run(ctx) })
	s.stop = sync.OnceFunc(func() {
		cancel()
		tasks.Wait()
	})
	w.Cleanup(s.stop)
	synctest.Wait()
	s.saw(w.node, time.Now())
	return s
}

// bears changes the node's taints; those who are named see it.
func (w *watch) bears(taints ...corev1.Taint) *corev1.Node {
	w.version++
	n := nodeOf("n", taints...)
	n.ResourceVersion = strconv.Itoa(w.version)
	w.node = n
	return n
}

func (w *watch) shows(members []*sentry, taints ...corev1.Taint) {
	n := w.bears(taints...)
	for _, m := range members {
		m.saw(n, time.Now())
	}
	synctest.Wait()
}

// until lets time pass until so many seconds after the beginning.
func (w *watch) until(second int) {
	time.Sleep(time.Until(w.began.Add(seconds(second))))
	synctest.Wait()
}

// at is a taint that says since when it is there.
func (w *watch) bad(key string, second int) corev1.Taint {
	return bad(key, w.began.Add(seconds(second)))
}

// wants checks since when a member thinks that the node bears its only taint.
func (s *sentry) wants(second int) {
	s.w.Helper()
	terms, err := s.terms(s.w.Context(), s.w.node, time.Now())
	synctest.Wait()
	if err != nil || len(terms) != 1 {
		s.w.Fatalf("%v of one taint: %v", terms, err)
	}
	if got := terms[0].since.Sub(s.w.began); got != seconds(second) {
		s.w.Errorf("at %s it is borne since %s, want %d s", time.Since(s.w.began), got, second)
	}
}

// A taint without a time counts from when the first member saw it, for all, and for
// those who come later.
func TestTheFirstSightCountsForAll(t *testing.T) {
	watched(t, func(w *watch) {
		a, b := w.member(), w.member()
		w.shows([]*sentry{a}, untimed("x"))
		a.wants(0)
		w.until(3)
		b.saw(w.node, time.Now())
		b.wants(0)
		w.until(60)
		w.member().wants(0)
		a.stop()
		b.stop()
		w.until(200)
		c := w.member()
		c.wants(0)
		w.shows([]*sentry{c}, untimed("x"), corev1.Taint{Key: "other", Effect: "NoSchedule"})
		c.wants(0)
		if n := w.facts.Len(); n != 1 {
			t.Errorf("%d facts", n)
		}
	})
}

// Two members who look at the same moment agree, whoever writes first.
func TestTwoFirstSightsAtOnce(t *testing.T) {
	watched(t, func(w *watch) {
		a, b := w.member(), w.member()
		w.shows([]*sentry{a}, untimed("x"))
		w.until(1)
		b.saw(w.node, time.Now())
		b.wants(1)
		a.wants(1)
		w.until(2)
		a.wants(1)
		b.wants(1)
	})
}

// Taken away and put back: its time begins anew, also for those who come later.
func TestATaintThatIsPutBackBeginsAnew(t *testing.T) {
	watched(t, func(w *watch) {
		a, b := w.member(), w.member()
		both := []*sentry{a, b}
		w.shows(both, untimed("x"))
		a.wants(0)
		w.until(100)
		w.shows(both)
		w.until(101)
		if n := w.facts.Len(); n != 0 {
			t.Errorf("%d facts of a taint that is gone", n)
		}
		w.until(110)
		w.shows(both, untimed("x"))
		b.wants(110)
		w.until(120)
		a.wants(110)
		w.member().wants(110)
	})
}

// ⚠ The same where the fact could not be removed, because NATS was away: those who
// saw the end know better, and so do those who come later.
func TestAFactThatIsLeftBehind(t *testing.T) {
	watched(t, func(w *watch) {
		a := w.member()
		w.shows([]*sentry{a}, untimed("x"))
		a.wants(0)
		w.until(100)
		w.facts.Down(errors.New("NATS is away"))
		w.shows([]*sentry{a})
		w.until(110)
		w.facts.Down(nil)
		w.until(200)
		b := w.member() // has seen nothing of it
		w.until(300)
		w.shows([]*sentry{a, b}, untimed("x"))
		b.wants(300)
		a.wants(300)
		w.member().wants(300)
	})
}

// ⚠ What is to be forgotten may have been recorded anew by the time that it works.
func TestAFactThatIsRecordedAnewIsNotForgotten(t *testing.T) {
	watched(t, func(w *watch) {
		a := w.member()
		w.shows([]*sentry{a}, untimed("x"))
		a.wants(0)
		w.until(100)
		w.facts.Down(errors.New("NATS is away"))
		w.shows([]*sentry{a})
		w.until(101)
		w.facts.Down(nil)
		w.shows([]*sentry{a}, untimed("x"))
		a.wants(101)
		w.until(200)
		w.member().wants(101)
	})
}

// docs/parity.md: what was taken away and put back while nobody at all was there
// counts as unbroken if it does not say since when it is there; else it says.
func TestPutBackWhileNobodyWatched(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after func(w *watch) corev1.Taint
		want          int
	}{
		"without a time":                  {func(*watch) corev1.Taint { return untimed("x") }, func(*watch) corev1.Taint { return untimed("x") }, 0},
		"with a time":                     {func(w *watch) corev1.Taint { return w.bad("x", 0) }, func(w *watch) corev1.Taint { return w.bad("x", 100) }, 100},
		"a time where there was none":     {func(*watch) corev1.Taint { return untimed("x") }, func(w *watch) corev1.Taint { return w.bad("x", 100) }, 100},
		"unreachable, then well, then so": {func(w *watch) corev1.Taint { return w.bad(unreachable, 0) }, func(w *watch) corev1.Taint { return w.bad(notReady, 100) }, 100},
	} {
		t.Run(name, func(t *testing.T) {
			watched(t, func(w *watch) {
				a := w.member()
				w.shows([]*sentry{a}, tt.before(w))
				a.wants(0)
				if tt.before(w).Key == unreachable { // with a fact that is about it
					w.until(10)
					w.shows([]*sentry{a}, w.bad(notReady, 10))
					a.wants(0)
				}
				a.stop()
				w.until(150)
				w.bears(tt.after(w))
				w.member().wants(tt.want)
			})
		})
	}
}

// not-ready and unreachable are one taint, however it is written and whoever looks.
func TestNotReadyAndUnreachableAreOne(t *testing.T) {
	untimedRow := func(key string, _ int) func(*watch) []corev1.Taint {
		return func(*watch) []corev1.Taint { return []corev1.Taint{untimed(key)} }
	}
	timed := func(key string, second int) func(*watch) []corev1.Taint {
		return func(w *watch) []corev1.Taint { return []corev1.Taint{w.bad(key, second)} }
	}
	for name, steps := range map[string][]func(w *watch) []corev1.Taint{
		"in one write that carries the time over": {timed(notReady, 0), timed(unreachable, 0), timed(notReady, 0)},
		"in one write with a time of its own":     {timed(notReady, 0), timed(unreachable, 10), timed(notReady, 20)},
		"in one write without times":              {untimedRow(notReady, 0), untimedRow(unreachable, 0), untimedRow(notReady, 0)},
		"added, then removed, with its own time":  {timed(notReady, 0), func(w *watch) []corev1.Taint { return []corev1.Taint{w.bad(notReady, 0), w.bad(unreachable, 10)} }, timed(unreachable, 10)},
		"added, then removed, without times":      {untimedRow(notReady, 0), func(*watch) []corev1.Taint { return []corev1.Taint{untimed(notReady), untimed(unreachable)} }, untimedRow(unreachable, 0)},
		"from one with a time to one without":     {timed(notReady, 0), untimedRow(unreachable, 0), timed(notReady, 20)},
	} {
		t.Run(name, func(t *testing.T) {
			watched(t, func(w *watch) {
				a, b := w.member(), w.member()
				for i, step := range steps {
					w.until(10 * i)
					w.shows([]*sentry{a, b}, step(w)...)
					terms, err := a.terms(t.Context(), w.node, time.Now())
					synctest.Wait()
					for _, term := range terms {
						if !term.since.Equal(w.began) {
							t.Errorf("step %d: %s since %s", i, term.taint.Key, term.since.Sub(w.began))
						}
					}
					if err != nil {
						t.Fatal(err)
					}
				}
				w.until(100)
				a.wants(0)
				b.wants(0)
				w.member().wants(0)
			})
		})
	}
}

// A node that was well in between has a row of its own; what was recorded of the one
// before counts for nobody.
func TestWellInBetween(t *testing.T) {
	watched(t, func(w *watch) {
		a := w.member()
		w.shows([]*sentry{a}, w.bad(notReady, 0))
		a.wants(0)
		w.until(10)
		w.shows([]*sentry{a}, w.bad(unreachable, 10))
		a.wants(0)
		w.until(20)
		w.shows([]*sentry{a})
		w.until(30)
		w.shows([]*sentry{a}, w.bad(unreachable, 30))
		a.wants(30)
		w.member().wants(30)
	})
}

// The facts are lost with NATS: who knows goes on, and records them again.
func TestFactsLostWithNATS(t *testing.T) {
	watched(t, func(w *watch) {
		a := w.member()
		w.shows([]*sentry{a}, untimed("x"))
		a.wants(0)
		w.until(50)
		w.facts.Wipe()
		synctest.Wait()
		a.wants(0)
		w.until(60)
		w.member().wants(0)
	})
}

// While NATS is away, what a taint says of itself is enough; what nobody has seen
// before waits, and is not made up.
func TestWithoutNATS(t *testing.T) {
	watched(t, func(w *watch) {
		a := w.member()
		away := errors.New("NATS is away")
		w.facts.Down(away)
		w.shows([]*sentry{a}, w.bad("x", 0))
		a.wants(0)
		w.shows([]*sentry{a}, untimed("y"))
		if _, err := a.terms(t.Context(), w.node, time.Now()); !errors.Is(err, away) {
			t.Errorf("terms() = %v", err)
		}
	})
}

// Nothing is judged before it is known what was recorded; a node without taints
// needs nothing of that.
func TestBeforeTheFactsAreKnown(t *testing.T) {
	watched(t, func(w *watch) {
		s := newSightings(w.facts) // nobody runs it
		s.saw(w.node, time.Now())
		if terms, err := s.terms(t.Context(), w.node, time.Now()); err != nil || len(terms) > 0 {
			t.Errorf("of no taint: %v, %v", terms, err)
		}
		n := w.bears(w.bad("x", 0))
		s.saw(n, time.Now())
		if _, err := s.terms(t.Context(), n, time.Now()); !errors.Is(err, controller.ErrNotSynced) {
			t.Errorf("terms() = %v", err)
		}
	})
}

// A late member, who still looks at what was there before, makes nothing earlier for
// the others, nor for itself once it knows.
func TestALateMemberMakesNothingEarlier(t *testing.T) {
	watched(t, func(w *watch) {
		a, late := w.member(), w.member()
		w.shows([]*sentry{a, late}, untimed("x"))
		a.wants(0)
		late.wants(0)
		old := w.node
		w.until(100)
		w.shows([]*sentry{a})
		w.until(101)
		w.shows([]*sentry{a}, untimed("x"))
		a.wants(101)
		now := w.node
		if _, err := late.terms(t.Context(), old, time.Now()); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		a.wants(101)
		late.saw(nodeOf("n"), time.Now())
		late.saw(now, time.Now())
		late.wants(101)
		a.wants(101)
		w.member().wants(101)
	})
}

// A time that is ahead of the cluster's clock is not believed, and it is not news
// once that time has come.
func TestATimeInTheFuture(t *testing.T) {
	watched(t, func(w *watch) {
		a := w.member()
		w.until(1)
		w.shows([]*sentry{a}, w.bad("x", 4)) // within what two clocks may differ
		a.wants(4)
		w.shows([]*sentry{a}, w.bad("y", 100))
		a.wants(1)
		w.until(99)
		a.wants(1)
		w.until(200)
		a.saw(w.node, time.Now())
		a.wants(1)
		w.member().wants(1)
	})
}

// ⚠ Who decides has read a node a while ago: that must not bring back what has gone.
func TestAnOldLookBringsNothingBack(t *testing.T) {
	watched(t, func(w *watch) {
		a := w.member()
		w.shows([]*sentry{a}, untimed("x"))
		old := w.node
		w.until(10)
		w.shows([]*sentry{a})
		if terms, err := a.terms(t.Context(), old, time.Now()); err == nil && len(terms) > 0 && !terms[0].since.Equal(time.Now()) {
			t.Errorf("of a taint that has gone: %v, %v", terms, err)
		}
		synctest.Wait()
		w.until(1000)
		w.shows([]*sentry{a}, untimed("x"))
		a.wants(1000)
	})
}

// Another value is another taint, and another node of the name another node.
func TestWhatIsAnotherTaint(t *testing.T) {
	watched(t, func(w *watch) {
		a := w.member()
		w.shows([]*sentry{a}, untimed("x"))
		a.wants(0)
		w.until(10)
		other := untimed("x")
		other.Value = "v"
		w.shows([]*sentry{a}, other)
		a.wants(10)
		w.until(20)
		w.bears(other)
		w.node.UID = "another"
		a.saw(w.node, time.Now())
		a.wants(20)
		w.until(30)
		a.gone("n", time.Now())
		w.until(40)
		a.saw(w.node, time.Now())
		a.wants(40)
		w.until(50)
		a.only(map[string]bool{"n": true}, time.Now())
		a.wants(40)
		a.only(map[string]bool{}, time.Now())
		w.until(60)
		a.saw(w.node, time.Now())
		a.wants(60)
	})
}
