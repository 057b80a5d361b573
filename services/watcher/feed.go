package watcher

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/protocol"
)

// What comes in. The methods here run in the goroutines of the watch and of the
// follower; objects are projected there, so that the loop only judges.

const (
	// maxBody is the largest body that is published. Unit: bytes. Source:
	// architecture section 3; the server's own limit may be lower.
	maxBody = 4 << 20
	// headroom is what the headers of a message may take. Unit: bytes. The bus
	// counts exactly; what it refuses becomes an opaque marker all the same.
	headroom = 2 << 10
)

// item is one object as the publisher is told of it.
type item struct {
	protocol.Item[*body]
	// poison says why the object cannot be carried.
	poison string
}

// judge turns an object into what is published of it.
func (o *owner) judge(obj kube.Object, deleted bool) item {
	it := item{Item: protocol.Item[*body]{Key: obj.Key}}
	it.Object = protocol.Object{Op: event.Delete, UID: obj.UID, Version: obj.Version}
	if deleted {
		return it
	}
	bytes, err := encode(obj)
	if limit := o.limit(); err == nil && len(bytes) > limit {
		err = fmt.Errorf("%w: %d bytes, %d are allowed", bus.ErrTooLarge, len(bytes), limit)
	}
	if err != nil {
		it.Object.Op, it.poison = event.Opaque, err.Error()
		return it
	}
	it.Object.Op, it.Object.Hash = event.Put, event.HashBody(bytes)
	it.Body = &body{bytes: bytes, observed: obj.Observed}
	if m, ok := obj.Raw.(metav1.Object); ok {
		it.Body.committed = committed(m)
	}
	return it
}

// encode projects and encodes; one object that makes our code panic is poison
// and nothing more.
func encode(obj kube.Object) (bytes []byte, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("projecting %T: panic: %v", obj.Raw, p)
		}
	}()
	projected := project(obj.Raw)
	if projected == nil {
		return nil, fmt.Errorf("projecting %T: there is no projection", obj.Raw)
	}
	return kube.Encode(projected)
}

func (o *owner) limit() int {
	limit := maxBody
	if server := o.bus.State().MaxPayload; server > 0 {
		limit = min(limit, int(server))
	}
	return limit - headroom
}

// Replaced implements kube.Events.
func (o *owner) Replaced(version uint64, objects []kube.Object) {
	if o.beats != nil {
		o.beats.nodesReplaced(objects)
	}
	items := make([]item, len(objects))
	for i := range objects {
		items[i] = o.judge(objects[i], false)
		objects[i].Raw = nil // the list is large; let it go as it is encoded
	}
	o.send(func() { o.replaced(version, items) })
}

// Changed implements kube.Events.
func (o *owner) Changed(obj kube.Object, deleted bool) {
	o.metrics.events.Inc()
	if o.beats != nil {
		o.beats.nodeChanged(obj, deleted)
	}
	it := o.judge(obj, deleted)
	o.send(func() { o.changed(it) })
}

// Progress implements kube.Events.
func (o *owner) Progress(version uint64) {
	o.send(func() { o.pub.Progress(version) })
}

func (o *owner) replaced(version uint64, items []item) {
	list := make([]protocol.Item[*body], len(items))
	for i := range items {
		o.notePoison(items[i])
		list[i] = items[i].Item
	}
	if err := o.pub.Replaced(version, list); err != nil {
		o.disbelieve(err)
		return
	}
	o.doubted, o.absent = false, false
	o.fetches.answered()
	o.metrics.relists.Inc()
	if !o.listed {
		o.listed = true
		o.started(version, len(items))
		return
	}
	o.compare(reasonRelist)
}

// disbelieve lists once more before it takes a list for a sign that history went
// back: the list may have begun before a newer version was published.
func (o *owner) disbelieve(err error) {
	if o.doubted {
		o.fail(err)
		return
	}
	o.doubted = true
	o.status.stumbled(err)
	o.watch.Relist()
}

func (o *owner) started(version uint64, objects int) {
	differences := o.pub.Dirty()
	o.log.Info("publishing kind", "objects", objects, "version", version, "differences", differences)
	o.metrics.compared(reasonStart, differences)
	if o.compares.waiting != "" {
		o.compare(o.compares.waiting)
	}
}

func (o *owner) changed(it item) {
	o.notePoison(it)
	before := o.pub.Dirty()
	o.pub.Observe(it.Key, it.Object, it.Body)
	if o.pub.Dirty() <= before {
		o.metrics.suppressed.Inc() // equal to what is published, or waiting with an older change
	}
}

// follow reads the owner's own subjects, headers only, to find what was not
// written by it.
func (o *owner) follow(ctx context.Context) {
	feed := event.Feed{
		Name:        fmt.Sprintf("watcher-%s-%d", event.Token(string(o.kind)), o.grant.Epoch()),
		Filters:     []string{event.KindFilter(o.bus.Root(), o.kind)},
		HeadersOnly: true,
	}
	_ = o.bus.Follow(ctx, feed, follower{o}, nil) // ends with ctx only
}

// follower implements event.Sink.
type follower struct{ o *owner }

func (f follower) Begin(uint64) {}

func (f follower) Deliver(m event.Message) {
	if m.Op == event.Bookmark && m.Epoch == f.o.grant.Epoch() {
		return // only we write these
	}
	f.o.send(func() { f.o.stored(m) })
}

// Broken: what cannot be read stands in for an object that exists, so that it is
// published anew or withdrawn.
func (f follower) Broken(subject string, seq uint64, err error) {
	place, bad := event.ParseSubject(f.o.bus.Root(), subject)
	if bad != nil {
		return
	}
	f.o.log.Warn("message cannot be read, replacing it", "subject", subject, "seq", seq, "err", err)
	m := event.Message{Kind: place.Kind, Key: place.Key, Seq: seq, Op: event.Opaque}
	if place.Bookmark {
		m.Op, m.Slice = event.Bookmark, place.PK
	}
	f.o.send(func() { f.o.stored(m) })
}

func (f follower) Gap(string) { f.o.send(func() { f.o.compare(reasonGap) }) }

// watchLink asks for a comparison after every connection that is not the last
// one: another server, or the same one after a crash, may hold something else.
func (o *owner) watchLink(ctx context.Context, last uint64) {
	changes, cancel := o.bus.Changes()
	defer cancel()
	for {
		if s := o.bus.State(); s.Connected && s.Generation != last {
			last = s.Generation
			o.send(func() { o.compare(reasonReconnect) })
		}
		select {
		case <-ctx.Done():
			return
		case <-changes:
		}
	}
}

var _ kube.Events = (*owner)(nil)

// age is how long ago t was; zero for a time that is not known.
func age(t time.Time) time.Duration {
	if t.IsZero() {
		return 0
	}
	return time.Since(t)
}
