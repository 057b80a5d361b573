package watcher

import (
	"context"
	"math"
	"time"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

const (
	// mendAfter is after how many failed snapshots messages that cannot be read
	// are looked for. Unit: snapshots.
	mendAfter = 3
	// mendWait is how long they are looked for. Unit: time.
	mendWait = 3 * time.Second
)

// mend replaces messages of the kind that cannot be read, because no snapshot
// gets past them: objects by tombstones, which the first list corrects, and
// bookmarks by ones that agree with nobody. While the kind is being published
// the follower does this better.
func (o *owner) mend() {
	ctx, cancel := context.WithTimeout(o.ctx, mendWait)
	defer cancel()
	feed := event.Feed{
		Name:        "watcher-mend-" + event.Token(string(o.kind)),
		Filters:     []string{event.KindFilter(o.bus.Root(), o.kind)},
		HeadersOnly: true,
	}
	_ = o.bus.Follow(ctx, feed, mender{o}, nil) // ends with ctx only
}

// mender implements event.Sink.
type mender struct{ o *owner }

func (mender) Begin(uint64)          {}
func (mender) Deliver(event.Message) {}
func (mender) Gap(string)            {}

func (m mender) Broken(subject string, seq uint64, err error) {
	place, bad := event.ParseSubject(m.o.bus.Root(), subject)
	if bad != nil || m.o.grant.Valid() != nil {
		return
	}
	m.o.log.Warn("message cannot be read, clearing its place", "subject", subject, "seq", seq, "err", err)
	p := bus.Publication{
		PK: partition.OfKey(place.Key, m.o.bus.Partitions()), PN: partition.OfNamespace(place.Key, m.o.bus.Partitions()),
		Expect: seq, TTL: m.o.tombstones,
		Message: event.Message{
			Kind: place.Kind, Key: place.Key, Op: event.Delete,
			Epoch: m.o.grant.Epoch(), Projection: projection, Observed: time.Now(),
		},
	}
	if place.Bookmark {
		nobody := event.Sums{Count: math.MaxUint64}
		p.TTL, p.Message.Op, p.Message.Slice = 0, event.Bookmark, place.PK
		p.Message.Mark = &event.Mark{ByKey: nobody, ByNamespace: nobody}
	}
	m.o.bus.Publish(p, func(uint64, error) {}) // the next snapshot shows what became of it
}
