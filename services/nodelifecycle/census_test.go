package nodelifecycle

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-io/millrace/shared/role/roletest"
)

// A member counts for all partitions that it holds, at most ten times a second,
// and not at all while nothing has changed.
func TestACountIsOfAMomentAgo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		r := &registrar{}
		p := w.Partition(0)
		w.Put(t, node("a", ready))
		if c := r.take(p); c.zones[""] != (zone{ready: 1}) {
			t.Fatalf("counted %v", c)
		}
		w.Put(t, node("a", unheard))
		r.outdated()
		time.Sleep(countEvery)
		if c := r.take(p); !c.allDown() {
			t.Errorf("%s later it counts %v", countEvery, c)
		}
	})
}

// ⚠ Until the inputs have been complete once the frame maps no change to keys, so
// nobody says that a count is outdated, and a count made before that is of a few
// nodes or none: a cluster that is down would look well, for as long as no node
// changes. Looking at every key, which the frame does whenever the inputs have
// become complete, must count anew.
func TestACountFromBeforeTheInputsWereCompleteIsNotKept(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		s := &nodeLifecycle{policy: defaults(), partitions: 1, census: &registrar{}}
		p := w.Partition(0)
		w.Put(t, node("a", ready)) // the first of three to be replayed
		if s.census.take(p).allDown() {
			t.Fatal("down")
		}
		w.Put(t, node("a", unheard), node("b", unheard), node("c", unheard)) // mapped to nothing yet
		time.Sleep(time.Second)
		s.all(p)
		if c := s.census.take(p); !c.allDown() {
			t.Errorf("three silent nodes of three, and it counts %v", c.zones)
		}
	})
}

// Architecture 8: the count of sick nodes must not have grown for a period. What
// counts is the number over all zones, and of nodes that do not count for a zone
// too.
func TestQuiet(t *testing.T) {
	t.Parallel()
	excluded := labelled(labelExclude, "")
	tests := map[string]struct {
		before, change roletest.Object
		grew           bool
	}{
		"one more is silent":             {node("a", ready), node("a", unheard), true},
		"one more says not ready":        {node("a", ready), node("a", sick), true},
		"one that is not counted":        {node("a", ready, excluded), node("a", unheard, excluded), true},
		"one more that has said nothing": {node("b", ready), node("a"), true},
		"one less":                       {node("a", unheard), node("a", ready), false},
		"from one sickness to the other": {node("a", unheard), node("a", sick), false},
		"one that is well is new":        {node("b", ready), node("a", ready), false},
		"one is cordoned":                {node("a", ready), node("a", ready, unschedulable), false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(1)
				r := &registrar{}
				p := w.Partition(0)
				w.Put(t, tt.before, node("z", unheard))
				r.take(p)
				first := r.grew
				time.Sleep(time.Minute)
				w.Put(t, tt.change)
				r.outdated()
				r.take(p)
				if grew := r.grew.After(first); grew != tt.grew {
					t.Errorf("grew = %v, want %v", grew, tt.grew)
				}
			})
		})
	}
}

// The first count of a member grows from what it does not know: it waits a period.
func TestTheFirstCountIsNotQuiet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(1)
		w.Put(t, node("a", unheard), node("b", ready))
		time.Sleep(time.Hour)
		r := &registrar{}
		r.take(w.Partition(0))
		if since := r.grew; !since.Equal(time.Now()) {
			t.Errorf("quiet since %s, it is %s", since, time.Now())
		}
	})
}
