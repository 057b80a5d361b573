package kube

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"k8s.io/client-go/transport"
)

// Guard is asked before every side effect: is the lease still ours, is the mode
// live, is nothing paused. An error refuses the write. It is asked once more
// when the request leaves, because a wait for the rate limiter can outlast a
// lease; so it must be cheap or cache its answer.
type Guard func(ctx context.Context) error

type guardKey struct{}

// WithGuard makes g be asked right before each write that is sent with this
// context, through any client of this package.
func WithGuard(ctx context.Context, g Guard) context.Context {
	if g == nil {
		return ctx
	}
	return context.WithValue(ctx, guardKey{}, g)
}

// sender is the last step before the wire.
type sender struct {
	next      http.RoundTripper
	clock     *serverClock
	forbidden chan<- struct{}
}

func newSender(clock *serverClock, forbidden chan<- struct{}) transport.WrapperFunc {
	return func(next http.RoundTripper) http.RoundTripper {
		return &sender{next: next, clock: clock, forbidden: forbidden}
	}
}

// RoundTrip refuses what must not be sent, asks the guard, and notes the
// server's time and that it forbids something. It never lets client-go repeat a write: the answer's
// Retry-After, which is what client-go obeys, is taken away.
func (s *sender) RoundTrip(req *http.Request) (*http.Response, error) {
	write := isWrite(req.Method)
	if write {
		if err := s.mayWrite(req); err != nil {
			if req.Body != nil {
				_ = req.Body.Close()
			}
			return nil, err
		}
	}
	sent := time.Now()
	req, span := spanOf(req)
	req, late := askedLate(req)
	resp, err := s.next.RoundTrip(req)
	if refusal := late.refusal(); refusal != nil && err != nil {
		err = refusal
	}
	answered(span, resp, err)
	if err != nil {
		return nil, err
	}
	s.clock.observe(resp.Header.Get("Date"), sent, time.Now())
	noteForbidden(s.forbidden, resp.StatusCode)
	resp.Body = through(req.Context(), resp.Body)
	if write {
		resp.Header.Del("Retry-After")
	}
	return resp, nil
}

func (s *sender) mayWrite(req *http.Request) error {
	if req.Method == http.MethodPut && !mayPut(req.URL.Path) {
		return fmt.Errorf("PUT %s: %w: a projected copy is never PUT", req.URL.Path, ErrMalformed)
	}
	guard, ok := req.Context().Value(guardKey{}).(Guard)
	if !ok {
		return nil
	}
	if err := guard(req.Context()); err != nil {
		return refused(err)
	}
	return nil
}

func isWrite(method string) bool {
	switch method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
		return false
	default:
		return true
	}
}

// mayPut reports whether path names an Endpoints or EndpointSlice object, the
// only kinds that travel whole.
func mayPut(path string) bool {
	return matches(path, "/api/v1/namespaces/", "endpoints") ||
		matches(path, "/apis/discovery.k8s.io/v1/namespaces/", "endpointslices")
}

// matches reports whether path ends in <prefix><namespace>/<resource>/<name>.
// What stands before the prefix is the server's own base path.
func matches(path, prefix, resource string) bool {
	_, rest, found := strings.Cut(path, prefix)
	parts := strings.Split(rest, "/")
	return found && len(parts) == 3 && parts[0] != "" && parts[1] == resource && parts[2] != ""
}

// started is the zero of the monotonic offsets kept in atomics.
var started = time.Now()

// heardConn notes when bytes last arrived: an event, or the answer to a ping.
type heardConn struct {
	net.Conn
	last atomic.Int64 // time.Since(started)
}

func (c *heardConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.last.Store(int64(time.Since(started)))
	}
	return n, err
}

// dialHeard wraps every connection in a heardConn. Timeouts are client-go's.
func dialHeard(dial dialer) dialer {
	if dial == nil {
		dial = (&net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}).DialContext
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &heardConn{Conn: conn}
		c.last.Store(int64(time.Since(started)))
		return c, nil
	}
}

// heardOf finds our connection below TLS.
func heardOf(conn net.Conn) *heardConn {
	switch c := conn.(type) {
	case *heardConn:
		return c
	case *tls.Conn:
		return heardOf(c.NetConn())
	default:
		return nil
	}
}
