package controller

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// Pause knows what an operator has paused; shared/role looks at the API server.
type Pause interface {
	// Paused returns nil if a write of that danger may leave now. It may wait for
	// a look at the API server, and knows one for a moment.
	Paused(ctx context.Context, d Danger) error
	// Expect lets that look begin, without waiting for it: a write is near.
	Expect(ctx context.Context)
}

// resumeEvery is how often it is looked whether a pause has ended, while keys
// wait for that. Unit: time. Source: as old as a look may be.
const resumeEvery = 500 * time.Millisecond

// pausedFor asks whether a write is paused.
func (c *Controller) pausedFor(ctx context.Context, d Danger) error {
	err := c.def.Pause.Paused(ctx, d)
	if err == nil || ctx.Err() != nil {
		return err
	}
	return &PausedError{Danger: d, Why: err}
}

// resuming wakes keys when what they wait for is paused no more, until ctx ends.
// No event tells of that.
func (c *Controller) resuming(ctx context.Context) {
	if c.def.Pause == nil {
		return
	}
	ticker := time.NewTicker(resumeEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
		for _, p := range c.partitions() {
			for d := range p.pausedDangers() {
				if c.def.Pause.Paused(ctx, d) == nil {
					p.resume(d)
				}
			}
		}
	}
}

// pausedDangers returns for which dangers keys wait.
func (p *Partition) pausedDangers() map[Danger]struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make(map[Danger]struct{})
	for _, d := range p.paused {
		out[d] = struct{}{}
	}
	return out
}

// resume wakes the keys that waited for a write of danger d.
func (p *Partition) resume(d Danger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, waits := range p.paused {
		if waits == d {
			delete(p.paused, key)
			p.c.work.add(p.item(key), live)
		}
	}
}

// hush makes a key wait for the end of a pause.
func (p *Partition) hush(key event.Key, d Danger) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.paused[key] = d
}
