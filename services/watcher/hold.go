package watcher

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/backoff"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/lease"
	"github.com/millrace-io/millrace/shared/protocol"
)

const (
	// historyPause is how long a kind whose history went back waits before it
	// looks again: only an operator can mend that. Unit: time.
	historyPause = 10 * time.Second
	// lostTries is how often in a row a kind is begun anew by an epoch that is not
	// the highest. Unit: runs. Source: ours; one may be the reading of a lease that
	// has just changed hands.
	lostTries = 3
	// stable is how long a run lasts before earlier failures are forgotten.
	// Unit: time.
	stable = 30 * time.Second
)

// restartPolicy paces the runs of a kind that end by themselves.
var restartPolicy = backoff.Policy{Base: 200 * time.Millisecond, Max: 5 * time.Second}

// kindOf is one kind of this watcher, held or not.
type kindOf struct {
	kind         event.Kind
	metadataOnly bool
	tombstones   time.Duration // how long one lives
	metrics      *kindMetrics
	status       *kindStatus
	beats        *beats // of the kind nodes only
}

// holder publishes the kinds that the lease grants.
type holder struct {
	bus    stream
	api    server
	log    *slog.Logger
	keeper *keeper
	// metrics are those of all kinds, tombstones is how long a tombstone lives.
	metrics    *metrics
	tombstones time.Duration

	mu    sync.Mutex
	kinds map[event.Kind]kindOf // all there may be grants for; it only grows
}

// carry prepares a kind that this watcher may come to hold.
func (h *holder) carry(kind event.Kind) kindOf {
	h.mu.Lock()
	defer h.mu.Unlock()
	k, ok := h.kinds[kind]
	if !ok {
		k = newKind(kind, h.metrics, h.tombstones)
		h.kinds[kind] = k
	}
	return k
}

// kind returns one of them.
func (h *holder) kind(kind event.Kind) kindOf {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.kinds[kind]
}

// all returns all of them.
func (h *holder) all() map[event.Kind]kindOf {
	h.mu.Lock()
	defer h.mu.Unlock()
	return maps.Clone(h.kinds)
}

// hold publishes one kind until its grant is drained or lost.
func (h *holder) hold(ctx context.Context, g *lease.Grant) error {
	return h.publish(ctx, h.kind(event.Kind(g.Unit())), g)
}

// publish runs the kind's owner, again and again if it ends by itself.
func (h *holder) publish(ctx context.Context, k kindOf, g grant) error {
	k.status.take(g.Epoch())
	defer k.status.giveUp()
	defer k.metrics.idle()
	if k.beats != nil {
		k.beats.status.take()
		defer k.beats.giveUp()
	}
	var counter, digests uint64 // of bookmarks and digests: they must grow over all runs of an epoch
	for failures := 0; !over(ctx, g); {
		k.status.say("the streams are not in order")
		if h.keeper.await(ctx, g.Draining()) != nil {
			break
		}
		begun := time.Now()
		o := newOwner(k, checked{g, h.keeper}, h.bus, h.api, h.log, h.keeper.missing)
		o.marks.base = counter
		if o.beats != nil {
			o.beats.base = digests
		}
		err := o.run(ctx)
		counter = max(counter, o.marks.highest)
		if o.beats != nil {
			digests = o.beats.counter()
		}
		if over(ctx, g) {
			break
		}
		if failures++; time.Since(begun) > stable {
			failures = 1
		}
		if errors.Is(err, errLost) && failures >= lostTries {
			// Another lease of the kind has a higher epoch than ours will ever be:
			// given up and claimed anew, ours is the highest again.
			h.log.Warn("giving kind up, to claim it anew", "kind", string(k.kind), "epoch", g.Epoch(), "err", err)
			break
		}
		h.setback(ctx, k, g, failures, err)
	}
	return nil
}

// setback waits before the next run, and says why.
func (h *holder) setback(ctx context.Context, k kindOf, g grant, failures int, err error) {
	delay := restartPolicy.Delay(failures, g.Epoch())
	if errors.Is(err, protocol.ErrHistory) {
		delay = historyPause
		err = fmt.Errorf("%w; `millrace bus reset` rebuilds the bus from this API server", err)
	}
	h.log.Warn("kind has stopped, starting it anew", "kind", string(k.kind), "epoch", g.Epoch(), "err", err, "wait", delay)
	k.metrics.idle()
	k.status.note(func() { k.status.waits, k.status.problem, k.status.marked = err.Error(), "", time.Time{} })
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-g.Draining():
	case <-timer.C:
	}
}

// over reports whether the grant is lost or to be given up.
func over(ctx context.Context, g grant) bool {
	select {
	case <-ctx.Done():
		return true
	case <-g.Draining():
		return true
	default:
		return false
	}
}

// checked is a grant that is worth nothing while the streams are not ours to
// write to.
type checked struct {
	grant
	keeper *keeper
}

func (c checked) Valid() error {
	if err := c.keeper.refusal(); err != nil {
		return err
	}
	return c.grant.Valid()
}
