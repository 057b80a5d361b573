package rates

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// counter is those who were woken, and tokens to be had.
type counter struct {
	mu    sync.Mutex
	woken []string
	asked []string
	free  chan struct{}
}

func (c *counter) names() []string {
	synctest.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.woken)
}

// lines runs a test in fake time on lines whose tokens never die.
func lines(t *testing.T, wait func(scope, first string, since time.Time) time.Duration, f func(l *Lines[string], c *counter)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := &counter{free: make(chan struct{}, 100)}
		b := newBucket(New(Config{}, nil, nil, nil, nil), "s", "k", limit{1, 1})
		l := NewLines(ctx, Rules[string]{
			Wait: wait,
			Take: func(ctx context.Context, scope, first string) (Token, error) {
				c.mu.Lock()
				c.asked = append(c.asked, scope+" for "+first)
				c.mu.Unlock()
				select {
				case <-c.free:
					return Token{b: b, until: 1<<63 - 1}, nil
				case <-ctx.Done():
					return Token{}, ctx.Err()
				}
			},
			Wake: func(who string) {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.woken = append(c.woken, who)
			},
		})
		f(l, c)
		cancel()
		synctest.Wait()
	})
}

func (c *counter) give(n int) {
	for range n {
		c.free <- struct{}{}
	}
	synctest.Wait()
}

func TestTheEarliestIsServedFirst(t *testing.T) {
	lines(t, nil, func(l *Lines[string], c *counter) {
		now := time.Now()
		l.Want("late", "s", now.Add(time.Minute))
		l.Want("early", "s", now.Add(-time.Minute))
		l.Want("same-1", "s", now)
		l.Want("same-2", "s", now)
		l.Want("late", "s", now.Add(-time.Hour)) // it has moved
		if scope, ahead, waiting := l.Place("same-2"); scope != "s" || ahead != 3 || waiting != 4 {
			t.Errorf("same-2 stands in %s behind %d of %d", scope, ahead, waiting)
		}
		c.give(3)
		if got := c.names(); !slices.Equal(got, []string{"late", "early", "same-1"}) {
			t.Errorf("woke %q", got)
		}
		for _, who := range c.names() {
			if _, ok := l.Claim(who); !ok {
				t.Errorf("%s has no token", who)
			}
		}
		if _, ok := l.Claim("same-2"); ok {
			t.Error("same-2 has a token that nobody gave it")
		}
	})
}

// A token that comes when nobody waits any more is nobody's, and who has gone with a
// token has lost it.
func TestWhoLeavesGetsNothing(t *testing.T) {
	lines(t, nil, func(l *Lines[string], c *counter) {
		now := time.Now()
		l.Want("a", "s", now)
		l.Want("b", "s", now)
		synctest.Wait() // somebody asks for a token
		l.Leave(func(who string) bool { return true })
		c.give(1)
		if got := c.names(); len(got) != 0 {
			t.Errorf("woke %q", got)
		}
		l.Want("c", "s", now)
		c.give(1)
		if !l.Granted("c") {
			t.Error("c has no token")
		}
		l.Forget("c")
		if _, ok := l.Claim("c"); ok {
			t.Error("c has left and has a token")
		}
	})
}

// While the first may not, nobody asks; and what was asked for before is void.
func TestNobodyAsksBeforeItMay(t *testing.T) {
	var mu sync.Mutex
	wait := 10 * time.Second
	lines(t, func(string, string, time.Time) time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return wait
	}, func(l *Lines[string], c *counter) {
		l.Want("a", "s", time.Now())
		time.Sleep(9 * time.Second)
		if c.names(); len(c.asked) != 0 {
			t.Errorf("asked %q", c.asked)
		}
		mu.Lock()
		wait = 0
		mu.Unlock()
		time.Sleep(2 * time.Second)
		if c.names(); len(c.asked) != 1 {
			t.Errorf("asked %q, want once", c.asked)
		}
		mu.Lock()
		wait = time.Second
		mu.Unlock()
		c.give(1)
		if got := c.names(); len(got) != 0 {
			t.Errorf("woke %q, which may not be yet", got)
		}
	})
}

// One scope's line waits for nobody in another's.
func TestScopesHaveLinesOfTheirOwn(t *testing.T) {
	lines(t, nil, func(l *Lines[string], c *counter) {
		l.Want("a", "one", time.Now())
		l.Want("a", "two", time.Now()) // it stands in one line only
		l.Want("b", "one", time.Now())
		c.give(2)
		if got := c.names(); len(got) != 2 || !slices.Contains(got, "a") || !slices.Contains(got, "b") {
			t.Errorf("woke %q", got)
		}
		if _, _, waiting := l.Place("a"); waiting != 0 {
			t.Error("a still waits")
		}
	})
}

// No more have tokens than can run; a token that died with whoever had it is not
// waited for.
func TestNoMoreHaveTokensThanMayRun(t *testing.T) {
	var mu sync.Mutex
	now := time.Duration(0)
	boot := func() time.Duration {
		mu.Lock()
		defer mu.Unlock()
		return now
	}
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		r := New(Config{}, nil, nil, nil, nil)
		r.boot = boot
		b := newBucket(r, "s", "k", limit{1, 1})
		woken := 0
		l := NewLines(ctx, Rules[int]{
			Take: func(context.Context, string, int) (Token, error) {
				return Token{b: b, until: boot() + time.Second}, nil
			},
			Wake: func(int) { woken++ },
			Most: 3,
		})
		for i := range 10 {
			l.Want(i, "s", time.Unix(int64(i), 0))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if woken != 3 {
			t.Errorf("%d have tokens, want 3", woken)
		}
		if _, ok := l.Claim(1); !ok {
			t.Error("the second has no token")
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if woken != 4 {
			t.Errorf("%d have had tokens after one has claimed its own, want 4", woken)
		}
		mu.Lock()
		now = time.Minute
		mu.Unlock()
		time.Sleep(time.Second)
		synctest.Wait()
		if woken != 7 {
			t.Errorf("%d have had tokens after three died, want 7", woken)
		}
		cancel()
		synctest.Wait()
	})
}

// With two tokens, both must live.
func TestTwoTokensLiveAsLongAsEither(t *testing.T) {
	now := time.Duration(0)
	r := New(Config{}, nil, nil, nil, nil)
	r.boot = func() time.Duration { return now }
	b := newBucket(r, "s", "k", limit{1, 1})
	long, short := Token{b: b, until: time.Second}, Token{b: b, until: time.Millisecond}
	for name, both := range map[string]Token{"long first": long.With(short), "short first": short.With(long)} {
		if now = 0; both.Valid() != nil {
			t.Errorf("%s: void at once", name)
		}
		if now = 10 * time.Millisecond; both.Valid() == nil {
			t.Errorf("%s: lives after one of them has died", name)
		}
	}
}
