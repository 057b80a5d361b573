package lease

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// loss says how a member, or one of its units, was lost.
type loss string

const (
	lostRefused loss = "refused" // a renewal met another revision
	lostEvicted loss = "evicted" // another declared this member dead
	lostExpired loss = "expired" // the member key is gone, or ran out in draining
	lostTaken   loss = "taken"   // the unit's lease names another
)

// lossError is a loss as the cause of an ended context.
type lossError struct{ why loss }

func (e lossError) Error() string { return "membership or unit lost: " + string(e.why) }

var errLeft = errors.New("left")

const (
	// claimsAtOnce bounds the claims in flight. Unit: writes. Source: at 65 µs
	// a write (nats.md section 6) 16 lanes claim 256 units in milliseconds and
	// leave room for renewals.
	claimsAtOnce = 16
	// writeWait bounds one write to the bucket. Unit: time. Source: far above a
	// replicated write (0.4 ms), well below the member's TTL.
	writeWait = time.Second
	// retryWait is the pause after a write that failed, or was refused before
	// the view could tell why. Unit: time.
	retryWait = 200 * time.Millisecond
	// stepEvery is how often the view is judged though nothing was heard, for
	// what only time brings about; stepPause is the least time between two
	// judgements. Unit: time.
	stepEvery = 250 * time.Millisecond
	stepPause = 20 * time.Millisecond
	// settle is how long a member that joins *again* waits before it claims:
	// when all of them rejoin, after a long outage, the first one back would
	// otherwise claim everything and hand most of it over at once. Unit: time.
	settle = 500 * time.Millisecond
	// cutOff is how long the connection may be down before Grant.Valid says no:
	// two unanswered probes, probeGap apart, are enough to be found dead.
	cutOff = probeGap
	// forgetEvery is how often the view drops the long dead. Unit: time.
	forgetEvery = time.Minute
)

// tenure is one membership under one id: it begins with a view of nothing and
// ends by leaving or by loss.
type tenure struct {
	lease *Lease
	id    string
	key   string // of the member in the bucket
	seed  uint64
	hold  Hold
	log   *slog.Logger
	again bool // an earlier membership of this process was lost

	ctx      context.Context // the life of the membership
	cancel   context.CancelCauseFunc
	kick     chan struct{} // judge now
	renewNow chan struct{}
	lanes    chan struct{}  // claims in flight
	work     sync.WaitGroup // all goroutines but the holds
	silent   chan struct{}  // closed when renewing has stopped

	// deadline is until when the member trusts itself, by Lease.boot.
	deadline atomic.Int64

	mu        sync.Mutex // guards what follows
	own       *protocol.Ownership
	caught    bool
	leaving   bool
	pulse     pulse
	claimFrom time.Time
	forgotten time.Time
	grants    map[string]*Grant
	given     map[string]uint64 // unit → epoch that was given up
	busy      map[string]bool   // keys with a write in flight
	peers     map[string]Peer
	gone      map[string]sign   // member → how it went
	freed     map[string]sign   // unit → its release
	revisions map[string]uint64 // of member keys
	asking    map[string]bool   // members being probed
}

// sign is the first sign of a take-over to come.
type sign struct {
	at  time.Time
	how string // byRelease, byExpiry, byEviction
}

func newTenure(ctx context.Context, l *Lease, hold Hold, again bool) *tenure {
	var random [8]byte
	_, _ = rand.Read(random[:]) // never fails
	id := hex.EncodeToString(random[:])
	t := &tenure{
		lease: l, id: id, key: l.cfg.prefix() + "m." + id, seed: binary.BigEndian.Uint64(random[:]),
		hold: hold, log: l.log.With("member", id), again: again,
		kick: make(chan struct{}, 1), renewNow: make(chan struct{}, 1),
		lanes: make(chan struct{}, claimsAtOnce), silent: make(chan struct{}),
		own:    protocol.NewOwnership(id, l.cfg.Role, l.cfg.Units),
		grants: map[string]*Grant{}, given: map[string]uint64{}, busy: map[string]bool{},
		peers: map[string]Peer{}, gone: map[string]sign{}, freed: map[string]sign{}, asking: map[string]bool{},
		revisions: map[string]uint64{},
	}
	t.ctx, t.cancel = context.WithCancelCause(context.WithoutCancel(ctx)) // it drains after ctx has ended
	return t
}

