package controller

import (
	"fmt"
	"time"
)

// maxSkew is how far our clock may be from the API server's. Unit: time. Source:
// architecture section 9.
const maxSkew = 5 * time.Second

// Clock tells the cluster's time, which is the API server's, carried on by our
// own: what other processes wrote down is compared with it ⚠. *kube.API is one.
type Clock interface {
	// ClusterTime returns the time at now, how far the server's clock is ahead of
	// ours, and false before the server was heard of.
	ClusterTime(now time.Time) (t time.Time, skew time.Duration, known bool)
}

// Now returns the cluster's time. ErrClock while it is not known, or too far from
// our own for either to be trusted.
func (p *Partition) Now() (time.Time, error) { return p.c.now() }

func (c *Controller) now() (time.Time, error) {
	if c.def.Clock == nil {
		return time.Time{}, fmt.Errorf("%w: the role has none", ErrClock)
	}
	t, skew, known := c.def.Clock.ClusterTime(time.Now())
	switch {
	case !known:
		return time.Time{}, fmt.Errorf("%w: the API server has not answered yet", ErrClock)
	case skew.Abs() > maxSkew:
		return time.Time{}, fmt.Errorf("%w: the API server's is %s from ours, %s is allowed", ErrClock, skew.Abs().Round(time.Second), maxSkew)
	}
	return t, nil
}

// clusterTime is the cluster's time as far as it is known, for people.
func (c *Controller) clusterTime() time.Time {
	now := time.Now()
	if c.def.Clock != nil {
		if t, _, known := c.def.Clock.ClusterTime(now); known {
			return t
		}
	}
	return now
}

// skewed says that the clocks are too far apart; nil also before the server was
// heard of, which every process begins with.
func (c *Controller) skewed() error {
	if c.def.Clock == nil {
		return nil
	}
	if _, _, known := c.def.Clock.ClusterTime(time.Now()); !known {
		return nil
	}
	_, err := c.now()
	return err
}
