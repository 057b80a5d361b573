package lease

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// Quick detection of the dead. Unit: time, members. Source: architecture
// section 5; together they find a killed process in 0.2 to 0.5 s.
const (
	probeEvery = 250 * time.Millisecond
	// probeGap lies between the two unanswered probes of a suspect.
	probeGap = 200 * time.Millisecond
	// probeWait is how long an answer is waited for. That it is late says
	// nothing about the one who was asked.
	probeWait = 150 * time.Millisecond
	// probeUp is how long the own connection must have been up: after a restart
	// of NATS everybody looks dead to the first one back. ⚠
	probeUp = 5 * time.Second
	// neighbours is how many members, next in the ring, each one probes.
	neighbours = 2

	askPing   = "ping"
	askStatus = "status"
)

// probing asks the next members in the ring whether they are there.
func (t *tenure) probing() {
	for {
		pause(t.ctx, spread(probeEvery))
		if t.ctx.Err() != nil {
			return
		}
		for _, s := range t.suspects() {
			t.work.Go(func() {
				t.probe(s)
				t.mu.Lock()
				defer t.mu.Unlock()
				delete(t.asking, s.id)
			})
		}
	}
}

// suspect is a member to be probed, with the revision of its key before that: a
// renewal meanwhile refuses the eviction.
type suspect struct {
	id       string
	revision uint64
	others   []string // all living members but it and us
}

// suspects returns the neighbours that are not being probed already.
func (t *tenure) suspects() []suspect {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.caught || t.leaving || t.pulse.rev == 0 || !t.longConnected() {
		return nil
	}
	living := t.own.Living(t.now())
	me, found := slices.BinarySearch(living, t.id)
	if !found {
		return nil
	}
	var out []suspect
	for i := 1; i <= min(neighbours, len(living)-1); i++ {
		id := living[(me+i)%len(living)]
		if t.asking[id] {
			continue
		}
		t.asking[id] = true
		others := slices.DeleteFunc(slices.Clone(living), func(other string) bool { return other == id || other == t.id })
		out = append(out, suspect{id: id, revision: t.revisions[id], others: others})
	}
	return out
}

// longConnected reports whether the connection has been up for long enough to
// judge by it.
func (t *tenure) longConnected() bool {
	since, ok := t.lease.wire.Connected()
	return ok && time.Since(since) >= probeUp
}

// probe evicts s if the server says twice that nobody listens there, while more
// than half of the others answer: then it is s that is gone, and not us.
func (t *tenure) probe(s suspect) {
	first := time.Now()
	if !t.deserted(s.id) {
		return
	}
	answers := make(chan int, 1)
	t.work.Go(func() { answers <- t.answering(s.others) })
	pause(t.ctx, probeGap)
	again := t.deserted(s.id)
	here := 1 + <-answers // and we
	if !again || 2*here <= len(s.others)+1 || !t.longConnected() || t.valid() != nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.launch("m."+s.id, t.evict(s.id, s.revision, sign{first, byEviction}))
}

// deserted reports whether it is certain that nobody listens for id.
func (t *tenure) deserted(id string) bool {
	return errors.Is(t.ping(id), event.ErrNoResponders)
}

// answering counts the members that answer.
func (t *tenure) answering(ids []string) int {
	var here atomic.Int64
	var all sync.WaitGroup
	for _, id := range ids {
		all.Go(func() {
			if t.ping(id) == nil {
				here.Add(1)
			}
		})
	}
	all.Wait()
	return int(here.Load())
}

func (t *tenure) ping(id string) error {
	ctx, cancel := context.WithTimeout(t.ctx, probeWait)
	defer cancel()
	_, err := t.lease.wire.Ask(ctx, MemberSubject(t.lease.cfg.Cluster, t.lease.cfg.Role, id), []byte(askPing))
	return err
}
