package controller

import (
	"errors"
	"fmt"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// What Guard says no with. errors.Is finds them through whatever an edge wraps
// around them.
var (
	// ErrNotHolder: this member does not hold the partition, or may not any more.
	ErrNotHolder = errors.New("partition is not ours")
	// ErrNotSynced: the inputs are not complete.
	ErrNotSynced = errors.New("inputs are not complete")
	// ErrStale: an input is older than the write allows; see StaleError.
	ErrStale = errors.New("input is too old")
	// ErrLiveFirst: the write must be decided on a live read first ⚠; see
	// Partition.LiveFirst.
	ErrLiveFirst = errors.New("a live read must come first")
	// ErrClock: the cluster's time is not known, and nothing may be ended by any
	// other.
	ErrClock = errors.New("cluster time is not known")
	// ErrPaused: an operator has paused such writes, or it is not known whether
	// one has; see PausedError.
	ErrPaused = errors.New("paused")
	// ErrOpaque: an object that the decision reads could not be carried.
	ErrOpaque = errors.New("an input cannot be read")
	// ErrShadow: everything else allowed the write, but the role only watches.
	ErrShadow = errors.New("shadow mode writes nothing")
)

// StaleError says which input is too old for what. It is an ErrStale.
type StaleError struct {
	Kind   event.Kind
	Danger Danger
	// Age is what it is, where Known; Limit what it may be.
	Age, Limit time.Duration
	Known      bool
}

func (e *StaleError) Error() string {
	if !e.Known {
		return fmt.Sprintf("age of %s is not known yet, a %s write allows %s: %s", e.Kind, e.Danger, e.Limit, ErrStale)
	}
	return fmt.Sprintf("%s is %s old, a %s write allows %s: %s", e.Kind, e.Age.Round(time.Millisecond), e.Danger, e.Limit, ErrStale)
}

// Is makes a StaleError an ErrStale.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// PausedError says what a write of that danger waits for. It is an ErrPaused.
type PausedError struct {
	Danger Danger
	Why    error
}

func (e *PausedError) Error() string { return ErrPaused.Error() + ": " + e.Why.Error() }

// Is makes a PausedError an ErrPaused.
func (e *PausedError) Is(target error) bool { return target == ErrPaused }

// terminalError is a failure that no retry can mend.
type terminalError struct{ err error }

func (e *terminalError) Error() string { return "terminal: " + e.err.Error() }
func (e *terminalError) Unwrap() error { return e.err }

// Terminal marks err as final: our own code cannot form the write. The key is
// dead-lettered and waits for its next event.
func Terminal(err error) error {
	if err == nil {
		return nil
	}
	return &terminalError{err}
}

// IsTerminal reports whether Terminal was applied anywhere in err's chain.
func IsTerminal(err error) bool {
	_, ok := errors.AsType[*terminalError](err)
	return ok
}

// Class is what an error of Reconcile means to the frame.
type Class uint8

const (
	// Retry: with backoff, for as long as it takes.
	Retry Class = iota
	// Conflict: the object has changed; decide on a live read, at once the first
	// time, then with backoff.
	Conflict
	// Gone: what was to be written does not exist any more; its tombstone, or a
	// new UID under its name, is on its way.
	Gone
	// Final: no retry can mend it, as Terminal.
	Final
	// NotHolder: the partition is not ours.
	NotHolder
	// Waiting: an input is incomplete or too old; look again when it is not.
	Waiting
	// Shadow: the write was held back on purpose; the key is done.
	Shadow
)

// classes are the results of failed reconciles, as metrics name them.
var classes = map[Class]string{
	Retry: "error", Conflict: "conflict", Gone: "gone", Final: "terminal",
	NotHolder: "not_holder", Waiting: "waiting", Shadow: "shadow",
}

// Classify sorts an error: the frame's own first, wherever they stand in the
// chain, then as the role says.
func Classify(err error, role func(error) Class) Class {
	switch {
	case IsTerminal(err):
		return Final
	case errors.Is(err, ErrNotHolder):
		return NotHolder
	case errors.Is(err, ErrNotSynced), errors.Is(err, ErrStale), errors.Is(err, ErrClock), errors.Is(err, ErrPaused),
		errors.Is(err, ErrOpaque):
		return Waiting
	case errors.Is(err, ErrLiveFirst):
		return Conflict
	case errors.Is(err, ErrShadow):
		return Shadow
	case role != nil:
		return role(err)
	default:
		return Retry
	}
}
