package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// timeline prints what happens as it happens, and what came of it at the end.
type timeline struct {
	out   io.Writer
	began time.Time
	steps []step
}

// step is one expectation and what was seen.
type step struct {
	what, replica string
	took, within  time.Duration
	held          bool
}

func newTimeline(out io.Writer) *timeline { return &timeline{out: out, began: time.Now()} }

func (t *timeline) say(format string, args ...any) {
	fmt.Fprintf(t.out, "%8.3fs  %s\n", time.Since(t.began).Seconds(), fmt.Sprintf(format, args...))
}

// check notes an expectation: what should be so, who made it so, how long it
// took, and how long it may take.
func (t *timeline) check(what, replica string, took, within time.Duration) {
	s := step{what: what, replica: replica, took: took, within: within, held: took <= within}
	t.steps = append(t.steps, s)
	mark := "ok"
	if !s.held {
		mark = "TOO LATE"
	}
	t.say("    -> %s  by %s after %s  %s", what, replica, millis(took), mark)
}

// fact notes an expectation that has no time.
func (t *timeline) fact(what string, held bool) {
	t.steps = append(t.steps, step{what: what, held: held})
	mark := "ok"
	if !held {
		mark = "NOT SO"
	}
	t.say("    -> %s  %s", what, mark)
}

// table prints every expectation and reports whether all held.
func (t *timeline) table() (held bool) {
	held = true
	fmt.Fprintln(t.out)
	w := tabwriter.NewWriter(t.out, 0, 8, 2, ' ', 0)
	fmt.Fprintln(w, "EXPECTATION\tBY\tAFTER\tLIMIT\t")
	for _, s := range t.steps {
		took, within, mark := "", "", "ok"
		if s.within > 0 {
			took, within = millis(s.took), millis(s.within)
		}
		if !s.held {
			mark, held = "FAILED", false
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", s.what, s.replica, took, within, mark)
	}
	_ = w.Flush() // standard output; nothing to be done
	return held
}

func millis(d time.Duration) string {
	return fmt.Sprintf("%.1f ms", float64(d)/float64(time.Millisecond))
}
