package lease

import (
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// unreadable stands for the holder of a lease that cannot be read: it has to be
// waited for like any other.
const unreadable = "?"

// follow keeps the view of the bucket until the membership ends.
func (t *tenure) follow() {
	for failures := 1; t.ctx.Err() == nil; failures++ {
		err := t.lease.bucket.Follow(t.ctx, t.lease.cfg.prefix()+">", view{t})
		if t.ctx.Err() != nil {
			return
		}
		t.log.Warn("following the bucket ended", "err", err)
		view{t}.Gap("ended")
		pause(t.ctx, rejoinPolicy.Delay(failures, t.seed))
	}
}

// now is the time by which others are judged: silence counts only while it could
// have been heard. ⚠ What was missed in a gap of the view is Ownership's to know.
func (t *tenure) now() time.Duration { return t.lease.wire.Now() }

// view takes what the bucket tells.
type view struct{ t *tenure }

// Begin implements event.EntrySink.
func (v view) Begin(uint64) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	v.t.caught = false
	v.t.own.Begin()
}

// Gap implements event.EntrySink.
func (v view) Gap(reason string) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	v.t.caught = false
	v.t.own.Gap()
	v.t.log.Debug("view of the bucket is incomplete", "reason", reason)
}

// Caught implements event.EntrySink.
func (v view) Caught() {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	v.t.own.Caught(v.t.now())
	v.t.caught = true
	signal(v.t.renewNow) // if the own key is gone, that is refused
	v.t.nudge()
}

// Entry implements event.EntrySink.
func (v view) Entry(key string, value []byte, revision uint64, deleted bool) {
	v.t.mu.Lock()
	defer v.t.mu.Unlock()
	rest, ok := strings.CutPrefix(key, v.t.lease.cfg.prefix())
	if !ok {
		return
	}
	if id, ok := strings.CutPrefix(rest, "m."); ok {
		v.member(id, value, revision, deleted)
	} else if token, ok := strings.CutPrefix(rest, "p."); ok {
		v.unit(token, value, revision, deleted)
		v.t.nudge()
	}
}

func (v view) member(id string, value []byte, revision uint64, deleted bool) {
	t, evicted := v.t, len(value) == 0
	t.revisions[id] = revision
	switch {
	case deleted:
		t.went(id, byExpiry)
		t.own.MemberExpired(id)
		t.nudge()
	case evicted:
		t.went(id, byEviction)
		t.own.MemberSeen(id, revision, true, t.now())
		t.nudge()
	default:
		delete(t.gone, id)
		t.own.MemberSeen(id, revision, false, t.now())
		t.introduce(id, value)
	}
	if id != t.id {
		return
	}
	switch {
	case deleted:
		t.lose(lostExpired)
	case evicted:
		t.lose(lostEvicted)
	default:
		t.ownKeySeen(revision)
	}
}

// went forgets who a member is, and notes the first sign that a member is gone.
func (t *tenure) went(id, how string) {
	first, known := t.gone[id]
	if !known {
		first.at = time.Now()
	}
	t.gone[id] = sign{first.at, how}
	delete(t.peers, id)
}

func (t *tenure) introduce(id string, value []byte) {
	if _, known := t.peers[id]; known {
		return
	}
	var m millracev1.Member
	if err := proto.Unmarshal(value, &m); err != nil {
		t.log.Warn("reading member", "other", id, "err", err)
	}
	t.nudge() // a mere renewal needs no judgement
	t.peers[id] = Peer{ID: id, Host: m.GetHost(), Version: m.GetVersion(), Started: m.GetStarted().AsTime()}
}

func (v view) unit(token string, value []byte, revision uint64, deleted bool) {
	t := v.t
	unit, err := event.ParseToken(token)
	if _, known := t.lease.index[unit]; err != nil || !known {
		return // of another release, or of another number of partitions
	}
	var l millracev1.Lease
	if err := proto.Unmarshal(value, &l); err != nil && !deleted {
		t.log.Warn("reading lease", "unit", unit, "err", err)
		l.Holder = unreadable
	}
	holder := l.GetHolder()
	if deleted {
		holder = ""
	}
	if holder == "" {
		t.freed[unit] = sign{time.Now(), byRelease}
	}
	t.own.LeaseSeen(unit, holder, revision, t.now())
	if g := t.grants[unit]; g != nil && revision > g.epoch {
		t.drop(g, lostTaken)
	}
}
