package lease

import (
	"math/rand/v2"
	"time"

	"github.com/millrace-io/millrace/shared/protocol"
)

// unsureTries is how often a renewal may be refused after one whose outcome is
// unknown, before the view has told which: 3 s at retryWait.
const unsureTries = 15

// pulse is what is known of the own member key. Joining is its first renewal.
type pulse struct {
	rev uint64 // 0: not joined
	// unsure is set while a renewal that was sent, the earliest at first, may or
	// may not have been written.
	unsure   bool
	first    time.Duration
	refusals int
}

// renewing joins, then renews the member key until the membership ends or the
// member leaves.
func (t *tenure) renewing() {
	defer close(t.silent)
	for wait := time.Duration(0); ; {
		timer := time.NewTimer(wait)
		select {
		case <-t.ctx.Done():
			timer.Stop()
			return
		case <-t.renewNow:
			timer.Stop()
		case <-timer.C:
		}
		wait = t.renew()
		if t.moot() {
			return
		}
	}
}

// renew sends one renewal and returns when to send the next. The lease runs
// from before it was sent: whatever happens on the way counts against us.
func (t *tenure) renew() (next time.Duration) {
	t.mu.Lock()
	expect := t.pulse.rev
	t.mu.Unlock()
	sent := t.lease.boot()
	rev, err := t.put(t.key, t.memberValue(), expect, protocol.MemberTTL)
	t.lease.metrics.renewals.WithLabelValues(resultOf(err)).Inc()

	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case err == nil:
		t.renewed(rev, sent)
		return spread(protocol.RenewEvery)
	case t.pulse.rev != expect: // it, or one before it, was written, as the view told
		return 0
	case !isRefused(err):
		t.log.Debug("renewing", "revision", expect, "err", err)
		if !t.pulse.unsure {
			t.pulse.unsure, t.pulse.first = true, sent
		}
		return retryWait
	case t.pulse.unsure && t.pulse.refusals < unsureTries:
		t.pulse.refusals++
		return retryWait
	default:
		t.lose(lostRefused)
		return 0
	}
}

// renewed notes that the member key has revision rev, by a write that was sent
// at sent or later.
func (t *tenure) renewed(rev uint64, sent time.Duration) {
	joined := t.deadline.Load() == 0
	t.pulse = pulse{rev: max(rev, t.pulse.rev)}
	t.deadline.Store(int64(sent + protocol.MemberTTL - protocol.Margin))
	t.own.MemberSeen(t.id, rev, false, t.now())
	if joined {
		if t.again {
			t.claimFrom = time.Now().Add(settle)
		}
		t.log.Info("joined", "host", t.lease.cfg.Host, "units", len(t.lease.cfg.Units))
	}
	t.nudge()
}

// ownKeySeen is what the view tells of the own member key.
func (t *tenure) ownKeySeen(rev uint64) {
	switch {
	case rev <= t.pulse.rev:
	case t.pulse.unsure:
		t.renewed(rev, t.pulse.first)
		signal(t.renewNow)
	default:
		t.pulse.rev = rev // of the renewal in flight
	}
}

// spread keeps members that start together from renewing together.
func spread(d time.Duration) time.Duration {
	return d - d/20 + rand.N(d/10) //nolint:gosec // spreading, not secrecy
}
