package watcher

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/backoff"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
)

const (
	// keepEvery is how often the streams are looked after. Unit: time.
	keepEvery = 30 * time.Second
	// keepWait bounds one look. Unit: time.
	keepWait = 15 * time.Second
)

var keepPolicy = backoff.Policy{Base: 250 * time.Millisecond, Max: 5 * time.Second}

// positions are the durable positions of the roles, made here because only the
// watcher may make them. A role that is not deployed has some all the same: they
// cost nothing and show what waits for it.
var positions = []bus.Durable{
	{Role: "endpoints", By: bus.ByNamespace, Kinds: []event.Kind{
		"services", "pods", "endpointslices.discovery.k8s.io", "endpoints",
	}},
	{Role: "quota", By: bus.ByNamespace, Kinds: []event.Kind{
		"resourcequotas", "pods", "services", "persistentvolumeclaims",
		"resourceclaims.resource.k8s.io", "replicationcontrollers",
	}},
	{Role: "nodelifecycle", By: bus.ByKey, Kinds: []event.Kind{"nodes"}},
	{Role: "podevictor", By: bus.ByKey, Kinds: []event.Kind{"pods"}},
}

// assets is what the keeper needs of the bus; *bus.Bus.
type assets interface {
	Ensure(ctx context.Context) error
	EnsureDurables(ctx context.Context, roles []bus.Durable) error
	Changes() (<-chan struct{}, func())
}

// keeper creates, checks and heals the streams, for ever.
type keeper struct {
	bus  assets
	log  *slog.Logger
	kick chan struct{}

	mu    sync.Mutex
	err   error
	ready chan struct{} // closed once they were in order
}

func newKeeper(b assets, log *slog.Logger) *keeper {
	return &keeper{bus: b, log: log, kick: make(chan struct{}, 1), ready: make(chan struct{}), err: errors.New("not looked at yet")}
}

// run looks after the streams until ctx ends: every 30 s, at every change of the
// connection, and when somebody misses one.
func (k *keeper) run(ctx context.Context) {
	changes, cancel := k.bus.Changes()
	defer cancel()
	for failures := 0; ctx.Err() == nil; {
		wait := keepEvery
		err := k.look(ctx)
		if err == nil {
			failures = 0
		} else {
			failures++
			wait = keepPolicy.Delay(failures, 0)
		}
		k.note(err)
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-changes:
		case <-k.kick:
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (k *keeper) look(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, keepWait)
	defer cancel()
	if err := k.bus.Ensure(ctx); err != nil {
		return err
	}
	return k.bus.EnsureDurables(ctx, positions)
}

func (k *keeper) note(err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if err != nil && (k.err == nil || k.err.Error() != err.Error()) {
		k.log.Warn("streams are not in order, trying on", "err", err)
	}
	if k.err = err; err != nil {
		return
	}
	select {
	case <-k.ready:
	default:
		close(k.ready)
	}
}

// await waits until the streams have been in order once and nothing since
// forbids to use them.
func (k *keeper) await(ctx context.Context, stop <-chan struct{}) error {
	select {
	case <-k.ready:
	case <-stop:
		return context.Canceled
	case <-ctx.Done():
		return ctx.Err()
	}
	for k.refusal() != nil {
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-stop:
			timer.Stop()
			return context.Canceled
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
	return nil
}

// refusal is why nothing may be written at all: the streams were made for
// another number of partitions or by a newer release.
func (k *keeper) refusal() error {
	err := k.state()
	if errors.Is(err, bus.ErrPartitions) || errors.Is(err, bus.ErrWireVersion) || errors.Is(err, bus.ErrServerTooOld) {
		return err
	}
	return nil
}

// state is the last look's result.
func (k *keeper) state() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.err
}

// missing makes the keeper look at once if err may mean that a stream is gone.
func (k *keeper) missing(err error) {
	if !errors.Is(err, bus.ErrMissing) && !errors.Is(err, bus.ErrNoResponders) {
		return
	}
	select {
	case k.kick <- struct{}{}:
	default:
	}
}
