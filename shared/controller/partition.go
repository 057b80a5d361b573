package controller

import (
	"context"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Danger is what a side effect may do.
type Danger uint8

const (
	// Harmless: a later run puts it right.
	Harmless Danger = iota + 1
	// Destructive: a pod deleted or evicted, a NoExecute taint added, a node
	// written Unknown.
	Destructive
)

func (d Danger) String() string {
	if d == Destructive {
		return "destructive"
	}
	return "harmless"
}

// Cause is the oldest change that woke a key and has not been reconciled since.
type Cause struct {
	// Message is the change, headers only.
	Message event.Message
	// Received is when it came, by the monotonic clock.
	Received time.Time
}

// Partition is one partition that this member has claimed: what a Reconciler
// may look at and whom it asks. It is safe for concurrent use.
type Partition struct{}

// Number returns the partition, Epoch that of the lease, Member who we are.
func (p *Partition) Number() int { return 0 }

// Epoch returns the epoch of the lease.
func (p *Partition) Epoch() uint64 { return 0 }

// Member returns the id of this member.
func (p *Partition) Member() string { return "" }

// View calls fn with one consistent look at the partition's inputs and the wide
// ones. fn must not call View, Guard or anything that blocks.
func (p *Partition) View(fn func(r Reader)) {}

// Guard is asked before every side effect of key; nil allows it now. Returned
// from Reconcile, its errors make the key wait for what was missing:
// ErrNotHolder, ErrNotSynced, ErrStale, ErrLiveFirst (for Retry on a live read),
// ErrShadow.
func (p *Partition) Guard(ctx context.Context, key event.Key, d Danger) error { return nil }

// LiveFirst reports whether what key writes next must be decided on a live read
// ⚠: the first write after the claim, because a predecessor's last writes may
// not be in the stream yet (not for a key first seen later), and after a
// conflict or a write that did not come back. Guard refuses until ReadLive.
func (p *Partition) LiveFirst(key event.Key) bool { return false }

// ReadLive says that key's caller has read live what it is about to write.
func (p *Partition) ReadLive(key event.Key) {}

// Wrote says what key has written. Its next run waits until the inputs show
// each write, or something later; at most Config.WriteWait, then LiveFirst is
// true. Writes to kinds that are no inputs are not waited for.
func (p *Partition) Wrote(key event.Key, w protocol.Write) {}

// Changed returns why key runs: the oldest change not reconciled before; false
// where no event did it (after a claim, a retry timer, Result.After).
func (p *Partition) Changed(key event.Key) (Cause, bool) { return Cause{}, false }

// Shadow reports whether the role only watches.
func (p *Partition) Shadow() bool { return false }
