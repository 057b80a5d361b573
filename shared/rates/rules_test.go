package rates

import (
	"context"
	"errors"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// within runs a story of a fleet under a limit of one token a second.
func within(t *testing.T, burst float64, story func(t *testing.T, f *fleet)) {
	synctest.Test(t, func(t *testing.T) { story(t, newFleet(t, 1, limit{1, burst})) })
}

// many acts at once as often as it can before d has passed.
func (f *fleet) many(m *mate, d time.Duration) (n int) {
	ctx, cancel := context.WithTimeout(f.t.Context(), d)
	defer cancel()
	for f.act(ctx, m, 0) {
		n++
	}
	return n
}

// ⚠ A new bucket holds nothing, so that a wipe cannot mint a burst; and that
// there was none for an hour says nothing: what was there between is not known.
func TestAnAbsentBucketIsEmpty(t *testing.T) {
	within(t, 10, func(t *testing.T, f *fleet) {
		a, b := f.join(0), f.join(0)
		defer a.stop()
		defer b.stop()
		if n := f.many(a, 5500*time.Millisecond); n != 5 {
			t.Errorf("a new bucket gave %d tokens in 5.5 s, want 5", n)
		}
		// b asks, sees that there is no bucket, and is cut off before it makes one.
		f.spring.restart(0, f.spring.wipe)
		f.spring.fail(1)
		if n := f.many(b, 500*time.Millisecond); n != 0 {
			t.Fatal("a token from nowhere")
		}
		f.spring.fail(0)
		f.many(a, 20*time.Second) // makes one, and spends it
		time.Sleep(10 * time.Second)
		f.many(a, 100*time.Millisecond) // the burst
		f.spring.restart(0, f.spring.wipe)
		if n := f.many(b, 100*time.Millisecond); n != 0 {
			t.Errorf("b took %d tokens from a bucket it believed to be old", n)
		}
		f.bounded()
	})
}

// ⚠ After a reconnect the past may be another: a server that lost power brings
// back a bucket that was full.
func TestABucketReadAfterAReconnectIsEmpty(t *testing.T) {
	within(t, 10, func(t *testing.T, f *fleet) {
		a, b := f.join(0), f.join(0)
		defer a.stop()
		defer b.stop()
		f.many(b, 1500*time.Millisecond)
		time.Sleep(30 * time.Second)
		f.many(b, time.Millisecond*10) // both know it full but for these
		time.Sleep(30 * time.Second)
		backup := f.spring.backup()
		thaw := b.pipe.freeze() // it hears nothing of what follows
		if n := f.many(a, 100*time.Millisecond); n != 10 {
			t.Fatalf("the burst was %d tokens", n)
		}
		f.spring.restart(0, backup)
		thaw()
		if n := f.many(b, 100*time.Millisecond); n != 0 {
			t.Errorf("b took %d tokens again that a had spent", n)
		}
		f.bounded()
	})
}

// ⚠ Without a reconnect, a revision that is lower than one already seen says the
// same.
func TestABucketThatWentBackIsEmpty(t *testing.T) {
	within(t, 10, func(t *testing.T, f *fleet) {
		a := f.join(0)
		defer a.stop()
		f.many(a, 1500*time.Millisecond)
		time.Sleep(30 * time.Second)
		backup := f.spring.backup()
		if n := f.many(a, 100*time.Millisecond); n != 10 {
			t.Fatalf("the burst was %d tokens", n)
		}
		f.spring.mu.Lock()
		backup()
		f.spring.mu.Unlock()
		if n := f.many(a, 100*time.Millisecond); n != 0 {
			t.Errorf("a took %d tokens again that it had spent", n)
		}
		if n := f.many(a, 5*time.Second); n < 4 {
			t.Errorf("then it took %d in 5 s, want one a second", n)
		}
		f.bounded()
	})
}

// ⚠ A write that is answered by nothing gives nothing, whether it landed or not.
func TestAnUnknownOutcomeGivesNothing(t *testing.T) {
	within(t, 10, func(t *testing.T, f *fleet) {
		a := f.join(0)
		defer a.stop()
		f.many(a, 1500*time.Millisecond)
		time.Sleep(time.Minute)
		f.spring.fail(1)
		if n := f.many(a, 3*time.Second); n != 0 {
			t.Errorf("%d tokens came of writes that were not answered", n)
		}
		f.spring.fail(0)
		time.Sleep(5 * time.Second) // what was late has landed
		f.many(a, 20*time.Second)
		f.bounded()
	})
}

// ⚠ A process that was stopped with a token in hand does not use it.
func TestATokenThatWasHeldTooLongIsVoid(t *testing.T) {
	within(t, 10, func(t *testing.T, f *fleet) {
		a := f.join(0)
		defer a.stop()
		for _, tt := range []struct {
			held time.Duration
			want error
		}{{0, nil}, {900 * time.Millisecond, nil}, {time.Second, ErrVoid}, {time.Hour, ErrVoid}} {
			time.Sleep(10 * time.Second)
			token, err := a.bucket.Take(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(tt.held)
			if err := token.Valid(); !errors.Is(err, tt.want) {
				t.Errorf("a token held for %s: %v, want %v", tt.held, err, tt.want)
			}
		}
	})
}

// A process that was stopped while it asked has nothing of the answer.
func TestAnAnswerThatComesTooLateIsVoid(t *testing.T) {
	within(t, 10, func(t *testing.T, f *fleet) {
		a := f.join(0)
		defer a.stop()
		f.many(a, 2500*time.Millisecond)
		thaw := a.pipe.freeze()
		got := make(chan Token, 1)
		go func() {
			token, err := a.bucket.Take(t.Context())
			if err == nil {
				got <- token
			}
		}()
		time.Sleep(3 * time.Second)
		before := time.Now()
		thaw()
		if token := <-got; token.Valid() != nil || time.Since(before) > time.Second {
			t.Errorf("the next token came after %s: %v", time.Since(before), token.Valid())
		}
		f.many(a, 10*time.Second)
		f.bounded()
	})
}

// No token while NATS is away, and the caller learns why.
func TestNoTokenWhileNATSIsAway(t *testing.T) {
	within(t, 10, func(t *testing.T, f *fleet) {
		a := f.join(0)
		defer a.stop()
		f.many(a, 2500*time.Millisecond)
		time.Sleep(10 * time.Second)
		back := make(chan struct{})
		go func() { defer close(back); f.spring.restart(5*time.Second, func() {}) }()
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
		defer cancel()
		if _, err := a.bucket.Take(ctx); !errors.Is(err, errAway) || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Take() = %v, want that NATS is away", err)
		}
		if s := a.Status()[0]; s.GetProblem() != errAway.Error() || s.GetTokens() != 0 {
			t.Errorf("status is %v", s)
		}
		<-back
		if n := f.many(a, 3500*time.Millisecond); n < 2 || n > 3 {
			t.Errorf("%d tokens in 3.5 s after NATS was back, want one a second", n)
		}
	})
}

// What two members say of the bucket's clock: whoever saw all writes may be a
// little ahead, and whoever missed one not at all.
func TestSight(t *testing.T) {
	own := limit{10, 10}
	base := sight{}.after(100, account{now: 50 * time.Second, serial: 7, limit: own}, 1000*time.Second)
	if base.offset != -950*time.Second {
		t.Fatalf("offset is %s", base.offset)
	}
	for name, tt := range map[string]struct {
		serial  uint64
		written time.Duration // by the bucket's clock, when ours says 60 s
		want    time.Duration // what ours then says
	}{
		"a write told late leaves our clock as it is":          {8, 60*time.Second - 20*time.Millisecond, 60 * time.Second},
		"a write told very late takes all but a little away":   {8, 50 * time.Second, 50*time.Second + lead},
		"a clock that is behind is set":                        {8, 61 * time.Second, 61 * time.Second},
		"who missed a write believes the next":                 {9, 60*time.Second - 20*time.Millisecond, 60*time.Second - 20*time.Millisecond},
		"who missed a write and was behind believes it too":    {9, 61 * time.Second, 61 * time.Second},
		"another bucket has another clock":                     {math.MaxUint64, 0, 0},
		"a serial that did not grow says that something broke": {7, 55 * time.Second, 55 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			now := 1010 * time.Second
			s := base.after(101, account{now: tt.written, serial: tt.serial, limit: own}, now)
			if got := now + s.offset; got != tt.want {
				t.Errorf("the bucket's clock is %s, want %s", got, tt.want)
			}
		})
	}
}

