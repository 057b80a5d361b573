package lease

import (
	"context"
	"errors"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// evictedTTL is how long a member key says that its member is dead. Unit: time.
// Source: ten member TTLs, for whoever is cut off meanwhile; after it the key is
// absent, which says the same more slowly.
const evictedTTL = 60 * time.Second

func isRefused(err error) bool { return errors.Is(err, event.ErrRefused) }

// put writes one key. It is bounded by writeWait and not by the membership: a
// write that was sent should be heard of, or its outcome has to be waited for.
func (t *tenure) put(key string, value []byte, expect uint64, ttl time.Duration) (uint64, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), writeWait)
	defer cancel()
	return t.lease.bucket.Put(ctx, key, value, expect, ttl)
}

// claim returns the write that takes a unit whose lease has revision rev.
func (t *tenure) claim(unit string, rev uint64) func() {
	from := t.former(unit)
	return func() {
		t.lanes <- struct{}{}
		defer func() { <-t.lanes }()
		if t.moot() {
			return
		}
		epoch, err := t.put(t.lease.cfg.unitKey(unit), leaseValue(t.id), rev, 0)
		t.lease.metrics.claims.WithLabelValues(resultOf(err)).Inc()
		if err != nil {
			t.log.Debug("claiming", "unit", unit, "revision", rev, "err", err)
			pause(t.ctx, retryWait) // or until the view tells; see take
			return
		}
		t.claimed(unit, epoch, from)
	}
}

// claimed starts work on a unit, or gives it back if nobody wants it any more.
func (t *tenure) claimed(unit string, epoch uint64, from sign) {
	t.mu.Lock()
	t.own.LeaseSeen(unit, t.id, epoch, t.now())
	t.take(unit)
	g := t.grants[unit]
	unwanted := (g == nil || g.epoch != epoch) && (t.leaving || t.ctx.Err() != nil)
	t.mu.Unlock()
	if unwanted {
		t.giveUp(unit, epoch)
		return
	}
	if from.how == "" {
		t.log.Info("took unit", "unit", unit, "epoch", epoch)
		return
	}
	took := time.Since(from.at)
	t.lease.metrics.takeovers.WithLabelValues(from.how).Inc()
	t.lease.metrics.takeoverSeconds.Observe(took.Seconds())
	t.log.Info("took unit over", "unit", unit, "epoch", epoch, "reason", from.how, "took", took)
}

// former says how unit's last holder, if there was one, lost it.
func (t *tenure) former(unit string) sign {
	holder, rev := t.own.Holder(unit)
	switch {
	case holder != "":
		if s, ok := t.gone[holder]; ok {
			return s
		}
		return sign{time.Now(), byExpiry} // gone before this view began
	case rev != 0:
		return t.freed[unit]
	default:
		return sign{}
	}
}

// moot reports whether claims have become pointless.
func (t *tenure) moot() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaving || t.ctx.Err() != nil
}

// giveUp writes that nobody holds unit, if its epoch is still the one held. It
// tries until the outcome is known or the membership has ended.
func (t *tenure) giveUp(unit string, epoch uint64) {
	t.mu.Lock()
	t.given[unit] = max(t.given[unit], epoch)
	t.mu.Unlock()
	for {
		rev, err := t.put(t.lease.cfg.unitKey(unit), leaseValue(""), epoch, 0)
		switch {
		case err == nil:
			t.lease.metrics.releases.Inc()
			t.mu.Lock()
			t.own.LeaseSeen(unit, "", rev, t.now())
			t.mu.Unlock()
			t.nudge()
			return
		case isRefused(err): // an earlier try of ours landed, or it is another's
			return
		case t.ctx.Err() != nil || t.overdue():
			return
		}
		t.log.Debug("giving up", "unit", unit, "epoch", epoch, "err", err)
		pause(t.ctx, retryWait)
	}
}

// overdue reports whether a member that leaves has no lease left to give up.
func (t *tenure) overdue() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.leaving && int64(t.lease.boot()) >= t.deadline.Load()
}

// evict returns the write that marks a member as dead. Only after it, and only
// if the member has not renewed since rev, may its units be claimed. ⚠
func (t *tenure) evict(id string, rev uint64, first sign) func() {
	return func() {
		if t.moot() {
			return
		}
		evicted, err := t.put(t.lease.cfg.prefix()+"m."+id, nil, rev, evictedTTL)
		if err != nil {
			t.log.Debug("evicting", "dead", id, "revision", rev, "err", err)
			pause(t.ctx, retryWait)
			return
		}
		t.lease.metrics.evictions.Inc()
		t.log.Info("evicted member", "dead", id, "reason", first.how, "after", time.Since(first.at))
		t.mu.Lock()
		defer t.mu.Unlock()
		t.gone[id] = sign{first.at, byEviction}
		t.own.MemberSeen(id, evicted, true, t.now())
		t.nudge()
	}
}

func (t *tenure) memberValue() []byte {
	return marshal(&millracev1.Member{
		Id: t.id, Role: t.lease.cfg.Role, Host: t.lease.cfg.Host, Version: t.lease.cfg.Version,
		Started: timestamppb.New(t.lease.started),
	})
}

// leaseValue is never empty: it says since when.
func leaseValue(holder string) []byte {
	return marshal(&millracev1.Lease{Holder: holder, Since: timestamppb.Now()})
}

func marshal(m proto.Message) []byte {
	b, err := proto.Marshal(m)
	if err != nil {
		panic("marshalling a message of our own: " + err.Error()) // only invalid UTF-8
	}
	return b
}
