package beat

import (
	"testing"
)

// seeds is how many worlds of a weather are tried. Unit: worlds. An environment
// is not read in a pure room; the long form is BenchmarkWorlds.
func seeds() uint64 {
	if testing.Short() {
		return 200
	}
	return 1500
}

func TestNoBeatingNodeIsEverSilent(t *testing.T) {
	for name, w := range map[string]weather{"calm": calm, "storm": storm, "loose": loose, "relay": relay, "mirage": mirage} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range seeds() {
				if s := newWorld(seed, w, 0).run(); s != "" {
					t.Fatalf("seed %d: %s", seed, s)
				}
			}
		})
	}
}

// TestRules takes one rule out at a time: a promise must then be broken.
func TestRules(t *testing.T) {
	tests := map[string]struct {
		rule
		weather
	}{
		"time passes beyond the last proof":        {ruleProof, storm},
		"a tick adds all the time of a freeze":     {ruleMaxTick, loose},
		"digests go on without a proof":            {ruleNoDigest, storm},
		"a node is as old as its times":            {ruleFirstSight, storm},
		"a node made anew inherits the age":        {ruleNewUID, storm},
		"only a later time is a beat":              {ruleAnyChange, calm},
		"a node's own status is no beat":           {ruleHeartbeat, calm},
		"who takes over starts from nothing":       {ruleInherit, relay},
		"a beat is as old as the last tick":        {ruleNextTick, calm},
		"a digest is good for ever":                {ruleLate, storm},
		"a digest that was long on its way counts": {ruleDelayed, storm},
		"the first digest of an epoch counts":      {ruleSecond, storm},
		"a digest that was contradicted goes on":   {ruleContradicted, mirage},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for seed := range uint64(3_000) {
				if s := newWorld(seed, tt.weather, tt.rule).run(); s != "" {
					t.Logf("seed %d: %s", seed, s)
					return
				}
			}
			t.Error("nothing goes wrong without this rule")
		})
	}
}

// BenchmarkWorlds looks at one world after another for as long as it is told to:
// go test ./shared/beat -run - -bench Worlds -benchtime 5m.
func BenchmarkWorlds(b *testing.B) {
	for name, w := range map[string]weather{"storm": storm, "loose": loose, "mirage": mirage} {
		b.Run(name, func(b *testing.B) {
			for seed := uint64(1 << 32); b.Loop(); seed++ {
				if s := newWorld(seed, w, 0).run(); s != "" {
					b.Fatalf("seed %d: %s", seed, s)
				}
			}
		})
	}
}
