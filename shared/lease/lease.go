// Package lease says who holds which unit of a role's work: a partition of a
// controller, a kind of the watcher. Members of a role find each other in a
// bucket, share the units among them, give up what another should hold and take
// over from the dead.
//
// The judgement is protocol.Ownership; this room gives it eyes, hands and a
// clock. It promises no exclusion: no broker fences a write to the API server,
// so whoever acts asks Grant.Valid first, and two holders at once must be
// harmless. It knows no NATS; what it needs of the edge is Bucket and Wire.
package lease

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/backoff"
	"github.com/millrace-io/millrace/shared/clock"
	"github.com/millrace-io/millrace/shared/event"
)

// Bucket is the key-value bucket own_<cluster>; *bus.KV.
type Bucket interface {
	// Put writes value if the key's revision is expect (0: there is no value,
	// or a delete marker) and returns the new revision; event.ErrRefused if it
	// is not. Any other error leaves open whether it was written. ttl 0: for
	// good.
	Put(ctx context.Context, key string, value []byte, expect uint64, ttl time.Duration) (uint64, error)
	// Delete removes the value if the key's revision is expect.
	Delete(ctx context.Context, key string, expect uint64) error
	// Follow tells sink what the keys under filter hold, until ctx ends.
	Follow(ctx context.Context, filter string, sink event.EntrySink) error
}

// Wire is the connection itself; *bus.Bus.
type Wire interface {
	// Now is connected time: it stands still while nothing could be heard.
	Now() time.Duration
	// Connected reports whether the connection is up, and since when that is so.
	Connected() (since time.Time, ok bool)
	// Answer answers requests on subject until stop is called; every answerer
	// gets every request.
	Answer(subject string, fn func(data []byte) []byte) (stop func(), err error)
	// Ask sends a request and returns the first answer; event.ErrNoResponders
	// if it is certain that nobody listens.
	Ask(ctx context.Context, subject string, data []byte) ([]byte, error)
}

// Config is what a member says about itself and its role.
type Config struct {
	// Role names the group whose members share the units, and is their salt.
	Role    string
	Cluster string
	// Units is the same list in the same order for every member.
	Units []string
	// Host and Version are for people.
	Host, Version string
	// Ready is closed once the cluster-wide caches have synced: only then does
	// the member count. nil: at once.
	Ready <-chan struct{}
	// JoinAtLatest is how long Ready is waited for. Unit: Go duration.
	// Default: 10 s, architecture section 5.
	JoinAtLatest time.Duration
	// Status answers a request for the member's status; nil: with nothing.
	Status func() []byte
}

// defaultJoinAtLatest is Config.JoinAtLatest where nothing is said.
const defaultJoinAtLatest = 10 * time.Second

// Hold works on a unit until g is draining or ctx ends.
type Hold = func(ctx context.Context, g *Grant) error

// Lease is one process's part in sharing the units of a role.
type Lease struct {
	cfg     Config
	bucket  Bucket
	wire    Wire
	log     *slog.Logger
	metrics *metrics
	started time.Time
	index   map[string]int
	// boot is a clock that counts suspension; a field because testing/synctest
	// cannot replace a system call.
	boot func() time.Duration
	idle atomic.Bool

	mu     sync.Mutex
	tenure *tenure
	// last is closed when the newest hold of a unit has returned: two holds of
	// one unit never run side by side in one process, not even over a rejoin.
	last map[string]<-chan struct{}
}

