package nodelifecycle

import (
	"sync"
	"time"

	"github.com/millrace-io/millrace/shared/tokenbucket"
)

const (
	// checkEvery is the least time between two live looks at one node. Unit: time.
	// Source: architecture section 7.
	checkEvery = 5 * time.Second
	// checkRate and checkBurst limit the live looks of a replica, each two GETs.
	// Units: looks per second, looks. Source: architecture section 7.
	checkRate, checkBurst = 50, 100
)

// checks limits live looks at nodes, apart from the limit of all other requests: a
// silence is told when it is due.
type checks struct {
	began time.Time

	mu     sync.Mutex
	bucket tokenbucket.Bucket
	last   map[string]time.Time // by UID of the node
}

func newChecks() *checks {
	return &checks{began: time.Now(), last: make(map[string]time.Time)}
}

// take returns 0 if a node may be looked at now, else when to ask again.
func (c *checks) take(uid string, now time.Time) (wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, at := range c.last {
		if len(c.last) < 2*checkBurst {
			break
		}
		if now.Sub(at) >= checkEvery {
			delete(c.last, other)
		}
	}
	if wait := c.left(uid, now); wait > 0 {
		return wait
	}
	limit := tokenbucket.Limit{Rate: checkRate, Burst: checkBurst}
	taken, ok := c.bucket.Take(limit, 1, now.Sub(c.began))
	if !ok {
		return c.bucket.Wait(limit, 1, now.Sub(c.began))
	}
	c.bucket, c.last[uid] = taken, now
	return 0
}

// next returns when a node may be looked at again, as far as that rests on when it
// last was; 0: now.
func (c *checks) next(uid string, now time.Time) time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.left(uid, now)
}

// left is next; c.mu is held.
func (c *checks) left(uid string, now time.Time) time.Duration {
	at, looked := c.last[uid]
	if !looked {
		return 0
	}
	return max(0, checkEvery-now.Sub(at))
}
