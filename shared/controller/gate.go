package controller

import (
	"fmt"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
)

// complete returns which complete state the inputs are in; false while one is
// not complete.
func (p *Partition) complete() (generation, bool) {
	if !p.cache.Synced() || !p.c.wide.Synced() {
		return generation{}, false
	}
	return generation{p.cache.Generation(), p.c.wide.Generation()}, true
}

// gate says why no key may be decided now. p.mu is held.
func (p *Partition) gate(d Danger) error {
	at, complete := p.complete()
	if !complete || at != p.opened {
		return ErrNotSynced
	}
	if err := p.c.fresh(p.cache, d); err != nil {
		return err
	}
	if err := p.c.fresh(p.c.wide, d); err != nil {
		return err
	}
	return p.abreast()
}

// abreast says no while the inputs may show different moments ⚠: since one was
// heard of a new watcher, every other must have agreed with a bookmark. The old
// watcher may have carried them all, and the new one begins with one kind after
// the other: a service's new selector would meet the pods of before, which it
// selects no longer, and not those that it was changed for.
func (p *Partition) abreast() error {
	turned := p.turned()
	if turned.IsZero() {
		return nil
	}
	for _, from := range [...]*cache.Cache{p.cache, p.c.wide} {
		for _, kind := range from.Kinds() {
			if !from.MarkedSince(kind, turned) {
				return fmt.Errorf("%w: nothing of %s since an input has another watcher", ErrNotSynced, kind)
			}
		}
	}
	return nil
}

// turned returns when an input was last heard of a new watcher.
func (p *Partition) turned() time.Time {
	own, wide := p.cache.Turned(), p.c.wide.Turned()
	if own.Before(wide) {
		return wide
	}
	return own
}

// before says no to a key that was taken in hand before an input was heard of a
// new watcher: what it has looked at may be half of before and half of after.
func (p *Partition) before(key event.Key) error {
	if taken := p.ledger.since(key); !taken.IsZero() && taken.Before(p.turned()) {
		return fmt.Errorf("%w: an input has another watcher since the key was taken in hand", ErrNotSynced)
	}
	return nil
}

// fresh compares the ages of what c holds with what a write may rest on.
func (c *Controller) fresh(from *cache.Cache, d Danger) error {
	for _, kind := range from.Kinds() {
		age, known := from.Age(kind)
		if d >= Destructive {
			age, known = from.AgeDestructive(kind)
		}
		if limit := c.limit(kind, d); !known || age > limit {
			return &StaleError{Kind: kind, Danger: d, Age: age, Limit: limit, Known: known}
		}
	}
	return nil
}

// limit returns how old kind may be for a write: as configured, or less where
// the role says so.
func (c *Controller) limit(kind event.Kind, d Danger) time.Duration {
	limit, own := c.cfg.HarmlessAge, c.def.Ages[kind].Harmless
	if d >= Destructive {
		limit, own = c.cfg.DestructiveAge, c.def.Ages[kind].Destructive
	}
	if own > 0 {
		return min(limit, own)
	}
	return limit
}

// admit decides whether key, popped from the queue, runs now. If not it is
// dropped for good, or parked until what it lacks has come.
func (p *Partition) admit(key event.Key) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.taking || p.ctx.Err() != nil {
		return false
	}
	if err := p.gate(Harmless); err != nil {
		p.park(key, Harmless, err)
		return false
	}
	if !p.echoed(key) {
		return false
	}
	p.running++
	delete(p.paused, key)
	return true
}

// park makes key wait until the inputs allow a write of danger d. p.mu is held.
func (p *Partition) park(key event.Key, d Danger, why error) {
	p.parked[key] = d
	stale, ok := why.(*StaleError) //nolint:errorlint // gate returns it as it is
	if !ok {
		return
	}
	p.c.metrics.stale.Inc()
	if !p.stale {
		p.stale = true
		p.log.Warn("input is too old, keys wait", "kind", stale.Kind, "danger", d.String(), "age", stale.Age, "known", stale.Known, "limit", stale.Limit)
	}
}

// unpark wakes the parked keys whose writes the inputs allow now.
func (p *Partition) unpark() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.parked) == 0 || p.gate(Harmless) != nil {
		return
	}
	destructive := p.gate(Destructive) == nil
	for key, d := range p.parked {
		if d == Harmless || destructive {
			delete(p.parked, key)
			p.c.work.add(p.item(key), live)
		}
	}
	if p.stale && len(p.parked) == 0 {
		p.stale = false
		p.log.Info("inputs are fresh again")
	}
}

// leave ends the run of a key that was admitted.
func (p *Partition) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.running--
	if p.running == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
}

// stop takes no more keys; what it returns is closed when none is in hand.
func (p *Partition) stop() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taking = false
	p.drain()
	idle := make(chan struct{})
	if p.running == 0 {
		close(idle)
		return idle
	}
	p.idle = idle
	return idle
}
