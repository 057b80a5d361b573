package controller

import (
	"fmt"
	"runtime/debug"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
)

// changed takes a change of the partition's own inputs.
func (p *Partition) changed(change cache.Change) { p.concern(change, change.Message.Seq) }

// changedWide takes a change of a wide input. It stands in no order with the
// partition's own messages, and the durable position does not count it.
func (p *Partition) changedWide(change cache.Change) { p.concern(change, 0) }

// concern wakes the keys that a change concerns. Until the inputs have been
// complete once there is nothing to map by: then all keys are looked at.
func (p *Partition) concern(change cache.Change, seq uint64) {
	p.heard(object{change.Kind, change.Key})
	if !p.mapped.Load() {
		return
	}
	keys, err := p.keys(change)
	if err != nil {
		// Which keys it concerns is not known: all are looked at again.
		p.log.Error("mapping a change panicked", "kind", change.Kind, "key", change.Key, "err", err)
		p.mend.Store(true)
		p.look()
		return
	}
	if len(keys) == 0 {
		return
	}
	if p.c.def.Pause != nil && !p.Shadow() {
		p.c.def.Pause.Expect(p.ctx) // done by the time that the key writes
	}
	cause := &Cause{Message: change.Message, Received: time.Now()}
	for _, key := range keys {
		p.ledger.wake(key, seq, cause)
		p.c.work.add(p.item(key), live)
	}
}

func (p *Partition) keys(change cache.Change) (keys []event.Key, err error) {
	defer p.c.contain(&err)
	return p.c.def.Keys(p, change), nil
}

func (p *Partition) all() (keys []event.Key, err error) {
	defer p.c.contain(&err)
	return p.c.def.All(p), nil
}

// contain turns a panic into an error.
func (c *Controller) contain(err *error) {
	if v := recover(); v != nil {
		c.metrics.panics.Inc()
		*err = &panicError{value: v, stack: debug.Stack()}
	}
}

// panicError is a panic that was contained.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v\n%s", e.value, e.stack) }

// marked takes a bookmark that agreed with an input.
func (p *Partition) marked(kind event.Kind) {
	p.heardKind(kind)
	p.unpark()
}
