package protocol

import (
	"maps"
	"slices"
	"testing"
)

// The worlds. Each is small enough to be visited completely; together they hold
// every pair of things that may go wrong which share a machine.

// bounded is a world and how many states it has at least, so that a change which
// quietly makes it smaller does not pass for a proof.
type bounded struct {
	root  func(without) world
	floor int
	gap   uint64
}

// one is a kind with one key, one slice and one watcher.
func one(change func(*busConfig)) busConfig {
	c := busConfig{kinds: 1, keys: 1, partitions: 1, watchers: 1, scope: ByKey, eager: true}
	change(&c)
	return c
}

// read adds a reader to a kind whose publications are answered at once.
func read(change func(*busConfig)) busConfig {
	return one(func(c *busConfig) {
		c.readers, c.prompt, c.marks = 1, true, 2
		change(c)
	})
}

// reconciled is a pair of kinds and the members that make the second follow the
// first.
func reconciled(change func(*busConfig)) busConfig {
	c := busConfig{
		kinds: 2, keys: 2, partitions: 1, watchers: 2, scope: ByKey, atomic: true, unfollowed: true,
		members: 2, claims: 2, writes: 1, marks: 2,
	}
	change(&c)
	return c
}

func worlds(long bool) map[string]bounded {
	more := 0
	if long {
		more = 1
	}
	bus := func(floor int, c busConfig) bounded {
		return bounded{root: func(w without) world {
			c := c
			c.without = w
			return newBus(&c)
		}, floor: floor, gap: 1}
	}
	bucket := func(floor int, c kvConfig) bounded {
		return bounded{root: func(w without) world {
			c := c
			c.without = w
			return newKV(&c)
		}, floor: floor, gap: 1}
	}
	rolledBack := func(floor int, c busConfig) bounded {
		b := bus(floor, c)
		b.gap = 3 // a sequence may be given again
		return b
	}
	m8 := int8(more) //nolint:gosec // 0 or 1
	return map[string]bounded{
		// Two watchers of one kind, one of which does not know that it lost it.
		"publish: two watchers, late publications": bus(30_000, one(func(c *busConfig) {
			c.watchers, c.writes, c.late, c.takeovers = 2, 2+more, 1, 1
		})),
		"publish: reads take time": bus(50_000, one(func(c *busConfig) {
			c.watchers, c.writes, c.late, c.takeovers, c.eager = 2, 2, 1+m8, 1, false
		})),
		"publish: two keys": bus(15_000, one(func(c *busConfig) {
			c.keys, c.watchers, c.writes, c.late, c.resets, c.takeovers = 2, 1+more, 2, 1, 1-m8, m8
		})),
		"publish: crash": bus(20_000, one(func(c *busConfig) {
			c.watchers, c.writes, c.crashes, c.takeovers, c.late = 2, 2, 1, 2, m8
		})),
		"publish: relist": bus(10_000, one(func(c *busConfig) {
			c.watchers, c.writes, c.takeovers, c.relists, c.crashes = 2, 2+more, 1, 1, 1
		})),
		"publish: reset and wipe": bus(40_000, one(func(c *busConfig) {
			c.writes, c.wipes, c.resets, c.late = 3, 1, 1, m8
		})),
		"publish: rollback": rolledBack(1_000, one(func(c *busConfig) {
			c.watchers, c.writes, c.rollbacks, c.takeovers, c.late, c.prompt = 1+more, 3-more, 1, m8, 1-m8, long
		})),
		// One reader, and what can happen to the stream it reads.
		"sync: two keys": bus(30_000, read(func(c *busConfig) {
			c.keys, c.writes, c.again, c.unfollowed = 2, 3, 1+m8, true
		})),
		"sync: two slices": bus(6_000, read(func(c *busConfig) {
			c.partitions, c.keys, c.scope, c.writes, c.unfollowed = 2, 2, Whole, 2+more, true
		})),
		"sync: revival": bus(50_000, read(func(c *busConfig) {
			c.writes, c.expiries, c.kills, c.marks = 2, 1, 1, 1+m8
		})),
		"sync: revival without a reconnect": bus(10_000, read(func(c *busConfig) {
			c.writes, c.expiries, c.quiet, c.again = 2+more, 1, 1, 1
		})),
		"sync: rollback": rolledBack(10_000, read(func(c *busConfig) {
			c.writes, c.rollbacks, c.marks = 2, 1, 1+m8
		})),
		"sync: rollback of one of two keys": rolledBack(1_000, read(func(c *busConfig) {
			c.keys, c.writes, c.rollbacks, c.marks, c.unfollowed = 2, 3, 1, 1+m8, true
		})),
		"sync: wipe": bus(20_000, read(func(c *busConfig) {
			c.writes, c.wipes, c.marks = 2+more, 1, 1+m8
		})),
		"sync: reset": bus(20_000, read(func(c *busConfig) {
			c.writes, c.resets, c.marks = 2, 1+m8, 1+m8
		})),
		"sync: bookmarks of two epochs": bus(40_000, read(func(c *busConfig) {
			c.watchers, c.writes, c.late, c.takeovers, c.again = 2, 1, 1, 1, m8
		})),
		"sync: a newer watcher takes over": bus(10_000, read(func(c *busConfig) {
			c.watchers, c.writes, c.takeovers, c.projections, c.need, c.late = 2, 1, 1, [2]uint32{1, 2}, 2, m8
		})),
		"sync: an older watcher takes over": bus(10_000, read(func(c *busConfig) {
			c.watchers, c.writes, c.takeovers, c.projections, c.need, c.late = 2, 1, 1, [2]uint32{2, 1}, 2, m8
		})),
		// Members reconcile; whoever likes may believe to hold the key.
		"handover: two holders": bus(20_000, reconciled(func(c *busConfig) { c.writes += more })),
		"handover: conflict": bus(40_000, reconciled(func(c *busConfig) {
			c.members, c.claims, c.writes, c.touches = 1, 1, 2, 1
		})),
		"handover: one after another, generated names": bus(15_000, reconciled(func(c *busConfig) {
			c.alone, c.names, c.marks = true, 2, 3
		})),
		"handover: claimed again": bus(3_000, reconciled(func(c *busConfig) {
			c.members, c.claims, c.writes, c.marks = 1, 2, 2, 1+m8
		})),
		// Members share units in a bucket.
		"kv: start and crash": bucket(90_000, kvConfig{members: 2, units: 1, ids: 5, ticks: 3 + m8, crashes: 1}),
		"kv: a lagging view":  bucket(10_000, kvConfig{members: 2, units: 1, ids: 4, ticks: 3 + m8}),
		"kv: freeze":          bucket(10_000, kvConfig{members: 2, units: 1, ids: 5, ticks: 3 + m8, freezes: 1, settled: true}),
		"kv: cut":             bucket(30_000, kvConfig{members: 2, units: 1, ids: 5, ticks: 2 + m8, cuts: 1, quick: 1, settled: true}),
		"kv: lost renewal":    bucket(50_000, kvConfig{members: 2, units: 1, ids: 5, ticks: 3 + m8, losses: 1, settled: true}),
		"kv: wipe":            bucket(40_000, kvConfig{members: 2, units: 1, ids: 5, ticks: 2 + m8, wipes: 1, settled: true}),
		"kv: two units":       bucket(1_000, kvConfig{members: 2, units: 2, ids: 5, ticks: 2, departures: 1, crashes: 1, cuts: m8, settled: true}),
	}
}

