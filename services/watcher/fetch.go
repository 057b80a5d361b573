package watcher

import (
	"errors"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// fetchLimit is how many objects are read one by one; more are read as one list.
// Unit: objects. Source: a client of 20 requests/s needs a second for as many.
const fetchLimit = 20

// fetches are the objects that must be published anew and whose body is not in
// hand.
type fetches struct {
	open     map[event.Key]bool
	relisted bool
}

// answered forgets all: a list tells about every key.
func (f *fetches) answered() {
	clear(f.open)
	f.relisted = false
}

// fetch reads an object live, or, where very many are missing at once, as after
// a wipe of the stream, all of them.
func (o *owner) fetch(key event.Key) {
	f := &o.fetches
	if len(f.open) >= fetchLimit {
		if !f.relisted {
			f.relisted = true
			o.log.Info("very many objects are missing from the stream, listing them")
			o.watch.Relist()
		}
		return
	}
	f.open[key] = true
	o.tasks.Go(func() {
		var it item
		gone := false
		err := o.retried("reading object", func() error {
			obj, err := o.api.Get(o.ctx, o.kind, o.metadataOnly, key)
			if gone = errors.Is(err, kube.ErrNotFound); gone {
				return nil
			}
			if err == nil {
				it = o.judge(obj, false)
			}
			return err
		})
		if err == nil {
			o.send(func() { o.fetched(key, it, gone) })
		}
	})
}

// fetched answers the publisher. Of an object that is gone the watch will tell,
// with the version of the deletion.
func (o *owner) fetched(key event.Key, it item, gone bool) {
	delete(o.fetches.open, key)
	if gone {
		return
	}
	o.notePoison(it)
	o.pub.Fetched(key, it.Object, it.Body)
}
