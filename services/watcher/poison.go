package watcher

import (
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// roleName is the name among the roles.
const roleName = "watcher"

// notePoison keeps the list of objects that cannot be carried: one log line and
// one dead letter when an object joins it, and the letter cleared when it
// leaves. It stops nothing else.
func (o *owner) notePoison(it item) {
	switch {
	case it.poison != "" && !o.poisoned[it.Key]:
		o.poisoned[it.Key] = true
		o.log.Error("object cannot be carried, readers will wait for it", "key", it.Key.String(), "reason", it.poison)
		o.letter(it.Key, it.poison)
	case it.poison == "" && o.poisoned[it.Key]:
		delete(o.poisoned, it.Key)
		o.log.Info("object can be carried again", "key", it.Key.String())
		o.letter(it.Key, "")
	}
}

// letter writes, or with no reason clears, a dead letter.
func (o *owner) letter(key event.Key, reason string) {
	o.tasks.Go(func() {
		_ = o.retried("writing dead letter", func() error { // fails only when the run ends
			if reason == "" {
				return o.bus.ClearDeadLetter(o.ctx, roleName, o.kind, key)
			}
			return o.bus.DeadLetter(o.ctx, &millracev1.DeadLetter{
				Role: roleName, Kind: string(o.kind), Namespace: key.Namespace, Name: key.Name,
				Reason: reason, At: timestamppb.New(time.Now()),
			})
		})
	})
}
