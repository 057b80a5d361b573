// Package rates limits what all members of a role do together. A token bucket
// stands in a key-value bucket and is taken from by compare-and-set; whoever
// acts, takes a token first and asks it Valid right before the act.
//
// The bound (I3): in every window t the fleet acts at most rate·(t + 1 s) + burst
// times, whatever scales, crashes, freezes, restarts or is wiped. It rests on
// four rules. Each has a test that fails without it.
//
//   - Nobody's clock is believed but one's own: what has flowed into the bucket
//     is counted from when this member first saw the bucket's current revision,
//     which is never before it was written.
//   - What is not known is spent: an absent bucket is empty, so is one that is
//     read after a reconnect, and a write whose outcome is unknown gives nothing.
//   - A token dies within a second of when it was asked for, by a clock that
//     counts suspension.
//   - The smallest setting among those who took lately holds for all.
//
// It promises no fairness: whoever took last lets others go first, that is all.
// It knows no NATS; what it needs of the edge is Store and Wire.
package rates

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/clock"
	"github.com/millrace-io/millrace/shared/event"
)

// Store is the key-value bucket rates_<cluster>; *bus.KV.
type Store interface {
	// Get returns a key's value and revision as the leader knows them;
	// event.ErrNone if there is no value.
	Get(ctx context.Context, key string) (value []byte, rev uint64, err error)
	// Put writes value if the key's revision is expect (0: there is no value, or
	// a delete marker) and returns the new revision; event.ErrRefused if it is
	// not. Any other error leaves open whether it was written. Revisions grow and
	// never repeat, not even after a wipe.
	Put(ctx context.Context, key string, value []byte, expect uint64, ttl time.Duration) (rev uint64, err error)
	// Follow tells sink what the keys under filter hold, until ctx ends.
	Follow(ctx context.Context, filter string, sink event.EntrySink) error
}

// Wire is the connection itself; *bus.Bus.
type Wire interface {
	// Connected reports whether the connection is up, and since when that is so.
	Connected() (since time.Time, ok bool)
}

// Config says whose buckets these are.
type Config struct {
	// Role names the group whose members share the buckets.
	Role string
	// Taker is what this member calls itself, for people.
	Taker string
}

// Rates are the buckets of a role, as one member uses them.
type Rates struct {
	cfg     Config
	store   Store
	wire    Wire
	log     *slog.Logger
	metrics *metrics
	// boot is a clock that counts suspension; a field because testing/synctest
	// cannot replace a system call.
	boot func() time.Duration
	seed uint64 // of this member's luck

	mu      sync.Mutex
	some    chan struct{}      // closed when there is a bucket
	buckets map[string]*Bucket // by key
	order   []*Bucket
	running context.Context //nolint:containedctx // buckets that come later end with it
	tasks   sync.WaitGroup
}

// New returns the buckets of a role: none yet. log and reg may be nil.
func New(cfg Config, store Store, wire Wire, log *slog.Logger, reg prometheus.Registerer) *Rates {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Rates{
		cfg: cfg, store: store, wire: wire, log: log.With("role", cfg.Role), metrics: newMetrics(reg),
		boot: clock.Boot, seed: rand.Uint64(), some: make(chan struct{}), buckets: make(map[string]*Bucket),
	}
}

// Bucket returns the bucket of a scope under a limit: that of this member's
// settings; see Bucket.Set. rate is in tokens/s, positive; burst in tokens, at
// least 1.
func (r *Rates) Bucket(scope string, rate float64, burst int) *Bucket {
	key := event.Token(r.cfg.Role) + "." + event.Token(scope)
	r.mu.Lock()
	defer r.mu.Unlock()
	if b, ok := r.buckets[key]; ok {
		b.Set(rate, burst)
		return b
	}
	b := newBucket(r, scope, key, limit{rate, float64(burst)})
	r.buckets[key] = b
	if len(r.order) == 0 {
		close(r.some)
	}
	r.order = append(r.order, b)
	if r.running != nil && r.running.Err() == nil {
		r.tasks.Go(func() { b.serve(r.running) })
	}
	return b
}

// Run serves those who wait for tokens until ctx ends.
func (r *Rates) Run(ctx context.Context) {
	r.mu.Lock()
	r.running = ctx
	for _, b := range r.order {
		r.tasks.Go(func() { b.serve(ctx) })
	}
	r.mu.Unlock()
	select {
	case <-r.some:
		// What is followed is only news: who knows of a write at once need not find
		// out by being refused, and counts from then on.
		_ = r.store.Follow(ctx, event.Token(r.cfg.Role)+".>", news{r}) // ends with ctx only
	case <-ctx.Done():
	}
	<-ctx.Done()
	r.mu.Lock() // nothing is started after this
	defer r.mu.Unlock()
	r.tasks.Wait()
}

// news hands what the feed tells to the bucket it is about. A feed may be late
// and may start over: it only ever tells of newer revisions.
type news struct{ r *Rates }

func (n news) Entry(key string, value []byte, rev uint64, deleted bool) {
	n.r.mu.Lock()
	b := n.r.buckets[key]
	n.r.mu.Unlock()
	if b != nil && !deleted {
		b.heard(rev, value)
	}
}

func (news) Begin(uint64) {}
func (news) Caught()      {}
func (news) Gap(string)   {}
