package watcher

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

const (
	// settleMore is how long a demand must have been the same before kinds are
	// added: several are demanded at once. Unit: time. Source: ours.
	settleMore = time.Second
	// settleLess is the same before one is taken away: a wipe of NATS forgets
	// demands until they are said again. Unit: time. Source: ours.
	settleLess = time.Minute
)

// demands is what readers demand; *facts.Demand.
type demands interface {
	Kinds() (kinds []event.Kind, complete bool)
	Changed() <-chan struct{}
}

// demanded shares, among all watchers, the kinds that are demanded besides those
// of the setting. They are shared apart from those: a lease's units are the same
// list for all of its members, so a change of the demand is a new membership, and
// only demanded kinds pause for it. Until all watchers have heard of it they may
// disagree about who should hold what; who does is decided by compare-and-set all
// the same.
type demanded struct {
	h       *holder
	demands demands
	set     []event.Kind // what the setting has
	// carry takes part in sharing units until ctx ends and they have been handed
	// over.
	carry func(ctx context.Context, units []string)
	// ready names what /readyz asks.
	ready func(name string, check func() error) (remove func())
	log   *slog.Logger
}

// run shares what is demanded until ctx ends.
func (d *demanded) run(ctx context.Context) {
	var have []string
	stop := func() {}
	defer func() { stop() }()
	for ctx.Err() == nil {
		changed := d.demands.Changed()
		kinds, complete := d.demands.Kinds()
		want := d.units(kinds)
		if !complete || slices.Equal(want, have) {
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		}
		if !settled(ctx, changed, have, want) {
			continue
		}
		stop()
		d.log.Info("demand has changed", "kinds", want)
		have, stop = want, d.share(ctx, want)
	}
}

// units are the kinds that can be carried on demand, in the order of their names.
func (d *demanded) units(kinds []event.Kind) []string {
	var units []string
	for _, kind := range kinds {
		switch {
		case slices.Contains(d.set, kind):
		case !kindShape.MatchString(string(kind)), kind == heartbeats, withBody[kind]:
			// Not as metadata: its readers need more, or it does not travel. A role
			// that reads what nobody carries says so itself.
			d.log.Warn("kind is demanded and cannot be carried on demand", "kind", string(kind))
		default:
			units = append(units, string(kind))
		}
	}
	slices.Sort(units)
	return slices.Compact(units)
}

// settled waits for a while; false if the demand has changed meanwhile.
func settled(ctx context.Context, changed <-chan struct{}, have, want []string) bool {
	wait := settleMore
	if slices.ContainsFunc(have, func(unit string) bool { return !slices.Contains(want, unit) }) {
		wait = settleLess
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-changed:
	case <-ctx.Done():
	}
	return false
}

// share takes part in carrying units until stop is called, which returns once
// they have been handed over.
func (d *demanded) share(ctx context.Context, units []string) (stop func()) {
	if len(units) == 0 {
		return func() {}
	}
	var undo []func()
	for _, unit := range units {
		k := d.h.carry(event.Kind(unit))
		undo = append(undo, d.ready(unit, func() error { return k.status.ready(time.Now()) }))
	}
	ctx, cancel := context.WithCancel(ctx)
	var sharing sync.WaitGroup
	sharing.Go(func() { d.carry(ctx, units) })
	return func() {
		cancel()
		sharing.Wait()
		for _, f := range undo {
			f()
		}
	}
}
