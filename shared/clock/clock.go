// Package clock reads the clock by which a right runs out: it goes on while the
// process is stopped and while the machine sleeps, and nobody can set it. It
// says nothing about the time of day, and no two machines agree on it.
package clock

import "time"

var origin = time.Now()

// monotonic is the time since the process started.
func monotonic() time.Duration { return time.Since(origin) }
