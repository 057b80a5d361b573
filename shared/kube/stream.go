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
	// surelyWaiting is how long a read has lasted that found nothing to return.
	// Unit: time. Source: a copy of streamBuffer takes some 10 µs.
	surelyWaiting = 2 * time.Millisecond
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
}

func newHeardStream() *heardStream {
	s := &heardStream{buf: make([]byte, streamBuffer)}
	s.waits.Store(-1)
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

// heard is up to when everything that arrived has been taken: while the reader
// waits, whatever arrives on the connection is not for it. busy: what it took is
// still being passed on.
func (s *heardStream) heard(conn *heardConn, busy bool) time.Time {
	waits := s.waits.Load()
	last := time.Duration(s.taken.Load())
	if !busy && waits >= 0 && time.Since(started)-time.Duration(waits) > surelyWaiting {
		last = max(last, time.Duration(conn.last.Load()))
	}
	return started.Add(last)
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
	s.body, s.r, s.w, s.drained = body, 0, 0, 0
	return s
}
