package lease

import (
	"context"
	"sync"
	"time"
)

// leave gives everything up on purpose. The member first renews and then takes
// its key away: from then on the others share its units among themselves and
// claim each as it is released, while the leases not yet released stay its own
// for what is left of one TTL, because nobody may call it dead before. Holds
// that have not returned by then are cut off. The last word is an empty member
// key: nobody has to wait.
func (t *tenure) leave() {
	t.mu.Lock()
	t.leaving = true
	t.mu.Unlock()
	t.log.Info("leaving")
	grants := t.open()
	for _, g := range grants {
		g.askToDrain()
	}
	signal(t.renewNow)
	<-t.silent
	joined := t.revision() != 0
	if joined {
		t.bow()
	}
	t.awaitDrained(grants)
	if joined {
		t.close()
	}
}

// bow takes the own member key away.
func (t *tenure) bow() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), writeWait)
	defer cancel()
	if err := t.lease.bucket.Delete(ctx, t.key, t.revision()); err != nil {
		t.log.Debug("leaving", "err", err) // the others wait for a TTL
	}
}

func (t *tenure) revision() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.pulse.rev
}

// awaitDrained waits until every hold has returned and its lease is released.
func (t *tenure) awaitDrained(grants []*Grant) {
	left := time.NewTimer(time.Duration(t.deadline.Load()) - t.lease.boot())
	defer left.Stop()
	expired := left.C
	for _, g := range grants {
		select {
		case <-g.done:
			continue
		case <-expired:
			expired = nil
		}
		for _, late := range grants {
			t.cutOff(late)
		}
		<-g.done
	}
}

func (t *tenure) cutOff(g *Grant) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.drop(g, lostExpired)
}

// close marks the own member key as dead.
func (t *tenure) close() {
	for _, expect := range []uint64{0, t.revision()} {
		if _, err := t.put(t.key, nil, expect, evictedTTL); err == nil {
			return
		}
	}
	t.log.Debug("leaving without a last word")
}

// abandon gives up, at once, what is left of a membership that was lost, so that
// nobody has to find it dead: its key, should it still stand there, and its
// leases.
func (t *tenure) abandon() {
	begun := time.Now()
	if rev := t.revision(); rev != 0 {
		_, _ = t.put(t.key, nil, rev, evictedTTL) // refused where it is gone
	}
	t.mu.Lock()
	held := map[string]uint64{}
	for unit, g := range t.grants {
		held[unit] = g.epoch
	}
	t.grants = map[string]*Grant{}
	t.mu.Unlock()
	var all sync.WaitGroup
	for unit, epoch := range held {
		all.Go(func() {
			t.lanes <- struct{}{}
			defer func() { <-t.lanes }()
			if time.Since(begun) < writeWait { // the bucket answers
				t.giveUp(unit, epoch) // one try: the membership has ended
			}
		})
	}
	all.Wait()
}
