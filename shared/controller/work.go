package controller

import (
	"sync"
	"time"

	"k8s.io/client-go/util/workqueue"
)

// work is the queue of a role: client-go's, which is serial per item and serves
// upstream's metrics under the role's name, with two lanes inside and timers
// beside it.
type work struct {
	mu     sync.Mutex // makes lanes.next and the Push that it is for one step
	lanes  *lanes
	queue  workqueue.TypedDelayingInterface[item]
	delays *delays
}

func newWork(role string) *work {
	w := &work{lanes: newLanes()}
	w.queue = workqueue.NewTypedDelayingQueueWithConfig(workqueue.TypedDelayingQueueConfig[item]{
		Name:  role,
		Queue: workqueue.NewTypedWithConfig(workqueue.TypedQueueConfig[item]{Name: role, Queue: w.lanes}),
	})
	w.delays = newDelays(w.retry)
	return w
}

// add makes i wait for a worker; one that is being worked on runs again.
func (w *work) add(i item, to lane) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes.next = to
	w.queue.Add(i)
}

// retry is add for what no event asks for, counted as upstream counts retries.
func (w *work) retry(i item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes.next = live
	w.queue.AddAfter(i, 0) // adds at once
}

// addAfter makes it wait later, and takes back an earlier addAfter.
func (w *work) addAfter(i item, after time.Duration) { w.delays.set(i, after) }

// due returns when i is to be looked at again by its timer.
func (w *work) due(i item) (time.Time, bool) { return w.delays.due(i) }

// get returns the next item; done must follow.
func (w *work) get() (i item, closed bool) {
	i, closed = w.queue.Get()
	if !closed {
		w.delays.clear(i)
	}
	return i, closed
}

func (w *work) done(i item) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.lanes.next = live
	w.queue.Done(i)
}

// drop forgets a partition's timers; what waits of it is dropped when popped.
func (w *work) drop(p *Partition) { w.delays.drop(p) }

// close lets the workers finish what waits and end.
func (w *work) close() {
	w.delays.close()
	w.queue.ShutDown()
}
