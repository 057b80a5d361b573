package podevictor

import (
	"context"
	"errors"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/rates"
	"github.com/millrace-io/millrace/shared/tokenbucket"
)

// line holds the pods of this process that are due and wait for a token: one of the
// whole fleet, one of their zone, or both. The one that was due first is first.
type line struct {
	lines *rates.Lines[candidate] // nil: no limit
	zoned bool
}

// candidate is one pod of one partition.
type candidate struct {
	p   held
	key event.Key
}

// buckets are where tokens come from; *rates.Rates.
type buckets interface {
	Bucket(scope string, rate float64, burst int) *rates.Bucket
}

// The scopes of the buckets.
const (
	scopeAll  = "evict"
	scopeZone = "evict:zone:"
)

func newLine(ctx context.Context, p policy, from buckets, workers int) *line {
	l := &line{zoned: p.ZonePodEvictionQPS > 0}
	if p.PodEvictionQPS <= 0 && !l.zoned {
		return l
	}
	l.lines = rates.NewLines(ctx, rates.Rules[candidate]{
		Take: func(ctx context.Context, zone string, _ candidate) (token rates.Token, err error) {
			if l.zoned {
				if token, err = bucket(from, scopeZone+zone, p.ZonePodEvictionQPS, p.ZonePodEvictionBurst).Take(ctx); err != nil {
					return token, err
				}
			}
			if p.PodEvictionQPS <= 0 {
				return token, nil
			}
			// Last ⚠: a token of all that died in the line of a slow zone would be lost to
			// the others.
			all, err := bucket(from, scopeAll, p.PodEvictionQPS, p.PodEvictionBurst).Take(ctx)
			if err == nil && l.zoned {
				all = all.With(token)
			}
			return all, err
		},
		Wake: func(c candidate) { c.p.Wake(c.key) },
		Most: workers,
	})
	return l
}

func bucket(from buckets, scope string, rate float64, burst int) *rates.Bucket {
	return from.Bucket(scope, rate, tokenbucket.BurstOf(rate, burst))
}

// pass returns what must hold as the pod is deleted: nil where nothing is limited.
// ok is false if the pod has to wait for a token, which will wake it.
func (l *line) pass(p held, key event.Key, n *corev1.Node, due time.Time) (valid func() error, ok bool) {
	if l.lines == nil {
		return nil, true
	}
	c := candidate{p, key}
	if token, granted := l.lines.Claim(c); granted {
		return token.Valid, true
	}
	zone := ""
	if l.zoned {
		zone = nameOfZone(n)
	}
	l.lines.Want(c, zone, due)
	return nil, false
}

func (l *line) forget(p held, key event.Key) {
	if l.lines != nil {
		l.lines.Forget(candidate{p, key})
	}
}

func (l *line) leave(p held) {
	if l.lines != nil {
		l.lines.Leave(func(c candidate) bool { return c.p == p })
	}
}

// place says where a pod stands, for people; waiting is 0 for one in no line.
func (l *line) place(p held, key event.Key) (ahead, waiting int) {
	if l.lines != nil {
		_, ahead, waiting = l.lines.Place(candidate{p, key})
	}
	return ahead, waiting
}

// nameOfZone is the zone of a node for people: region/zone, as far as there are such.
func nameOfZone(n *corev1.Node) string {
	return strings.Trim(strings.ReplaceAll(zoneOf(n), ":\x00:", "/"), "/")
}

// lapsed reports whether a write was not made because what allowed it had run out.
func lapsed(err error) bool { return errors.Is(err, rates.ErrVoid) || errors.Is(err, errOld) }
