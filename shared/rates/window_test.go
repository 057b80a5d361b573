package rates

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

var limits = []limit{{0.2, 1}, {1, 1}, {3, 10}, {20, 30}, {50, 1}, {200, 5}}

// Whatever happens, no window has more acts than it may: members come and crash,
// their clocks run fast and slow, processes freeze between taking and acting and
// while they ask, writes are answered by nothing and land late, NATS restarts, is
// wiped, and loses power.
func TestBoundHoldsThroughEverything(t *testing.T) {
	seeds := 120
	if testing.Short() {
		seeds = 8
	}
	total := 0
	for seed := range seeds {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { total += chaos(t, uint64(seed)) })
		})
	}
	t.Logf("%d acts", total)
}

func chaos(t *testing.T, seed uint64) (acts int) {
	luck := rand.New(rand.NewPCG(seed, 7))
	f := newFleet(t, seed, limits[int(seed)%len(limits)])
	f.spring.fail(20 + luck.IntN(200))
	f.spring.slow = []time.Duration{time.Millisecond, 10 * time.Millisecond, 120 * time.Millisecond}[luck.IntN(3)]
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var all sync.WaitGroup
	for i := range 1 + int(seed)%8 {
		luck := rand.New(rand.NewPCG(seed, uint64(100+i)))
		all.Go(func() { f.lives(ctx, luck) })
	}
	f.disasters(ctx, luck)
	all.Wait()
	f.bounded()
	return len(f.acts)
}

// lives is one place in the fleet: a process that crashes now and then and is
// started anew.
func (f *fleet) lives(ctx context.Context, luck *rand.Rand) {
	for ctx.Err() == nil {
		m := f.join(luck.IntN(800) - 400)
		life, crash := context.WithTimeout(ctx, time.Duration(5+luck.IntN(120))*time.Second)
		var workers sync.WaitGroup
		for range 1 + luck.IntN(4) {
			luck := rand.New(rand.NewPCG(luck.Uint64(), 1))
			workers.Go(func() {
				for life.Err() == nil {
					f.dawdling(life, m, luck)
				}
			})
		}
		workers.Go(func() { freezing(life, m, rand.New(rand.NewPCG(luck.Uint64(), 2))) })
		workers.Wait()
		crash()
		m.stop()
	}
}

// dawdling is one act, perhaps late, and a rest.
func (f *fleet) dawdling(ctx context.Context, m *mate, luck *rand.Rand) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(1+luck.IntN(20_000))*time.Millisecond)
	defer cancel()
	var late time.Duration
	if luck.IntN(3) == 0 {
		late = time.Duration(luck.IntN(1500)) * time.Millisecond
	}
	f.act(ctx, m, late)
	if luck.IntN(20) == 0 {
		time.Sleep(time.Duration(luck.IntN(20)) * time.Second)
	}
	time.Sleep(time.Duration(luck.IntN(5)) * time.Millisecond)
}

func freezing(ctx context.Context, m *mate, luck *rand.Rand) {
	for ctx.Err() == nil {
		sleep(ctx, time.Duration(luck.IntN(20_000))*time.Millisecond)
		thaw := m.pipe.freeze()
		sleep(ctx, time.Duration(luck.IntN(4000))*time.Millisecond)
		thaw()
	}
}

// disasters are what befalls NATS, until ctx ends.
func (f *fleet) disasters(ctx context.Context, luck *rand.Rand) {
	for ctx.Err() == nil {
		backup := f.spring.backup()
		sleep(ctx, time.Duration(luck.IntN(30_000))*time.Millisecond)
		away := time.Duration(luck.IntN(3000)) * time.Millisecond
		switch luck.IntN(4) {
		case 0:
			f.spring.restart(away, func() {})
		case 1:
			f.spring.restart(away, f.spring.wipe)
		case 2:
			f.spring.restart(away, backup)
		}
	}
}

func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// A window is judged rightly.
func TestWorst(t *testing.T) {
	s := time.Second
	for name, tt := range map[string]struct {
		acts []time.Duration
		want float64
	}{
		"nothing done":                   {nil, -3},
		"as much as may be at once":      {[]time.Duration{0, 0, 0}, 0},
		"one too many at once":           {[]time.Duration{5 * s, 5 * s, 5 * s, 5 * s}, 1},
		"one too many in the middle":     {[]time.Duration{0, 100 * s, 101 * s, 101 * s, 101 * s, 101 * s, 200 * s}, 1},
		"a second later it is not":       {[]time.Duration{0, 0, s, s}, 0},
		"a long row at twice the rate":   {[]time.Duration{0, s / 2, s, 3 * s / 2, 2 * s, 5 * s / 2, 3 * s, 7 * s / 2, 4 * s}, 2},
		"a long row at the rate is fine": {[]time.Duration{0, s, 2 * s, 3 * s, 4 * s, 5 * s}, -2},
	} {
		t.Run(name, func(t *testing.T) {
			if got := worst(tt.acts, limit{1, 2}); got != tt.want {
				t.Errorf("worst() = %g, want %g", got, tt.want)
			}
		})
	}
}

// While work waits somewhere, at least 95 % of what flows in is used, whoever
// waits.
func TestRateIsReached(t *testing.T) {
	patterns := map[string]func(ctx context.Context, f *fleet, members []*mate){
		"all wait all the time": func(ctx context.Context, f *fleet, members []*mate) {
			var all sync.WaitGroup
			for _, m := range members {
				for range 5 {
					all.Go(func() {
						for ctx.Err() == nil {
							f.act(ctx, m, 5*time.Millisecond)
						}
					})
				}
			}
			all.Wait()
		},
		"one waits, each time another": func(ctx context.Context, f *fleet, members []*mate) {
			for i := 0; ctx.Err() == nil; i++ {
				f.act(ctx, members[i%len(members)], 0)
			}
		},
	}
	for name, wait := range patterns {
		for _, l := range limits {
			long := time.Duration(min(600, 6000/l.rate)) * time.Second
			for _, n := range []int{1, 3, 8} {
				t.Run(fmt.Sprintf("%s, %d members, %g/s burst %g", name, n, l.rate, l.burst), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						f := newFleet(t, uint64(n), l)
						var members []*mate
						for i := range n {
							members = append(members, f.join(100*i-400))
						}
						ctx, cancel := context.WithTimeout(t.Context(), long)
						wait(ctx, f, members)
						cancel()
						for _, m := range members {
							m.stop()
						}
						f.bounded()
						f.reached(long)
						t.Logf("%.1f %% of the rate, %d writes for %d acts, by member %v",
							100*float64(len(f.acts))/l.rate/long.Seconds(), f.spring.writes, len(f.acts), f.perHost)
					})
				})
			}
		}
	}
}
