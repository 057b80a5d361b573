package controller

import (
	"context"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// looked is what a job decides by: one consistent look at its inputs.
type looked struct {
	at     time.Time // before it
	proven time.Time // the inputs showed everything up to then
}

// Look waits until the inputs may be decided by and calls fn with one consistent
// look at them, which must not block. They may be once they are complete, fresh
// enough for what is destructive, which takes two bookmarks since the claim, and
// proven later than the job's last write ⚠: what a predecessor wrote, or the pass
// before, would be counted as not done. It fails only with ctx.
//
// What fn has seen counts for as long as an input may be old: see Guard.
func (j *Job) Look(ctx context.Context, fn func(r Reader)) error {
	for {
		changed := j.cache.Changed()
		at := time.Now() // before: what happens meanwhile makes the look count for less
		proven, err := j.fit()
		j.mu.Lock()
		if err == nil && len(j.def.Inputs) > 0 && !proven.After(j.written) {
			err = fmt.Errorf("%w: what was written has not come back", ErrNotSynced)
		}
		j.waits = ""
		if err != nil {
			j.waits = err.Error()
		} else {
			j.look = looked{at, proven}
		}
		j.mu.Unlock()
		if err == nil {
			j.cache.View(fn)
			return nil
		}
		timer := time.NewTimer(passAgain) // an age grows without an event
		select {
		case <-changed:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("waiting for the inputs of job %s: %w", j.def.Name, ctx.Err())
		}
		timer.Stop()
	}
}

// fit says why the inputs must not be decided by now, or up to when they show
// everything. The feed is the claim's own, so no bookmark that counts is older than
// the claim, before which another may have written.
func (j *Job) fit() (proven time.Time, err error) {
	now := time.Now()
	if !j.cache.Synced() {
		return now, j.incomplete()
	}
	if err := j.c.fresh(j.cache, Destructive); err != nil {
		return now, err
	}
	proven = now
	turned := j.cache.Turned()
	for _, kind := range j.cache.Kinds() {
		age, known := j.cache.AgeDestructive(kind)
		if !known { // it was a moment ago
			return now, j.incomplete()
		}
		if !turned.IsZero() && !j.cache.MarkedSince(kind, turned) {
			return now, fmt.Errorf("%w: nothing of %s since an input has another watcher", ErrNotSynced, kind)
		}
		if at := now.Add(-age); at.Before(proven) {
			proven = at
		}
	}
	return proven, nil
}

// incomplete says what is missing.
func (j *Job) incomplete() error {
	for _, st := range j.cache.Status() {
		if st.Problem != "" {
			return fmt.Errorf("%w: %s", ErrNotSynced, st.Problem)
		}
	}
	return ErrNotSynced
}

// Guard is asked before every side effect of the job; nil allows it now. Its errors
// are those of Partition.Guard, and ErrStale also when what Look has shown is older
// than the write allows: the pass is to end and to look again. A live read does not
// come first by itself: what is written must name the state it was decided on.
func (j *Job) Guard(ctx context.Context, key event.Key, d Danger) error {
	return j.GuardPart(ctx, key, j.def.Part, d)
}

// GuardPart is Guard for a write of another part of the role than the job's own.
func (j *Job) GuardPart(ctx context.Context, key event.Key, part string, d Danger) error {
	err := j.guard(ctx, part, d)
	if err == nil && j.c.def.Pause != nil {
		if err = j.c.pausedFor(ctx, d); err == nil {
			err = j.guard(ctx, part, d) // the look may have taken its time
		}
	}
	if err != nil {
		j.c.metrics.refused(err)
		return fmt.Errorf("guarding a %s write of %s by job %s: %w", d, key, j.def.Name, err)
	}
	return nil
}

func (j *Job) guard(ctx context.Context, part string, d Danger) error {
	if j.ctx.Err() != nil {
		return ErrNotHolder
	}
	if err := j.grant.Valid(); err != nil {
		return fmt.Errorf("%w: %w", ErrNotHolder, err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if d >= Destructive {
		if _, err := j.c.now(); err != nil {
			return err
		}
	}
	if err := j.lookCounts(d); err != nil {
		return err
	}
	switch j.c.modeOf(part) {
	case ModeActive:
		return nil
	case ModeShadow:
		return ErrShadow
	default:
		return errOff
	}
}

// lookCounts says why what was looked at must not be acted upon any more.
func (j *Job) lookCounts(d Danger) error {
	if len(j.def.Inputs) == 0 {
		return nil
	}
	j.mu.Lock()
	last := j.look
	j.mu.Unlock()
	switch turned := j.cache.Turned(); {
	case last.at.IsZero():
		return fmt.Errorf("%w: nothing was looked at", ErrNotSynced)
	case !j.cache.Synced():
		return j.incomplete()
	case !turned.Before(last.at):
		return fmt.Errorf("%w: an input has another watcher since it was looked at", ErrNotSynced)
	}
	age := time.Since(last.proven)
	for _, kind := range j.cache.Kinds() {
		if limit := j.c.limit(kind, d); age > limit {
			return &StaleError{Kind: kind, Danger: d, Age: age, Limit: limit, Known: true}
		}
	}
	return nil
}