// ⚠ In a roll-out the smaller setting holds for all who take, and for half a
// minute after the last who has it took.
func TestTheSmallerSettingHolds(t *testing.T) {
	within(t, 2, func(t *testing.T, f *fleet) {
		old, young := f.join(0), f.join(0)
		defer old.stop()
		defer young.stop()
		f.many(old, 5*time.Second)
		young.bucket.Set(20, 40)
		from := len(f.acts)
		for range 3 {
			f.many(young, 15*time.Second)
			f.many(old, 3*time.Second)
		}
		f.bounded()
		if got := len(f.acts) - from; got < 50 {
			t.Errorf("%d acts in 54 s at one a second", got)
		}
		if s := young.Status()[0]; s.GetRate() != 1 || s.GetBurst() != 2 {
			t.Errorf("the limit in force is %v", s)
		}
		f.many(young, raiseAfter)
		f.acts = nil
		if n := f.many(young, 10*time.Second); n < 190 {
			t.Errorf("%d acts in 10 s at 20 a second, after the last old member has gone", n)
		}
		f.limit = limit{20, 40}
		f.bounded()
		f.acts, f.limit = nil, limit{1, 2} // an old one again
		f.many(old, time.Second)
		f.acts = f.acts[max(0, len(f.acts)-1):]
		f.many(young, 10*time.Second)
		f.bounded()
	})
}

