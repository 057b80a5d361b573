package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/kube"
)

const (
	// pauseAge is how old a look at what is paused may be when a write leaves.
	// Unit: time. Source: architecture section 10; a pause must count within 1 s.
	pauseAge = 500 * time.Millisecond
	// pauseLook bounds one look. Unit: time. Source: ours; a healthy API server
	// answers in milliseconds.
	pauseLook = time.Second
	// pauseIdle is how often a replica looks that writes nothing, for those who
	// ask it. Unit: time. Source: ours.
	pauseIdle = 5 * time.Second
)

// pause knows what an operator has paused: by a live look at the ConfigMap, of
// which one at a time is under way, and which counts from before it was sent.
type pause struct {
	role string
	read func(ctx context.Context) ([]string, error)
	log  *slog.Logger
	told *prometheus.GaugeVec

	mu    sync.Mutex
	at    time.Time     // from when the last look counts
	words []string      // as last read
	ever  bool          // read at all
	err   error         // of the last look
	since time.Time     // when looks began to fail; zero while they do not
	busy  chan struct{} // closed when the look under way has ended; nil: none is
}

// The values of the metric's label.
const (
	pausedEvictions = "evictions"
	pausedRole      = "role"
	pausedUnknown   = "unknown"
)

func newPause(role string, read func(ctx context.Context) ([]string, error), log *slog.Logger, reg prometheus.Registerer) *pause {
	p := &pause{role: role, read: read, log: log}
	p.told = promauto.With(reg).NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "pause", Name: "active",
		Help: "1 if evictions, or this role, are paused, or if that is unknown, which pauses what is destructive.",
	}, []string{"what"})
	for _, what := range []string{pausedEvictions, pausedRole, pausedUnknown} {
		p.told.WithLabelValues(what)
	}
	return p
}

// Paused implements controller.Pause. What cannot be read pauses what is
// destructive; for the rest the last look counts, and before the first nothing
// may be written.
func (p *pause) Paused(ctx context.Context, d controller.Danger) error {
	if err := p.look(ctx); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.err != nil && (d >= controller.Destructive || !p.ever):
		return fmt.Errorf("what is paused is not known: %w", p.err)
	case slices.Contains(p.words, p.role):
		return fmt.Errorf("role %s is paused", p.role)
	case d == controller.Evicting && slices.Contains(p.words, kube.PauseEvictions):
		return errors.New("evictions are paused")
	}
	return nil
}

// look returns once the last look is young enough. One that is half as old as it
// may be is renewed without waiting, so that who writes all the time never waits.
func (p *pause) look(ctx context.Context) error {
	for {
		busy, young := p.renew(ctx)
		if young {
			return nil
		}
		select {
		case <-busy:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Expect implements controller.Pause.
func (p *pause) Expect(ctx context.Context) { _, _ = p.renew(ctx) }

// renew begins a look unless the last one is young or one is under way, and
// returns whether the last one still counts, and what is closed when the one
// under way has ended.
func (p *pause) renew(ctx context.Context) (busy <-chan struct{}, young bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	age := time.Since(p.at)
	if (p.at.IsZero() || age > pauseAge/2) && p.busy == nil {
		p.busy = make(chan struct{})
		go p.once(context.WithoutCancel(ctx), p.busy)
	}
	return p.busy, !p.at.IsZero() && age <= pauseAge
}

// once looks once.
func (p *pause) once(ctx context.Context, busy chan struct{}) {
	ctx, cancel := context.WithTimeout(ctx, pauseLook)
	defer cancel()
	sent := time.Now()
	words, err := p.read(ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	defer close(busy)
	p.busy = nil
	if err != nil {
		p.failed(err)
		return
	}
	if p.err != nil || !p.ever || !slices.Equal(words, p.words) {
		p.log.Info("paused", "what", words)
	}
	p.at, p.words, p.err, p.ever, p.since = sent, words, nil, true, time.Time{}
	p.tell()
}

// failed notes a look that failed: it counts from now, so that a dead API server
// is asked twice a second and not in a row. p.mu is held.
func (p *pause) failed(err error) {
	if p.err == nil {
		p.since = time.Now()
		p.log.Warn("what is paused cannot be read: nothing destructive is done", "err", err)
	}
	p.at, p.err = time.Now(), err
	p.tell()
}

// tell sets the metric. p.mu is held.
func (p *pause) tell() {
	set := func(what string, on bool) {
		v := 0.0
		if on {
			v = 1
		}
		p.told.WithLabelValues(what).Set(v)
	}
	set(pausedEvictions, slices.Contains(p.words, kube.PauseEvictions))
	set(pausedRole, slices.Contains(p.words, p.role))
	set(pausedUnknown, p.err != nil)
}

// run looks now and then until ctx ends.
func (p *pause) run(ctx context.Context) {
	ticker := time.NewTicker(pauseIdle)
	defer ticker.Stop()
	for {
		_ = p.look(ctx) // fails only with ctx
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// status is what the last look found, for people.
func (p *pause) status() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		return append(slices.Clone(p.words), "unknown")
	}
	return slices.Clone(p.words)
}

// unreadable is how long looks must have failed before the member is not ready.
// Unit: time. Source: ours.
const unreadable = 5 * time.Second

func (p *pause) ready() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil && time.Since(p.since) > unreadable {
		return p.err
	}
	return nil
}
