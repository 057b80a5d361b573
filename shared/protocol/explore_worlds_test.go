package protocol

import (
	"os"
	"testing"
)

func busWorlds() map[string]busConfig {
	one := busConfig{kinds: 1, keys: 1, partitions: 1, watchers: 1, scope: ByKey}
	with := func(change func(*busConfig)) busConfig {
		c := one
		change(&c)
		return c
	}
	return map[string]busConfig{
		"publish":       with(func(c *busConfig) { c.watchers, c.writes, c.late, c.takeovers, c.eager = 2, 3, 1, 1, true }),
		"publish reads": with(func(c *busConfig) { c.watchers, c.writes, c.late, c.takeovers = 2, 2, 1, 1 }),
		"publish crash": with(func(c *busConfig) {
			c.watchers, c.writes, c.late, c.takeovers, c.crashes, c.eager = 2, 2, 1, 2, 1, true
		}),
		"publish keys":     with(func(c *busConfig) { c.keys, c.watchers, c.writes, c.late, c.takeovers, c.eager = 2, 2, 2, 1, 1, true }),
		"publish wipe":     with(func(c *busConfig) { c.writes, c.wipes, c.resets, c.eager = 3, 1, 1, true }),
		"publish rollback": with(func(c *busConfig) { c.watchers, c.writes, c.rollbacks, c.takeovers, c.eager = 2, 2, 1, 1, true }),
		"bookmarks": with(func(c *busConfig) {
			c.watchers, c.readers, c.writes, c.late, c.takeovers, c.eager, c.prompt, c.marks = 2, 1, 1, 1, 1, true, true, 2
		}),
		"sync": with(func(c *busConfig) {
			c.readers, c.keys, c.writes, c.again, c.eager, c.prompt, c.unfollowed, c.marks = 1, 2, 3, 1, true, true, true, 2
		}),
		"revival": with(func(c *busConfig) {
			c.readers, c.writes, c.expiries, c.kills, c.eager, c.prompt, c.marks = 1, 3, 1, 1, true, true, 2
		}),
		"quiet revival": with(func(c *busConfig) {
			c.readers, c.writes, c.expiries, c.quiet, c.again, c.eager, c.prompt, c.marks = 1, 3, 1, 1, 1, true, true, 2
		}),
		"rollback": with(func(c *busConfig) {
			c.readers, c.writes, c.rollbacks, c.eager, c.prompt, c.marks = 1, 2, 1, true, true, 2
		}),
		"wipe":  with(func(c *busConfig) { c.readers, c.writes, c.wipes, c.eager, c.prompt, c.marks = 1, 2, 1, true, true, 2 }),
		"reset": with(func(c *busConfig) { c.readers, c.writes, c.resets, c.eager, c.prompt, c.marks = 1, 2, 1, true, true, 2 }),
		"upgrade": with(func(c *busConfig) {
			c.watchers, c.readers, c.writes, c.takeovers, c.eager, c.prompt, c.projections, c.need, c.marks = 2, 1, 1, 1, true, true, [2]uint32{1, 2}, 2, 2
		}),
		"downgrade": with(func(c *busConfig) {
			c.watchers, c.readers, c.writes, c.takeovers, c.eager, c.prompt, c.projections, c.need, c.marks = 2, 1, 1, 1, true, true, [2]uint32{2, 1}, 2, 2
		}),
		"relist": with(func(c *busConfig) { c.watchers, c.writes, c.takeovers, c.relists, c.eager = 2, 3, 1, 1, true }),
		"slices": with(func(c *busConfig) {
			c.partitions, c.keys, c.scope, c.readers, c.writes, c.eager, c.prompt, c.unfollowed, c.marks = 2, 2, Whole, 1, 2, true, true, true, 2
		}),
		"handover":  {kinds: 2, keys: 1, partitions: 1, watchers: 2, scope: ByKey, members: 2, atomic: true, unfollowed: true, writes: 1, claims: 2, marks: 2},
		"successor": {kinds: 2, keys: 2, partitions: 1, watchers: 2, scope: ByKey, members: 2, atomic: true, unfollowed: true, writes: 1, claims: 2, alone: true, names: 2, marks: 3},
		"conflict":  {kinds: 2, keys: 1, partitions: 1, watchers: 2, scope: ByKey, members: 1, atomic: true, unfollowed: true, writes: 2, claims: 1, touches: 1, marks: 2},
	}
}

func TestExploreBus(t *testing.T) {
	for name, cfg := range busWorlds() {
		if only := os.Getenv("WORLD"); only != "" && only != name {
			continue
		}
		t.Run(name, func(t *testing.T) {
			o := explore(func() world { c := cfg; return newBus(&c) }, 400_000, 1)
			t.Logf("%s: %d states, depth %d, %s, complete %v", name, o.states, o.depth, o.took, o.complete)
			if o.violation != "" {
				t.Errorf("%s", o)
			}
		})
	}
}
