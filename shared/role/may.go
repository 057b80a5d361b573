package role

import (
	"context"
	"errors"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
)

// May asks whether this member may do something of that danger, or say something
// of a key, once it has read live.
func May(ctx context.Context, p Partition, key event.Key, d controller.Danger) error {
	err := p.Guard(ctx, key, d)
	if errors.Is(err, controller.ErrLiveFirst) {
		return nil
	}
	return err
}

// Allowed asks before a live look whether a write of that danger could follow: what
// waits for fresh inputs or for the end of a pause asks nobody meanwhile.
func Allowed(ctx context.Context, p Partition, key event.Key, d controller.Danger) error {
	err := May(ctx, p, key, d)
	if errors.Is(err, controller.ErrShadow) {
		return nil
	}
	return err
}
