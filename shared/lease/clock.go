package lease

import "time"

var origin = time.Now()

// monotonic is the time since the process started.
func monotonic() time.Duration { return time.Since(origin) }
