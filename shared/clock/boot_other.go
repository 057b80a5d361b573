//go:build !linux

package clock

import "time"

// Boot falls back to Go's monotonic clock: it stands still while the machine
// is suspended, so only Linux is protected from that.
func Boot() time.Duration { return monotonic() }
