package backoff

import (
	"testing"
	"time"
)

func TestDelay(t *testing.T) {
	tests := map[string]struct {
		policy   Policy
		failures int
		low      time.Duration
		high     time.Duration
	}{
		"no failure, no wait":                       {Default, 0, 0, 0},
		"a negative count is no failure":            {Default, -3, 0, 0},
		"the first failure waits at most the base":  {Default, 1, 2500 * time.Microsecond, 5 * time.Millisecond},
		"each failure doubles":                      {Default, 4, 20 * time.Millisecond, 40 * time.Millisecond},
		"the maximum holds with the jitter":         {Default, 14, 15 * time.Second, 30 * time.Second},
		"a thousand failures wait no longer":        {Default, 1000, 15 * time.Second, 30 * time.Second},
		"a base above the maximum is the maximum":   {Policy{Base: time.Minute, Max: time.Second}, 1, 500 * time.Millisecond, time.Second},
		"without a maximum it stays at the base":    {Policy{Base: time.Second}, 9, 500 * time.Millisecond, time.Second},
		"a policy without a base never waits":       {Policy{Max: time.Second}, 9, 0, 0},
		"the greatest maximum does not overflow":    {Policy{Base: 1, Max: 1<<63 - 1}, 1 << 20, 1 << 61, 1<<63 - 1},
		"an odd number of nanoseconds is not lost":  {Policy{Base: 1, Max: 1}, 1, 0, 1},
		"a maximum that is no power of two is used": {Policy{Base: 5, Max: 31}, 9, 15, 31},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(1000) {
				if got := tt.policy.Delay(tt.failures, seed); got < tt.low || got > tt.high {
					t.Fatalf("Delay(%d, %d) = %s, want within [%s, %s]", tt.failures, seed, got, tt.low, tt.high)
				}
			}
		})
	}
}

// Keys that failed together must not come back together.
func TestSeedsSpread(t *testing.T) {
	seen := map[time.Duration]int{}
	for seed := range uint64(1000) {
		seen[Delay(20, seed).Truncate(time.Second)]++
	}
	for second := 15 * time.Second; second < 30*time.Second; second += time.Second {
		if n := seen[second]; n < 30 || n > 120 {
			t.Errorf("%d of 1000 keys wait %s; want about 67", n, second)
		}
	}
	if again := Delay(7, 1); Delay(7, 1) != again {
		t.Error("the same arguments gave two delays")
	}
}

func FuzzDelay(f *testing.F) {
	f.Add(int64(5_000_000), int64(30_000_000_000), 3, uint64(1))
	f.Fuzz(func(t *testing.T, base, limit int64, failures int, seed uint64) {
		p := Policy{Base: time.Duration(base), Max: time.Duration(limit)}
		got := p.Delay(failures, seed)
		if got < 0 || limit > 0 && got > p.Max || limit <= 0 && got > max(p.Base, 0) {
			t.Fatalf("%+v.Delay(%d, %d) = %s", p, failures, seed, got)
		}
	})
}

func BenchmarkDelay(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		Delay(12, 42)
	}
}