func TestExplore(t *testing.T) {
	limit := 500_000
	if long(t) {
		limit = 2_000_000
	}
	all := worlds(long(t))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		b := all[name]
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := explore(func() world { return b.root(0) }, limit, b.gap)
			t.Logf("%-50s %8d states, depth %2d, %.1f s", name, o.states, o.depth, o.took.Seconds())
			switch {
			case o.violation != "":
				t.Errorf("after %d steps:\n%s", o.length(), o)
			case !o.complete:
				t.Errorf("cut at %d states", o.states)
			case o.states < b.floor:
				t.Errorf("%d states, want at least %d", o.states, b.floor)
			}
		})
	}
}

// Taking out any one rule must make a world fail; where several do, the one in
// which it fails first is named.
func TestExploreWithout(t *testing.T) {
	all := worlds(false)
	for name, tt := range map[string]struct {
		rule  rule
		world string
	}{
		"compare and set on every publication":              {ruleCAS, "publish: reads take time"},
		"step down at a higher epoch":                       {ruleStepDown, "sync: a newer watcher takes over"},
		"never an older object, never an old buffer":        {ruleNeverOlder, "publish: relist"},
		"compare the stream with the first list":            {ruleStartDiff, "publish: relist"},
		"compare the stream with the records after a reset": {ruleCompare, "publish: reset and wipe"},
		"follow the own subjects":                           {ruleFollow, "publish: two watchers, late publications"},
		"take sums while the slice is quiet":                {ruleQuietSums, "sync: two keys"},
		"sync by sums":                                      {ruleSums, "sync: two keys"},
		"sync by the exact sum":                             {ruleExact, "sync: two keys"},
		"bookmarks in the stream":                           {ruleInStream, "sync: two keys"},
		"sweep what a replay did not deliver":               {ruleSweep, "sync: wipe"},
		"a new UID is a deletion and a creation":            {ruleReplaced, "sync: two keys"},
		"an older projection does not sync":                 {ruleProjection, "sync: a newer watcher takes over"},
		"sequences never repeat":                            {ruleFirstSeq, "publish: reset and wipe"},
		"epochs never repeat":                               {ruleFirstSeq, "kv: wipe"},
		"no client-side buffer":                             {ruleNoBuffer, "publish: rollback"},
		"evict the member before its leases are taken":      {ruleEvictFirst, "kv: cut"},
		"silence counts only while it could be heard":       {ruleConnectedTime, "kv: lost renewal"},
		"the first write after a claim reads live":          {ruleLiveFirst, "handover: one after another, generated names"},
		"a conflict is answered by a live read":             {ruleLiveOnConflict, "handover: conflict"},
		"no decision before the caches have synced":         {ruleGate, "handover: claimed again"},
		"preconditions on every write":                      {rulePreconditions, "handover: conflict"},
		"deterministic names":                               {ruleNames, "handover: two holders"},
		"ask for a comparison when bookmarks contradict":    {ruleAsk, "sync: revival without a reconnect"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, ok := all[tt.world]
			if !ok {
				t.Fatalf("no world %q", tt.world)
			}
			o := explore(func() world { return b.root(without(tt.rule)) }, 500_000, b.gap)
			if o.violation == "" {
				t.Fatalf("nothing fails without it in %q (%d states, complete %v)", tt.world, o.states, o.complete)
			}
			t.Logf("%q fails after %d steps (%d states):\n%s", tt.world, o.length(), o.states, o)
		})
	}
}