// prefix is the part of the bucket that belongs to the role.
func (c Config) prefix() string { return event.Token(c.Role) + "." }

func (c Config) unitKey(unit string) string { return c.prefix() + "p." + event.Token(unit) }

// run lives through the membership and returns why it ended.
func (t *tenure) run(ctx context.Context) error {
	defer t.work.Wait()
	defer func() { t.cancel(errLeft) }()
	// It must answer before it counts, or it would be found dead.
	defer t.lease.answer(ctx, MemberSubject(t.lease.cfg.Cluster, t.lease.cfg.Role, t.id), t.reply)()
	t.work.Go(t.follow)
	if !t.awaitReady(ctx) {
		return ctx.Err()
	}
	t.work.Go(t.renewing)
	t.work.Go(t.probing)
	t.judge(ctx)
	if t.ctx.Err() != nil {
		t.abandon()
	} else {
		t.leave()
	}
	return context.Cause(t.ctx)
}

// reply answers what others ask this member.
func (t *tenure) reply(data []byte) []byte {
	if string(data) == askStatus {
		return t.lease.status()
	}
	return []byte("ok")
}

// awaitReady waits until the cluster-wide caches have synced, but not for ever.
func (t *tenure) awaitReady(ctx context.Context) bool {
	if t.lease.cfg.Ready == nil || t.again {
		return ctx.Err() == nil
	}
	timer := time.NewTimer(t.lease.cfg.JoinAtLatest)
	defer timer.Stop()
	select {
	case <-t.lease.cfg.Ready:
	case <-timer.C:
		t.log.Info("joining before the caches have synced", "waited", t.lease.cfg.JoinAtLatest)
	case <-ctx.Done():
		return false
	}
	return true
}

// judge does what the view asks for, until ctx or the membership ends.
func (t *tenure) judge(ctx context.Context) {
	ticker := time.NewTicker(stepEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.ctx.Done():
			return
		case <-ticker.C:
		case <-t.kick:
		}
		t.step()
		pause(ctx, stepPause)
	}
}

// nudge makes judge look again soon.
func (t *tenure) nudge() { signal(t.kick) }

func signal(ch chan<- struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// step compares what the bucket says with what is held, and starts what
// protocol.Ownership wishes. A member whose own lease may have run out wishes
// nothing: it must not judge others.
func (t *tenure) step() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ctx.Err() != nil || t.leaving || !t.caught {
		return
	}
	now := t.now()
	t.align()
	t.forget()
	t.lease.metrics.members.Set(float64(len(t.own.Living(now))))
	if t.valid() != nil || time.Now().Before(t.claimFrom) {
		return
	}
	for _, intent := range t.own.Step(now) {
		switch intent.Wish {
		case protocol.WishClaim:
			t.launch(intent.Unit, t.claim(intent.Unit, intent.Revision))
		case protocol.WishRelease:
			t.release(intent.Unit)
		case protocol.WishEvict:
			t.launch("m."+intent.Member, t.evict(intent.Member, intent.Revision, sign{time.Now(), byExpiry}))
		}
	}
}

// launch runs write unless one for the same name is in flight.
func (t *tenure) launch(name string, write func()) {
	if t.busy[name] {
		return
	}
	t.busy[name] = true
	t.work.Go(func() {
		write()
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.busy, name)
		t.nudge()
	})
}

// release asks the hold of unit to finish; the lease goes when it has.
func (t *tenure) release(unit string) {
	if g := t.grants[unit]; g != nil && !g.asked() {
		t.log.Info("giving unit up to another member", "unit", unit, "epoch", g.epoch)
		g.askToDrain()
	}
}

