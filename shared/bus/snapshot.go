package bus

import (
	"context"
	"fmt"

	"github.com/millrace-io/millrace/shared/event"
)

// Snapshot calls fn, in stream order, with the headers of everything of a kind,
// tombstones and bookmarks too, and returns when every message that stood in the
// stream at one moment after its start has been delivered. A key that changes
// meanwhile may come twice. Messages that cannot be decoded and a broken flow
// are errors; a kind that has nothing is fine.
func (b *Bus) Snapshot(ctx context.Context, kind event.Kind, fn func(event.Message)) error {
	filters := []string{event.KindFilter(b.root, kind)}
	var seq uint64
	check := func(pending uint64) error {
		if pending > 0 {
			return nil
		}
		done, err := b.complete(ctx, b.eventStream(), filters, seq)
		if err == nil && done {
			err = errEnough
		}
		return err
	}
	r := reading{
		stream:      b.eventStream(),
		name:        fmt.Sprintf("snapshot-%s-%d", b.unique, b.feeds.Add(1)),
		filters:     filters,
		headersOnly: true,
		idle:        func() error { return check(0) },
	}
	err := b.read(ctx, r, check, func(d delivery) error {
		m, err := decode(b.root, d.Subject, d.Header, nil, true)
		if err != nil {
			return err
		}
		m.Seq, seq = d.Seq, d.Seq
		fn(m)
		return check(d.Pending)
	})
	if err != nil {
		return fmt.Errorf("reading snapshot of %s: %w", kind, err)
	}
	return nil
}
