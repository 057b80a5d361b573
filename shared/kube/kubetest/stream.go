package kubetest

import (
	"context"
	"io"
	"sync"
	"time"
)

// stream is the body of one watch on its way through a Proxy. What the server
// sends is taken in at once, however long it is kept back: a server that notices
// a slow watcher ends the watch, and that would be another fault than the one
// under test.
type stream struct {
	resource string
	body     io.ReadCloser
	ctx      context.Context // ends with the request, or with finish
	finish   context.CancelCauseFunc
	forget   func()
	fault    func() (fault, <-chan struct{})
	arrived  chan struct{} // holds one token when queue or end changed

	mu    sync.Mutex
	queue []chunk
	end   error // of the server's side, io.EOF included
}

// chunk is what one Read of the server's body gave.
type chunk struct {
	data []byte
	at   time.Time
}

// pump takes in the server's side until it ends.
func (s *stream) pump() {
	buf := make([]byte, 32<<10)
	for {
		n, err := s.body.Read(buf)
		s.mu.Lock()
		if n > 0 {
			s.queue = append(s.queue, chunk{data: append([]byte(nil), buf[:n]...), at: time.Now()})
		}
		s.end = err
		s.mu.Unlock()
		select {
		case s.arrived <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

// Read gives the client what is due.
func (s *stream) Read(p []byte) (int, error) {
	for {
		if s.ctx.Err() != nil {
			return 0, context.Cause(s.ctx)
		}
		n, next, err := s.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		var due <-chan time.Time
		if next.wait > 0 {
			due = time.After(next.wait)
		}
		select {
		case <-s.ctx.Done():
		case <-next.changed:
		case <-s.arrived:
		case <-due:
		}
	}
}

// next says when a stream with nothing to give is worth another look.
type next struct {
	wait    time.Duration   // 0: no time to wait for
	changed <-chan struct{} // closed when the faults change
}

// take moves bytes that may go now to p. A held stream hides its end too: the
// client is not to learn that anything happened.
//
// The fault is read under the lock that pump needs, so that nothing the server
// sends after Hold has returned can slip through on an older answer.
func (s *stream) take(p []byte) (int, next, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, changed := s.fault()
	if f.held {
		return 0, next{changed: changed}, nil
	}
	if len(s.queue) == 0 {
		return 0, next{changed: changed}, s.end
	}
	first := &s.queue[0]
	if wait := time.Until(first.at.Add(f.delay)); wait > 0 {
		return 0, next{wait: wait, changed: changed}, nil
	}
	n := copy(p, first.data)
	if first.data = first.data[n:]; len(first.data) == 0 {
		s.queue = s.queue[1:]
	}
	return n, next{}, nil
}

// Close ends the server's side too.
func (s *stream) Close() error {
	s.forget()
	return s.body.Close()
}
