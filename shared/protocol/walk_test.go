package protocol

import (
	"testing"

	"pgregory.net/rapid"
)

// Worlds too large to be visited completely are walked at random: any walk, then
// healing. What the explorer proves of small worlds is searched for in larger
// ones here.

// large is a world in which everything may go wrong, several times.
func large() busConfig {
	return busConfig{
		kinds: 1, keys: 3, partitions: 2, watchers: 2, readers: 2, scope: Whole, writes: 8, marks: 12,
		late: 2, resets: 2, takeovers: 2, crashes: 1, relists: 2, expiries: 1, kills: 1, quiet: 1, rollbacks: 1, wipes: 1, again: 2,
	}
}

func largeFollowed() busConfig {
	return busConfig{
		kinds: 2, keys: 3, partitions: 1, watchers: 2, scope: ByKey, atomic: true, unfollowed: true, names: 1,
		members: 3, claims: 5, writes: 6, touches: 2, marks: 10, late: 0, relists: 2, kills: 1, expiries: 1, wipes: 1, again: 2,
	}
}

func largeBucket() kvConfig {
	return kvConfig{members: 3, units: 3, ids: 10, ticks: 8, cuts: 2, freezes: 2, crashes: 1, quick: 2, losses: 1, departures: 1}
}

// walk takes n steps that choose picks, then heals.
func walk(w world, n int, choose func(n int) int) (trace []string, violation string) {
	var todo []step
	take := func(s step) bool {
		trace = append(trace, w.describe(s))
		violation = w.take(s)
		return violation == ""
	}
	for range n {
		if todo = w.steps(todo[:0]); len(todo) == 0 {
			break
		}
		if !take(todo[choose(len(todo))]) {
			return trace, violation
		}
	}
	trace = append(trace, "-- healing --")
	for range 2_000 {
		s, more := w.heal()
		if !more {
			return trace, w.rest()
		}
		if !take(s) {
			return trace, violation
		}
	}
	return trace, "does not come to rest"
}

func TestAnyWalkHeals(t *testing.T) {
	for name, root := range map[string]func() world{
		"watchers and readers": func() world { c := large(); return newBus(&c) },
		"members":              func() world { c := largeFollowed(); return newBus(&c) },
		"bucket":               func() world { c := largeBucket(); return newKV(&c) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(t *rapid.T) {
				n := rapid.IntRange(1, 120).Draw(t, "steps")
				trace, violation := walk(root(), n, func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "step") })
				if violation != "" {
					for i, line := range trace {
						t.Logf("%3d. %s", i+1, line)
					}
					t.Fatal(violation)
				}
			})
		})
	}
}

func FuzzWalk(f *testing.F) {
	f.Add([]byte("a walk through the world"))
	f.Fuzz(func(t *testing.T, choices []byte) {
		c := large()
		at := 0
		trace, violation := walk(newBus(&c), len(choices), func(n int) int { at++; return int(choices[at-1]) % n })
		if violation != "" {
			t.Fatalf("%v\n%s", trace, violation)
		}
	})
}
