package kube

import (
	"net/http"
	"sync"
	"time"
)

// sight is one look at the server's clock.
type sight struct {
	date     time.Time // as the server wrote it, cut to the second
	sent     time.Time // ours, before the request
	received time.Time // ours, after the response's headers
}

// serverClock remembers the newest Date header.
type serverClock struct {
	mu   sync.Mutex
	last sight
}

func (c *serverClock) observe(header string, sent, received time.Time) {
	if header == "" {
		return
	}
	date, err := http.ParseTime(header)
	if err != nil {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if received.After(c.last.received) {
		c.last = sight{date: date, sent: sent, received: received}
	}
}

func (c *serverClock) get() sight {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.last
}

// clockTolerance is within what our wall clock is used as it is: the Date header
// has whole seconds, so a smaller difference cannot be told from none.
const clockTolerance = time.Second

// ClusterTime returns the API server's time at now, which other processes'
// timestamps are compared with: our own wall clock while the two agree within a
// second, else the server's last Date carried on by our monotonic clock. skew is
// the least difference (server minus ours) that explains what was seen. known is
// false before the first answer; then nothing destructive may be judged by
// another process's time.
func (a *API) ClusterTime(now time.Time) (t time.Time, skew time.Duration, known bool) {
	return clusterTime(a.clock.get(), now)
}

func clusterTime(s sight, now time.Time) (time.Time, time.Duration, bool) {
	if s.received.IsZero() {
		return time.Time{}, 0, false
	}
	wall := now.Round(0)
	// The server's clock read Date..Date+1s at some moment between sent and
	// received; carried on to now, that is:
	earliest := s.date.Add(now.Sub(s.received))
	latest := s.date.Add(time.Second).Add(now.Sub(s.sent))
	var skew time.Duration
	switch {
	case wall.Before(earliest):
		skew = earliest.Sub(wall)
	case wall.After(latest):
		skew = latest.Sub(wall)
	}
	if skew.Abs() <= clockTolerance {
		return wall, skew, true
	}
	return earliest.Add(latest.Sub(earliest) / 2), skew, true
}
