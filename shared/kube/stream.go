package kube

import (
	"context"
	"io"
	"sync/atomic"
	"time"
)

const (
	// streamBuffer is how much of a watch is read at once. Unit: bytes. Source: a
	// read that fills less has emptied what HTTP/2 holds, which is up to 4 MiB.
	streamBuffer = 64 << 10
	// sampleEvery is the least time between two looks at the connection. Unit:
	// time. Source: bytes for this watch that had come at the first look have woken
	// its reader by the second, unless the process stood still in between; then
	// the first look was before that.
	sampleEvery = 15 * time.Millisecond
)

// heardStream is the body of a watch that knows up to when everything that had
// arrived has been taken by its reader. That bytes arrive on the connection
// proves less: thousands of events may wait behind them for a process that was
// frozen or has no time, or the bytes may belong to another watch.
type heardStream struct {
	body io.ReadCloser
	buf  []byte
	r, w int
	// drained is when the last read began that emptied the body; what it brought
	// may not have been taken yet. Offsets since started.
	drained time.Duration
	// taken is up to when everything has been; waits is since when a read for
	// more lasts, negative while there is none.
	taken, waits atomic.Int64

	// What the last look saw; Proof's alone.
	looked, sawWaits, sawHeard, proven int64
}

func newHeardStream() *heardStream {
	s := &heardStream{buf: make([]byte, streamBuffer), sawWaits: -1, proven: -1}
	s.waits.Store(-1)
	s.taken.Store(-1)
	s.drained = -1
	return s
}

func (s *heardStream) Read(p []byte) (int, error) {
	if s.r == s.w {
		if err := s.fill(); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.buf[s.r:s.w])
	s.r += n
	return n, nil
}

// fill is called when all of the last read has been taken.
func (s *heardStream) fill() error {
	s.taken.Store(int64(s.drained))
	began := time.Since(started)
	s.waits.Store(int64(began))
	n, err := s.body.Read(s.buf)
	s.waits.Store(-1)
	if n > 0 && n < len(s.buf) {
		s.drained = began
	}
	s.r, s.w = 0, n
	if n > 0 {
		return nil // an error comes again
	}
	return err
}

func (s *heardStream) Close() error { return s.body.Close() }

// heard is up to when everything that arrived has been taken; negative for not at
// all. Bytes that had come at an earlier look, and for which a reader that waited
// then still waits, were not for it. busy: what it took is still being passed on.
//
// ⚠ The newest bytes prove nothing: when a frozen process thaws they have come,
// and what they tell waits for goroutines that have not run yet.
func (s *heardStream) heard(conn *heardConn, busy bool) time.Duration {
	now := int64(time.Since(started))
	s.proven = max(s.proven, s.taken.Load())
	if now-s.looked < int64(sampleEvery) {
		return time.Duration(s.proven)
	}
	waits := s.waits.Load()
	if busy {
		waits = -1
	}
	if waits >= 0 && waits == s.sawWaits {
		s.proven = max(s.proven, s.sawHeard)
	}
	s.looked, s.sawWaits, s.sawHeard = now, waits, conn.last.Load()
	return time.Duration(s.proven)
}

type streamKey struct{}

// withStream makes the answer to a request with this context be read through s.
func withStream(ctx context.Context, s *heardStream) context.Context {
	return context.WithValue(ctx, streamKey{}, s)
}

// through wraps the body of a watch.
func through(ctx context.Context, body io.ReadCloser) io.ReadCloser {
	s, ok := ctx.Value(streamKey{}).(*heardStream)
	if !ok {
		return body
	}
	s.body, s.r, s.w = body, 0, 0
	return s
}
