package controller

import (
	"context"
	"fmt"
)

type drainingKey struct{}

// UntilDraining returns a context that also ends, with ErrNotHolder as its cause,
// when the partition is to be handed over whose Reconcile got ctx: whoever waits
// for something that may take long, a token say, waits with this one, so that a
// hand-over does not wait for it.
func UntilDraining(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	draining, ok := ctx.Value(drainingKey{}).(context.Context)
	if !ok {
		return ctx, func() { cancel(nil) }
	}
	stop := context.AfterFunc(draining, func() {
		cancel(fmt.Errorf("waiting: %w: it is being handed over", ErrNotHolder))
	})
	return ctx, func() {
		stop()
		cancel(nil)
	}
}
