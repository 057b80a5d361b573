package nodelifecycle

import (
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
)

// countEvery is the least time between two counts of all nodes. Unit: time.
// Source: ours; 100 000 nodes take some milliseconds.
const countEvery = 100 * time.Millisecond

// registrar counts all nodes whenever something has changed, for all partitions
// of this process, and remembers since when no more have fallen sick.
type registrar struct {
	// period is how long the number of sick nodes must not have grown for a row of
	// growth to have ended.
	period time.Duration

	mu    sync.Mutex
	last  census
	at    time.Time // of the last count; zero: there is none
	dirty bool
	grew  time.Time // when the number of sick nodes last grew; first: at the first count
	row   time.Time // when the row of growth began that grew is the last of
}

// outdated says that a node has changed.
func (r *registrar) outdated() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dirty = true
}

// take returns the count as of a moment ago.
func (r *registrar) take(p view) census {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := time.Now()
	if !r.at.IsZero() && (!r.dirty || now.Sub(r.at) < countEvery) {
		return r.last
	}
	return r.count(p, now)
}

// anew counts in any case.
func (r *registrar) anew(p view) census {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count(p, time.Now())
}

// count counts. r.mu is held.
func (r *registrar) count(p view, now time.Time) census {
	r.dirty = false // before the look: what changes from now on counts again
	var c census
	p.View(func(reader controller.Reader) { c = count(cache.List[*corev1.Node](reader, nodes, "")) })
	if r.at.IsZero() || c.notReady > r.last.notReady {
		if now.Sub(r.grew) >= r.period {
			r.row = now
		}
		r.grew = now
	}
	r.last, r.at = c, now
	return c
}

// quiet returns when it will have been long enough that no more nodes have fallen
// sick: a period, but not longer than most since that began ⚠, for a node that has
// waited for an hour must not be tainted while everybody else falls silent.
func (r *registrar) quiet(most time.Duration) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	at := r.grew.Add(r.period)
	if last := r.row.Add(most); at.After(last) {
		return last
	}
	return at
}
