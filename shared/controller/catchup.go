package controller

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

const (
	// catchUpWait bounds CatchUp. Unit: time. Source: a bookmark comes once a
	// second without asking.
	catchUpWait = 2 * time.Second
	// catchUpAgain is the pause before a watcher that did not answer is asked
	// again. Unit: time.
	catchUpAgain = 50 * time.Millisecond
)

// CatchUp returns once every input of the partition has agreed with a bookmark
// that was made after the call ⚠: whoever has read live what others wrote must
// not decide on inputs older than that, or undoes what they, who saw further,
// have written. It asks for the bookmarks, so it takes milliseconds; ErrNotSynced
// if none come.
//
// That a bookmark *comes* after the call is not enough: it may have been under
// way, made before what the others saw. So the watcher says which was its last,
// and what has a greater counter was made later.
func (p *Partition) CatchUp(ctx context.Context) error {
	bounded, cancel := context.WithTimeout(ctx, catchUpWait)
	defer cancel()
	errs := make([]error, len(p.cache.Kinds()))
	var kinds sync.WaitGroup
	for i, kind := range p.cache.Kinds() {
		kinds.Go(func() { errs[i] = p.catchUp(bounded, kind) })
	}
	kinds.Wait()
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("catching up with what was read live: %w", err)
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("catching up with what was read live: %w: %w", ErrNotSynced, err)
	}
	return nil
}

func (p *Partition) catchUp(ctx context.Context, kind event.Kind) error {
	for {
		epoch, last, err := p.c.asker.markAfter(ctx, kind, p.Number())
		if err == nil {
			again, err := p.awaitMark(ctx, kind, epoch, last)
			if !again {
				return err
			}
			continue
		}
		timer := time.NewTimer(catchUpAgain)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return err
		}
	}
}

// awaitMark waits for a bookmark of epoch above last. again: the kind has
// another watcher by now, which counts anew and must be asked itself.
func (p *Partition) awaitMark(ctx context.Context, kind event.Kind, epoch, last uint64) (again bool, err error) {
	for {
		changed := p.cache.Changed()
		switch e, counter := p.cache.Marked(kind); {
		case e > epoch:
			return true, nil
		case e == epoch && counter > last && p.cache.Synced(kind):
			return false, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return false, fmt.Errorf("waiting for a bookmark of %s: %w", kind, ctx.Err())
		}
	}
}
