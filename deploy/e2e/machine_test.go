package e2e

import "sync"

// pace says whether a test judges times strictly.
type pace bool

const (
	easy   pace = false
	strict pace = true
)

// machine is what the tests of several lanes share. How many there are is for
// -parallel to say; where one judges strictly there are two at most. Who comes
// first enters first, so that a strict one does not wait for ever.
var machine = newRoom()

type room struct {
	mu              sync.Mutex
	changed         *sync.Cond
	inside, strict  int
	tickets, called int
}

func newRoom() *room {
	r := &room{}
	r.changed = sync.NewCond(&r.mu)
	return r
}

// enter waits for its turn, and returns what leaves again.
func (r *room) enter(p pace) (leave func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ticket := r.tickets
	r.tickets++
	for r.called != ticket || r.inside > 1 && (p == strict || r.strict > 0) {
		r.changed.Wait()
	}
	r.called++
	r.count(p, 1)
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.count(p, -1)
	}
}

// count notes who comes or goes; r.mu is held.
func (r *room) count(p pace, n int) {
	r.inside += n
	if p == strict {
		r.strict += n
	}
	r.changed.Broadcast()
}
