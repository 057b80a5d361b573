package podevictor

import (
	"fmt"
	"testing"
	"time"
)

func TestSinceWhenANodeIsMissing(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	steps := []struct {
		at   int
		do   string
		want int
	}{
		{0, "missing", 0}, {10, "missing", 0}, {40, "missing", 0}, // B3: asking again does not push it back
		{50, "there", 0}, {60, "missing", 60}, {70, "missing", 60},
	}
	for _, s := range steps {
		if s.do == "there" {
			q.there("n")
			continue
		}
		if got := q.missing("n", at(seconds(s.at))); !got.Equal(at(seconds(s.want))) {
			t.Errorf("at %d missing since %s", s.at, got.Sub(then))
		}
	}
	if got := q.missing("other", at(80*second)); !got.Equal(at(80 * second)) {
		t.Error("another node's time")
	}
}

// Names that nobody asks for any more are not kept for ever; those that are young are.
func TestManyMissingNodes(t *testing.T) {
	t.Parallel()
	q := newQuarantine()
	for i := range manyMissing {
		q.missing(fmt.Sprint("old", i), then)
	}
	q.missing("young", at(time.Hour))
	q.missing("newest", at(time.Hour+second))
	if n := len(q.since); n != 2 {
		t.Errorf("%d are remembered", n)
	}
}
