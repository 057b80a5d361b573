package watcher

import (
	"time"

	"github.com/millrace-io/millrace/shared/bus"
)

// wire makes *bus.Bus a lease.Wire.
type wire struct{ *bus.Bus }

// Connected reports whether the connection is up, and since when that is so.
func (w wire) Connected() (since time.Time, ok bool) {
	s := w.State()
	return s.Since, s.Connected
}
