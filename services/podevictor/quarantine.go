package podevictor

import (
	"maps"
	"sync"
	"time"
)

// quarantine knows since when nodes have been missing that pods name. A member that
// takes a partition over begins anew: later is never wrong here.
type quarantine struct {
	mu    sync.Mutex
	since map[string]time.Time // by name of the node, by our own clock
}

// manyMissing is how many missing nodes are remembered before those are dropped of
// which nobody has asked since. Unit: nodes. Source: ours.
const manyMissing = 10000

func newQuarantine() *quarantine { return &quarantine{since: make(map[string]time.Time)} }

// missing says that a node is not there, and returns since when that is so.
func (q *quarantine) missing(node string, now time.Time) time.Time {
	q.mu.Lock()
	defer q.mu.Unlock()
	at, known := q.since[node]
	if !known {
		if len(q.since) >= manyMissing {
			maps.DeleteFunc(q.since, func(_ string, at time.Time) bool { return now.Sub(at) > time.Hour })
		}
		at = now
		q.since[node] = at
	}
	return at
}

// there says that a node is there: should it go missing again, its time begins anew.
func (q *quarantine) there(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.since, node)
}
