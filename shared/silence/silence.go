// Package silence tells a controller how long the nodes of its partitions have
// been silent, and whether that may be believed. It follows the digests that the
// watcher publishes; the judgement is beat.Silence, to which this room gives ears
// and a clock.
//
// It acts on nothing and reads nothing live: before a node is written Unknown the
// controller reads the node and its Lease from the API server and asks Live
// whether the digest agrees.
package silence

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/clock"
	"github.com/millrace-io/millrace/shared/event"
)

// Source is the stream of digests; *bus.Bus.
type Source interface {
	// FollowDigests tells sink the last digest of each slice and then every
	// further one, until ctx ends.
	FollowDigests(ctx context.Context, name string, slices []int, sink event.DigestSink) error
}

// Follower is one process's part: it makes Partitions and counts what they hear.
type Follower struct {
	source  Source
	name    string
	log     *slog.Logger
	metrics *metrics
	// now is a clock that counts suspension; a field because testing/synctest
	// cannot replace a system call.
	now func() time.Duration

	mu         sync.Mutex
	partitions map[*Partition]bool
}

// New returns a follower that follows nothing yet. name goes into the names of
// its feeds: a role and a member.
func New(source Source, name string, log *slog.Logger, reg prometheus.Registerer) *Follower {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	f := &Follower{source: source, name: name, log: log, now: clock.Boot, partitions: make(map[*Partition]bool)}
	f.metrics = newMetrics(reg, f.suspended)
	return f
}

// suspended counts the partitions that are suspended for a reason; all that are
// followed, for none.
func (f *Follower) suspended(why beat.Reason) float64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := 0
	for p := range f.partitions {
		if why == "" || p.Suspended() == why {
			n++
		}
	}
	return float64(n)
}

// Partition is what is known of the nodes of one partition. Its methods may be
// called from several goroutines; before Run has heard anything every node is
// suspended.
type Partition struct {
	follower *Follower
	slice    int
	heard    chan struct{}

	mu    sync.Mutex
	judge *beat.Silence
}

// Partition returns partition slice, which nobody follows until Run.
func (f *Follower) Partition(slice int) *Partition {
	return &Partition{follower: f, slice: slice, heard: make(chan struct{}, 1), judge: beat.NewSilence()}
}

// Run follows the digests until ctx ends, and returns its error. A Partition runs
// once.
func (p *Partition) Run(ctx context.Context) error {
	f := p.follower
	f.mu.Lock()
	f.partitions[p] = true
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.partitions, p)
	}()
	return f.source.FollowDigests(ctx, f.name+"-beats-p"+strconv.Itoa(p.slice), []int{p.slice}, sink{p})
}

// Of returns how long a node has been silent, and why that must not be acted on.
// uid is that of the node as the caller knows it; empty: any.
func (p *Partition) Of(node, uid string) beat.Verdict {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.judge.Of(node, uid, p.follower.now())
}

// Suspended returns why no node may be judged now; empty: they may.
func (p *Partition) Suspended() beat.Reason {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.judge.Suspended(p.follower.now())
}

// Live compares what a node was judged by with what the API server shows of it
// and its Lease, and reports whether they agree; see beat.Silence.
func (p *Partition) Live(judged, live beat.Beat) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	agrees := p.judge.Live(judged, live)
	if !agrees {
		p.follower.metrics.contradicted.Inc()
	}
	return agrees
}

// Next returns how long it takes until a node will have been silent for its
// grace, if no digest comes before; false if there is none ahead. Heard is to be
// waited for meanwhile: a digest may bring a deadline nearer by a second.
func (p *Partition) Next(grace func(beat.Beat) time.Duration) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.follower.now()
	at, ok := p.judge.Next(grace, now)
	return at - now, ok
}

// Deadline is Next for one node; it may be negative.
func (p *Partition) Deadline(node string, grace time.Duration) (wait time.Duration, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	at, ok := p.judge.Deadline(node, grace)
	return at - p.follower.now(), ok
}

// Nodes returns what the last digest told of every node. The caller must not
// change it.
func (p *Partition) Nodes() []beat.Beat {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.judge.All()
}

// Heard holds one token after each digest that is newer than the last.
func (p *Partition) Heard() <-chan struct{} { return p.heard }

// sink implements event.DigestSink.
type sink struct{ *Partition }

func (sink) Begin(uint64) {}

// Gap: any later digest says as much as those that are missing, and how old the
// last one is tells the clock.
func (sink) Gap(string) {}

func (s sink) Digest(slice int, seq uint64, body []byte) {
	if slice != s.slice {
		return
	}
	now := s.follower.now()
	d, err := beat.Decode(body)
	if err != nil {
		s.follower.metrics.broken.Inc()
		s.follower.log.Warn("heartbeat digest cannot be read", "partition", slice, "seq", seq, "err", err)
		return
	}
	s.mu.Lock()
	fresh := s.judge.Digest(d, now)
	s.mu.Unlock()
	if !fresh {
		s.follower.metrics.ignored.Inc()
		return
	}
	s.follower.metrics.heard.Inc()
	select {
	case s.heard <- struct{}{}:
	default:
	}
}

var _ event.DigestSink = sink{}
