package controller

import (
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// serverClock is the API server's, as far as it was heard of.
type serverClock struct {
	mu    sync.Mutex
	skew  time.Duration
	known bool
}

func (c *serverClock) set(skew time.Duration, known bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.skew, c.known = skew, known
}

func (c *serverClock) ClusterTime(now time.Time) (time.Time, time.Duration, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Add(c.skew), c.skew, c.known
}

// Architecture 9. Nothing is ended while the cluster's time is not known, or is
// far from ours; what harms nobody goes on, and what waited needs no event.
func TestNothingIsEndedWithoutTheClustersTime(t *testing.T) {
	tests := map[string]struct {
		skew  time.Duration
		known bool
		says  string
	}{
		"the server has not answered yet": {says: ""},
		"it is ahead of us":               {skew: 6 * time.Second, known: true, says: "6s from ours"},
		"it is behind us":                 {skew: -6 * time.Second, known: true, says: "6s from ours"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			play(t, 1, func(r *rig) {
				r.clock.set(tt.skew, tt.known)
				r.Put(things, key("a"), "x")
			}, func(r *rig) {
				r.lease.Claim(0)
				settle(5 * time.Second)
				if _, made := r.Get(outs, key("a")); !made {
					r.Fatal("what harms nobody was not written")
				}
				r.Delete(things, key("a"))
				settle(40 * time.Second)
				if _, there := r.Get(outs, key("a")); !there {
					r.Error("it was ended by a time that cannot be trusted")
				}
				if err := r.c.Ready(); (err != nil) != (tt.says != "") || err != nil && !strings.Contains(err.Error(), tt.says) {
					r.Errorf("readiness says %v, want %q", err, tt.says)
				}
				if _, err := r.c.partitions()[0].Now(); !errors.Is(err, ErrClock) {
					r.Errorf("Now() = %v, want ErrClock", err)
				}
				r.clock.set(4*time.Second, true)
				settle(3 * time.Second)
				if _, there := r.Get(outs, key("a")); there {
					r.Error("the clock is right again, and it still waits")
				}
			})
		})
	}
}

func TestARoleWithoutAClockEndsNothing(t *testing.T) {
	play(t, 1, func(r *rig) { r.def.Clock = nil }, func(r *rig) {
		r.lease.Claim(0)
		settle(5 * time.Second)
		if err := r.c.partitions()[0].Guard(t.Context(), key("a"), Destructive); !errors.Is(err, ErrClock) {
			r.Errorf("Guard() = %v, want ErrClock", err)
		}
	})
}