// align makes the grants those that the bucket says this member holds.
func (t *tenure) align() {
	for _, g := range t.grants {
		if holder, epoch := t.own.Holder(g.unit); holder != t.id || epoch != g.epoch {
			t.drop(g, lostTaken)
		}
	}
	for _, unit := range t.own.Held() {
		t.take(unit)
	}
}

// take starts a grant for a unit that the bucket says is held, unless there is
// one or the view has not yet heard that it was given up.
func (t *tenure) take(unit string) {
	holder, epoch := t.own.Holder(unit)
	if holder != t.id || t.grants[unit] != nil || epoch <= t.given[unit] || t.leaving || t.ctx.Err() != nil {
		return
	}
	g := newGrant(t, unit, epoch)
	t.grants[unit] = g
	t.count()
	go g.live(t.lease.queue(unit, g.done))
}

// drop ends a grant at once.
func (t *tenure) drop(g *Grant, why loss) {
	if t.grants[g.unit] != g || g.ended.Load() {
		return // it is being given up, and what is told is that
	}
	delete(t.grants, g.unit)
	t.count()
	t.lease.metrics.losses.WithLabelValues(string(why)).Inc()
	t.log.Info("lost unit", "unit", g.unit, "epoch", g.epoch, "reason", string(why))
	g.cancel(lossError{why})
}

// done takes a grant out whose hold has returned for good.
func (t *tenure) done(g *Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.grants[g.unit] == g && t.ctx.Err() == nil {
		delete(t.grants, g.unit)
		t.count()
		t.nudge()
	}
}

func (t *tenure) count() { t.lease.metrics.held.Set(float64(len(t.grants))) }

// lose ends the membership and with it every grant.
func (t *tenure) lose(why loss) {
	if t.ctx.Err() != nil || t.leaving {
		return
	}
	t.log.Info("lost membership", "reason", string(why), "units", len(t.grants))
	t.lease.metrics.losses.WithLabelValues(string(why)).Add(float64(len(t.grants)))
	t.cancel(lossError{why})
	t.lease.metrics.held.Set(0)
}

// forget drops what is remembered of the long dead.
func (t *tenure) forget() {
	if time.Since(t.forgotten) < forgetEvery {
		return
	}
	t.forgotten = time.Now()
	t.own.Forget()
	for id, s := range t.gone {
		if time.Since(s.at) > forgetEvery {
			delete(t.gone, id)
			delete(t.revisions, id)
		}
	}
}

// valid says whether the member may act: see Grant.Valid. It takes no lock but
// that of the connection.
func (t *tenure) valid() error {
	if int64(t.lease.boot()) >= t.deadline.Load() {
		return ErrExpired
	}
	if since, ok := t.lease.wire.Connected(); !ok && time.Since(since) >= cutOff {
		return ErrCutOff
	}
	return nil
}

func (t *tenure) joined() bool { return t.pulse.rev != 0 && t.ctx.Err() == nil }

func (t *tenure) ready() error {
	t.mu.Lock()
	joined, caught := t.joined(), t.caught
	t.mu.Unlock()
	switch {
	case !joined:
		return errNotJoined
	case !caught:
		return errIncomplete
	}
	return t.valid()
}

func (t *tenure) snapshot() Snapshot {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := Snapshot{Member: t.id, Joined: t.joined(), Complete: t.caught}
	for _, id := range t.own.Living(t.now()) {
		p := t.peers[id]
		p.ID = id
		s.Members = append(s.Members, p)
	}
	for _, unit := range t.lease.cfg.Units {
		holder, epoch := t.own.Holder(unit)
		s.Holders = append(s.Holders, Holder{Unit: unit, Member: holder, Epoch: epoch})
		if g := t.grants[unit]; g != nil && g.ctx.Err() == nil {
			s.Mine = append(s.Mine, unit)
		}
	}
	return s
}

// open returns the grants there are, in the order of the units.
func (t *tenure) open() []*Grant {
	t.mu.Lock()
	defer t.mu.Unlock()
	grants := make([]*Grant, 0, len(t.grants))
	for _, g := range t.grants {
		grants = append(grants, g)
	}
	slices.SortFunc(grants, func(a, b *Grant) int { return a.Index() - b.Index() })
	return grants
}
