//go:build !linux

package lease

import "time"

// boottime falls back to Go's monotonic clock: it stands still while the machine
// is suspended, so only Linux is protected from that.
func boottime() time.Duration { return monotonic() }