func TestAnAccountSurvivesTheWire(t *testing.T) {
	a := account{now: time.Hour, debt: time.Second, serial: math.MaxUint64, limit: limit{0.5, 3}, spent: 9, taker: "m1"}
	a.confirmed.rate, a.confirmed.burst = 4, 5
	got, err := parse(a.marshal())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(a, got, cmp.AllowUnexported(account{}, limit{}, a.confirmed)); diff != "" {
		t.Errorf("(-sent +read):\n%s", diff)
	}
	if n := len(a.marshal()); n > 100 {
		t.Errorf("an account takes %d bytes", n)
	}
	for name, bad := range map[string]account{
		"no rate": {limit: limit{0, 1}}, "no burst": {limit: limit{1, 0}}, "a rate that is none": {limit: limit{math.NaN(), 1}},
		"a debt below nothing": {limit: limit{1, 1}, debt: -1},
	} {
		if _, err := parse(bad.marshal()); err == nil {
			t.Errorf("an account with %s is read", name)
		}
	}
	if _, err := parse([]byte("\xff")); err == nil {
		t.Error("what is no account is read")
	}
}

// The bound at its edges: room, life and what clocks differ by are one second.
func TestTheSecondIsSharedOut(t *testing.T) {
	for _, l := range append(limits, limit{1000, 1}, limit{10, 4.9}, limit{10, 5.1}) {
		room, life := l.bucket().Burst, l.life()
		if got, want := l.rate*(life+lead).Seconds()+room, l.rate+l.burst; math.Abs(got-want) > 1e-6*want {
			t.Errorf("%+v: %g acts may be at once, the bound is %g", l, got, want)
		}
		if life < second-lead-sooner || life > second-lead {
			t.Errorf("%+v: a token lives %s", l, life)
		}
	}
}
