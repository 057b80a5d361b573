package kube

import (
	"io"
	"net/http"
	"sync"
	"time"
)

// guardLife is how long an answer of the guard is good for. Unit: time. Source:
// ours; far above what a request takes that finds a connection, far below what
// guards judge by.
const guardLife = 50 * time.Millisecond

// late asks the guard of a write once more when its body is about to leave ⚠.
// Between the first answer and that the transport may have dialled for seconds,
// waited for a place on a connection, or sent the request again on another. A
// server that does not get the whole body does nothing.
type late struct {
	req   *http.Request
	guard Guard
	asked time.Time

	mu  sync.Mutex
	err error
}

// askedLate returns a request whose body asks; nil, where there is no guard.
func askedLate(req *http.Request) (*http.Request, *late) {
	guard, ok := req.Context().Value(guardKey{}).(Guard)
	if !ok || req.Body == nil || req.Body == http.NoBody || !isWrite(req.Method) {
		return req, nil
	}
	l := &late{req: req, guard: guard, asked: time.Now()}
	out := req.WithContext(req.Context()) // a RoundTripper leaves its request as it is
	out.Body = &lateBody{ReadCloser: req.Body, late: l}
	if again := req.GetBody; again != nil {
		out.GetBody = func() (io.ReadCloser, error) {
			body, err := again()
			if err != nil {
				return nil, err
			}
			return &lateBody{ReadCloser: body, late: l}, nil
		}
	}
	return out, l
}

func (l *late) ask() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.asked) < guardLife {
		return nil
	}
	if err := l.guard(l.req.Context()); err != nil {
		l.err = refused(err)
		return l.err
	}
	l.asked = time.Now()
	return nil
}

// refusal is what the guard said at last, whatever the transport made of it.
func (l *late) refusal() error {
	if l == nil {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// lateBody asks before its first byte.
type lateBody struct {
	io.ReadCloser
	late  *late
	asked bool
}

func (b *lateBody) Read(p []byte) (int, error) {
	if !b.asked {
		b.asked = true
		if err := b.late.ask(); err != nil {
			return 0, err
		}
	}
	return b.ReadCloser.Read(p)
}