// New returns a member that has not joined; see Run.
func New(cfg Config, b Bucket, w Wire, log *slog.Logger, reg prometheus.Registerer) *Lease {
	if cfg.JoinAtLatest <= 0 {
		cfg.JoinAtLatest = defaultJoinAtLatest
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	l := &Lease{
		cfg: cfg, bucket: b, wire: w, log: log.With("role", cfg.Role),
		metrics: newMetrics(reg), started: time.Now(), boot: clock.Boot,
		index: make(map[string]int, len(cfg.Units)), last: make(map[string]<-chan struct{}),
	}
	for i, u := range cfg.Units {
		l.index[u] = i
	}
	return l
}

// rejoinPolicy spaces attempts to join; stable is how long a membership lasts
// before failures are forgotten.
var rejoinPolicy = backoff.Policy{Base: 50 * time.Millisecond, Max: 5 * time.Second}

const stable = 30 * time.Second

// Run joins, claims and calls hold for each unit acquired, each in a goroutine
// of its own, until ctx ends; then every hold is asked to drain, its lease is
// given up, and the member leaves. A lost membership ends all holds and a new
// one is begun under a new id. Run returns nil once every hold has returned; it
// never returns because of the bucket.
func (l *Lease) Run(ctx context.Context, hold func(ctx context.Context, g *Grant) error) error {
	defer l.waitForHolds()
	stop := l.answer(ctx, StatusSubject(l.cfg.Cluster), func([]byte) []byte { return l.status() })
	defer stop()
	for failures, again := 0, false; ctx.Err() == nil; again = true {
		begun := time.Now()
		t := newTenure(ctx, l, hold, again)
		l.enter(t)
		err := t.run(ctx)
		if ctx.Err() != nil {
			break
		}
		if failures++; time.Since(begun) > stable {
			failures = 1
		}
		l.metrics.rejoins.Inc()
		l.log.Info("joining again", "member", t.id, "reason", err)
		pause(ctx, rejoinPolicy.Delay(failures, t.seed))
	}
	return nil
}

// Idle takes no part, but answers for its status, until ctx ends. Whoever stands
// aside on purpose is ready.
func (l *Lease) Idle(ctx context.Context) {
	l.idle.Store(true)
	defer l.idle.Store(false)
	stop := l.answer(ctx, StatusSubject(l.cfg.Cluster), func([]byte) []byte { return l.status() })
	defer stop()
	<-ctx.Done()
}

func (l *Lease) enter(t *tenure) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tenure = t
}

func (l *Lease) current() *tenure {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.tenure
}

// queue returns what a new hold of unit has to wait for, and notes done as what
// the next one will.
func (l *Lease) queue(unit string, done <-chan struct{}) (before <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	before = l.last[unit]
	l.last[unit] = done
	return before
}

func (l *Lease) waitForHolds() {
	l.mu.Lock()
	last := make([]<-chan struct{}, 0, len(l.last))
	for _, done := range l.last {
		last = append(last, done)
	}
	l.mu.Unlock()
	for _, done := range last {
		<-done
	}
}

// answer tries until it succeeds or ctx ends: the connection may not be up yet.
func (l *Lease) answer(ctx context.Context, subject string, fn func([]byte) []byte) (stop func()) {
	for failures := 1; ctx.Err() == nil; failures++ {
		stop, err := l.wire.Answer(subject, fn)
		if err == nil {
			return stop
		}
		l.log.Debug("answering", "subject", subject, "err", err)
		pause(ctx, rejoinPolicy.Delay(failures, 0))
	}
	return func() {}
}

func (l *Lease) status() []byte {
	if l.cfg.Status == nil {
		return nil
	}
	return l.cfg.Status()
}

// Member returns the id under which this process counts; empty before Run. It
// changes when the member has to join again.
func (l *Lease) Member() string {
	if t := l.current(); t != nil {
		return t.id
	}
	return ""
}

// Snapshot is what one member knows of its role.
type Snapshot struct {
	Member string
	// Joined and Complete say whether the member counts, and whether its view
	// of the bucket has no gap.
	Joined, Complete bool
	// Members are the living, sorted by id.
	Members []Peer
	// Holders has one entry per unit, in the order of Config.Units.
	Holders []Holder
	// Mine are the units this process has a hold for, in order.
	Mine []string
}

// Peer is a member as it describes itself.
type Peer struct {
	ID, Host, Version string
	Started           time.Time
}

// Holder is who holds a unit; Member is empty when nobody does.
type Holder struct {
	Unit, Member string
	Epoch        uint64
}

// Snapshot returns what is known now.
func (l *Lease) Snapshot() Snapshot {
	t := l.current()
	if t == nil {
		return Snapshot{}
	}
	return t.snapshot()
}

var (
	errNotRunning = errors.New("not joined: not started")
	errNotJoined  = errors.New("not joined: waiting for caches or for the bucket")
	errIncomplete = errors.New("view of the bucket is incomplete")
)

// Ready returns nil while the member is idle, and once it counts, sees the whole bucket and its lease
// has not run out.
func (l *Lease) Ready() error {
	if l.idle.Load() {
		return nil
	}
	t := l.current()
	if t == nil {
		return fmt.Errorf("joining %s: %w", l.cfg.Role, errNotRunning)
	}
	if err := t.ready(); err != nil {
		return fmt.Errorf("joining %s as %s: %w", l.cfg.Role, t.id, err)
	}
	return nil
}

// StatusSubject is where every member of every role answers with its status.
func StatusSubject(cluster string) string { return "millrace." + event.Token(cluster) + ".status" }

// MemberSubject is where one member answers "ping" and "status".
func MemberSubject(cluster, role, member string) string {
	return "millrace." + event.Token(cluster) + "." + event.Token(role) + "." + event.Token(member)
}

// pause waits for d or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
