package bus

import "context"

// Complete lets the tests outside ask what a reading asks before it calls itself
// caught up.
func (b *Bus) Complete(ctx context.Context, filters []string, seq uint64) (bool, error) {
	return b.complete(ctx, b.eventStream(), filters, seq)
}
