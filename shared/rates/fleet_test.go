package rates

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

const scope = "write"

// fleet is some members that share one bucket, and what they did.
type fleet struct {
	t      testing.TB
	spring *spring
	limit  limit
	begun  time.Time

	mu      sync.Mutex
	acts    []time.Duration // since begun
	members int
	perHost map[string]int
}

func newFleet(t testing.TB, seed uint64, l limit) *fleet {
	return &fleet{
		t: t, spring: newSpring(rand.New(rand.NewPCG(seed, seed))), limit: l, begun: time.Now(), perHost: map[string]int{},
	}
}

// mate is one member of the fleet.
type mate struct {
	*Rates
	name   string
	pipe   *pipe
	bucket *Bucket
	stop   func()
}

// join starts a member whose clock began at any time and runs fast by ppm.
func (f *fleet) join(ppm int) *mate {
	f.mu.Lock()
	f.members++
	name := fmt.Sprintf("m%d", f.members)
	f.mu.Unlock()
	m := &mate{name: name, pipe: f.spring.pipe()}
	m.Rates = New(Config{Role: "evictor", Taker: name}, m.pipe, m.pipe, nil, nil)
	m.seed = uint64(f.spring.roll(1 << 30))
	offset := time.Duration(f.spring.roll(1_000_000)) * time.Second
	m.boot = func() time.Duration {
		passed := time.Since(f.begun)
		return offset + passed + passed/1_000_000*time.Duration(ppm)
	}
	m.bucket = m.Bucket(scope, f.limit.rate, int(f.limit.burst))
	ctx, cancel := context.WithCancel(f.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		m.Run(ctx)
	}()
	m.stop = sync.OnceFunc(func() { cancel(); <-done })
	return m
}

// act takes one token and, after dawdling, uses it if it is still worth
// something.
func (f *fleet) act(ctx context.Context, m *mate, dawdle time.Duration) bool {
	token, err := m.bucket.Take(ctx)
	if err != nil {
		return false
	}
	time.Sleep(dawdle)
	at := time.Since(f.begun)
	if token.Valid() != nil {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.acts = append(f.acts, at)
	f.perHost[m.name]++
	return true
}

// worst returns the largest number of acts that a window had above what it may
// have: at most rate·(t + 1 s) + burst in every window t.
func worst(acts []time.Duration, l limit) (excess float64) {
	excess = -l.rate - l.burst
	least := 0.0
	for i, at := range acts {
		flowed := l.rate * at.Seconds()
		if i == 0 || float64(i)-flowed < least {
			least = float64(i) - flowed
		}
		excess = max(excess, float64(i+1)-flowed-least-l.rate-l.burst)
	}
	return excess
}

// bounded fails if a window had more acts than it may.
func (f *fleet) bounded() {
	f.t.Helper()
	if by := worst(f.acts, f.limit); by > 1e-6 {
		f.t.Errorf("limit %+v: a window has %.2f acts more than it may (of %d in all)", f.limit, by, len(f.acts))
	}
}

// reached fails if fewer than 95 % of what may be done in t was done.
func (f *fleet) reached(t time.Duration) {
	f.t.Helper()
	want := 0.95 * f.limit.rate * t.Seconds()
	if got := float64(len(f.acts)); got < want {
		f.t.Errorf("limit %+v: %g acts in %s, want at least %.1f", f.limit, got, t, want)
	}
}
