package tokenbucket

import (
	"math"
	"testing"
	"time"
)

const second = time.Second

func TestTake(t *testing.T) {
	limit := Limit{Rate: 2, Burst: 3}
	type step struct {
		at   time.Duration
		n    int
		want bool
		left int
	}
	tests := map[string]struct {
		limit Limit
		from  Bucket
		steps []step
	}{
		"a full bucket gives its burst at once and not one more": {limit, Bucket{}, []step{
			{0, 1, true, 2}, {0, 2, true, 0}, {0, 1, false, 0},
		}},
		"an empty bucket gives nothing until a token has flowed in": {limit, Empty(limit, 0), []step{
			{0, 1, false, 0}, {second/2 - 1, 1, false, 0}, {second / 2, 1, true, 0}, {second, 1, true, 0},
		}},
		"all or none": {limit, Empty(limit, 0), []step{
			{second, 3, false, 2}, {second, 2, true, 0},
		}},
		"no more than the burst is kept": {limit, Empty(limit, 0), []step{
			{time.Hour, 4, false, 3}, {time.Hour, 3, true, 0}, {time.Hour + second/2, 2, false, 1},
		}},
		"a clock that goes back gives nothing": {limit, Empty(limit, 10*second), []step{
			{0, 1, false, 0}, {10*second + second/2, 1, true, 0},
		}},
		"a token of ten seconds": {Limit{Rate: 0.1, Burst: 1}, Bucket{}, []step{
			{0, 1, true, 0}, {10*second - 1, 1, false, 0}, {10 * second, 1, true, 0},
		}},
		"a burst that is no whole number": {Limit{Rate: 1, Burst: 1.5}, Bucket{}, []step{
			{0, 2, false, 1}, {0, 1, true, 0}, {second / 2, 1, true, 0}, {second, 1, false, 0},
		}},
		"nothing can always be taken": {limit, Empty(limit, 0), []step{{0, 0, true, 0}, {0, -1, false, 0}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			b := tt.from
			for i, s := range tt.steps {
				var got bool
				b, got = b.Take(tt.limit, s.n, s.at)
				if left := b.Tokens(tt.limit, s.at); got != s.want || left != s.left {
					t.Fatalf("step %d: Take(%d) at %s = %t with %d left, want %t with %d", i, s.n, s.at, got, left, s.want, s.left)
				}
			}
		})
	}
}

func TestWaitIsExact(t *testing.T) {
	for _, l := range []Limit{{1, 1}, {0.3, 2}, {7, 3}, {999, 10}, {1e6, 5}, {3.7, 4.5}} {
		b := Empty(l, 5)
		for n := 1; float64(n) <= l.Burst; n++ {
			wait := b.Wait(l, n, 5)
			if _, ok := b.Take(l, n, 5+wait-1); ok {
				t.Errorf("%+v: %d tokens are there before the wait of %s is over", l, n, wait)
			}
			if _, ok := b.Take(l, n, 5+wait); !ok {
				t.Errorf("%+v: %d tokens are not there after a wait of %s", l, n, wait)
			}
		}
		if got := b.Wait(l, int(l.Burst)+1, 5); got != Never {
			t.Errorf("%+v: more than the burst takes %s, want for ever", l, got)
		}
	}
}

func TestABucketMovesToAnotherClock(t *testing.T) {
	l := Limit{Rate: 4, Burst: 8}
	b, _ := Bucket{}.Take(l, 7, 100*second)
	moved := Owing(b.Debt(100*second), 3*second)
	for after := time.Duration(0); after < 3*second; after += 50 * time.Millisecond {
		if here, there := b.Tokens(l, 100*second+after), moved.Tokens(l, 3*second+after); here != there {
			t.Fatalf("after %s there are %d tokens by one clock and %d by the other", after, here, there)
		}
	}
}

func TestAChangedLimitMakesNoToken(t *testing.T) {
	limits := []Limit{{1, 1}, {10, 1}, {1, 10}, {10, 10}, {0.1, 3}, {500, 250}}
	for _, from := range limits {
		for _, to := range limits {
			for taken := 0; float64(taken) <= from.Burst; taken++ {
				b, _ := Bucket{}.Take(from, taken, 0)
				before, after := b.Tokens(from, 0), b.Change(from, to, 0).Tokens(to, 0)
				if want := min(before, int(to.Burst)); after != want {
					t.Errorf("%d tokens under %+v are %d under %+v, want %d", before, from, after, to, want)
				}
			}
		}
	}
}

// FuzzWindow plays takes at any instants: in no window are there more tokens
// than flowed in during it and a burst, but for the nanosecond to which times are
// rounded.
func FuzzWindow(f *testing.F) {
	f.Add(uint32(1000), uint16(10), []byte{0, 1, 200, 3, 0, 9})
	f.Add(uint32(1), uint16(1), []byte{255, 1, 255, 1})
	f.Add(uint32(3_333_333), uint16(300), []byte{1, 255, 1, 255, 1, 255, 0, 255})
	f.Fuzz(func(t *testing.T, milli uint32, burst uint16, steps []byte) {
		l := Limit{Rate: float64(milli%10_000_000+1) / 1000, Burst: float64(burst%5000) + 1}
		unit := l.cost(0.1) // a byte is up to 25 tokens' time
		type act struct {
			at time.Duration
			n  int
		}
		var acts []act
		b, now := Bucket{}, time.Duration(0)
		for i := 0; i+1 < len(steps); i += 2 {
			now += time.Duration(steps[i]) * unit
			n, had := int(steps[i+1]), b.Tokens(l, now)
			next, ok := b.Take(l, n, now)
			if ok != (n <= had) {
				t.Fatalf("%+v: Take(%d) of %d tokens = %t", l, n, had, ok)
			}
			if b = next; ok {
				acts = append(acts, act{now, n})
			}
		}
		for i := range acts {
			sum := 0
			for _, a := range acts[i:] {
				sum += a.n
				window := (a.at - acts[i].at + 1).Seconds()
				if may := l.Rate*window + l.Burst; float64(sum) > may+math.Abs(may)*1e-12 {
					t.Fatalf("%+v: %d tokens within %gs, at most %g may be", l, sum, window, may)
				}
			}
		}
	})
}

func BenchmarkTake(b *testing.B) {
	l := Limit{Rate: 1e6, Burst: 100}
	bucket, now := Bucket{}, time.Duration(0)
	b.ReportAllocs()
	for b.Loop() {
		now += time.Microsecond
		bucket, _ = bucket.Take(l, 1, now)
	}
}
