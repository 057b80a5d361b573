package watcher

import (
	"errors"
	"time"

	"github.com/millrace-io/millrace/shared/backoff"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/protocol"
)

// tombstoneLife is the default of Kinds.TombstoneLife.
const tombstoneLife = 24 * time.Hour

// retryPolicy paces what is tried until it succeeds: 50 ms to 1 s.
var retryPolicy = backoff.Policy{Base: 100 * time.Millisecond, Max: time.Second}

// carryOut does what the publisher asks for, in order. Nothing is published
// unless the grant is valid at that moment.
func (o *owner) carryOut() error {
	if o.end != nil {
		return o.end
	}
	effects := o.pub.Next()
	if o.pub.Lost() {
		return errLost
	}
	for i := range effects {
		e := &effects[i]
		switch e.Do {
		case protocol.DoPublish, protocol.DoMark:
			if err := o.grant.Valid(); err != nil {
				return err
			}
			if e.Do == protocol.DoMark {
				o.publishMark(e)
			} else {
				o.publish(e)
			}
		case protocol.DoRead:
			o.read(e.Key)
		case protocol.DoReadMark:
			o.readMark(e.Slice)
		case protocol.DoFetch:
			o.fetch(e.Key)
		}
	}
	return nil
}

func (o *owner) publish(e *protocol.Effect[*body]) {
	m := event.Message{
		Kind: o.kind, Key: e.Key, Op: e.Object.Op, UID: e.Object.UID,
		Version: e.Object.Version, Upto: e.Upto, Epoch: o.grant.Epoch(), Projection: projection,
	}
	p := bus.Publication{
		PK: partition.OfKey(e.Key, o.bus.Partitions()), PN: partition.OfNamespace(e.Key, o.bus.Partitions()),
		Expect: e.Expect,
	}
	switch {
	case e.Body != nil:
		m.Body, m.Hash = e.Body.bytes, e.Object.Hash
		m.Observed, m.Committed = e.Body.observed, e.Body.committed
	default:
		m.Observed = time.Now()
	}
	if m.Op == event.Delete {
		p.TTL = o.tombstones
	}
	way := traced(o.ctx, &m)
	p.Message = m
	o.flying++
	key, object, observed := e.Key, e.Object, m.Observed
	o.bus.Publish(p, func(seq uint64, err error) {
		way.ended(seq, err)
		o.results <- func() {
			o.flying--
			o.published(key, object, observed, seq, err)
		}
	})
}

// published takes the bus's answer to a publication.
func (o *owner) published(key event.Key, object protocol.Object, observed time.Time, seq uint64, err error) {
	o.metrics.answered(object.Op, err)
	switch {
	case err == nil:
		o.failures = 0
		o.metrics.eventToPublish.Observe(age(observed).Seconds())
		o.pub.Acked(key, seq)
	case errors.Is(err, bus.ErrRefused):
		o.pub.Refused(key)
	case errors.Is(err, bus.ErrTooLarge):
		it := item{poison: err.Error()}
		it.Key, it.Object = key, protocol.Object{Op: event.Opaque, UID: object.UID, Version: object.Version}
		o.notePoison(it)
		o.pub.Observe(key, it.Object, nil)
		o.pub.Failed(key)
	default:
		o.stumble(err)
		o.later(func() { o.pub.Failed(key) })
	}
}

// stumble counts a publication that the bus did not take, for whatever reason.
// A stream that is full stops the kind's bookmarks: what was refused is missing
// from it.
func (o *owner) stumble(err error) {
	if o.failures++; o.failures == 1 {
		o.log.Warn("cannot publish, trying on", "err", err)
	}
	if errors.Is(err, bus.ErrFull) {
		o.marks.refused = time.Now()
	}
	o.status.stumbled(err)
	o.missing(err)
}

// later calls f in the loop after the current backoff. Its key stays outstanding
// until then, so results has room for it.
func (o *owner) later(f func()) {
	o.flying++
	delay := retryPolicy.Delay(o.failures, o.grant.Epoch())
	time.AfterFunc(delay, func() {
		o.results <- func() {
			o.flying--
			f()
		}
	})
}

// read finds out what the stream holds at key.
func (o *owner) read(key event.Key) {
	o.tasks.Go(func() {
		var found *event.Message
		err := o.retried("reading last message", func() (err error) {
			m, err := o.bus.Last(o.ctx, o.kind, key)
			found, err = lastOf(m, err)
			return err
		})
		if err == nil {
			o.send(func() { o.pub.Last(key, found) })
		}
	})
}

func (o *owner) readMark(slice int) {
	o.tasks.Go(func() {
		var found *event.Message
		err := o.retried("reading last bookmark", func() (err error) {
			m, err := o.bus.LastMark(o.ctx, o.kind, slice)
			found, err = lastOf(m, err)
			return err
		})
		if err == nil {
			o.send(func() { o.pub.MarkLast(slice, found) })
		}
	})
}

// lastOf sorts what reading a last message yields. One that cannot be decoded
// still has a place, over which the right one is written.
func lastOf(m event.Message, err error) (*event.Message, error) {
	switch {
	case err == nil:
		return &m, nil
	case errors.Is(err, bus.ErrNone):
		return nil, nil //nolint:nilnil // the publisher's word for "there is none"
	case m.Seq != 0:
		return &event.Message{Seq: m.Seq}, nil
	default:
		return nil, err
	}
}
