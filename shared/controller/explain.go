package controller

import (
	"context"
	"errors"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Where a key can stand.
const (
	StateAtRest  = "at_rest" // nothing is to be done
	StateQueued  = "queued"  // waits for a worker
	StateRunning = "running"
	StateParked  = "parked"       // waits for an input
	StatePaused  = "paused"       // waits for the end of a pause
	StateUnseen  = "unseen_write" // waits to see its own writes come back
	StateRetry   = "retrying"     // failed, and is tried again later
)

// ExplainSubject is where the holder of an object says what it knows of it.
func ExplainSubject(cluster string) string {
	return "millrace." + event.Token(cluster) + ".explain"
}

// answering answers requests on a subject until ctx ends; the connection may not
// be up yet.
func (c *Controller) answering(ctx context.Context, subject string, fn func([]byte) []byte) {
	for ctx.Err() == nil {
		stop, err := c.bus.Answer(subject, c.contained(subject, fn))
		if err == nil {
			<-ctx.Done()
			stop()
			return
		}
		c.log.Debug("answering", "subject", subject, "err", err)
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// contained makes a panic in what a role says be no answer: whoever asks must
// not end the one who works.
func (c *Controller) contained(subject string, fn func([]byte) []byte) func([]byte) []byte {
	answer := func(data []byte) (answer []byte, err error) {
		defer c.contain(&err)
		return fn(data), nil
	}
	return func(data []byte) []byte {
		said, err := answer(data)
		if err != nil {
			c.log.Error("answering panicked", "subject", subject, "err", err)
		}
		return said
	}
}

// explain answers what this member knows of one object; nil, which is no answer,
// where that is nothing.
func (c *Controller) explain(data []byte) []byte {
	var request millracev1.ExplainRequest
	if err := proto.Unmarshal(data, &request); err != nil {
		return nil
	}
	o := request.GetObject()
	kind, key := event.Kind(o.GetKind()), event.Key{Namespace: o.GetNamespace(), Name: o.GetName()}
	answer := c.explained(kind, key)
	if answer == nil {
		return nil
	}
	answer.Mode, answer.Parts = c.modes.mode(), c.partModes()
	answer.Member.Role, answer.Member.Host = c.def.Role, c.def.Host
	b, err := proto.Marshal(answer)
	if err != nil {
		c.log.Error("forming an explanation", "err", err)
	}
	return b
}

func (c *Controller) explained(kind event.Kind, key event.Key) *millracev1.ExplainAnswer {
	if c.wide.Has(kind) && kind != c.def.Kind {
		a := &millracev1.ExplainAnswer{Member: &millracev1.Member{}, Synced: c.wide.Synced()}
		look(a, c.wide, kind, key)
		return a
	}
	at := partition.OfKey(key, c.bus.Partitions())
	if c.def.By == protocol.ByNamespace {
		at = partition.OfNamespace(key, c.bus.Partitions())
	}
	for _, p := range c.partitions() {
		if p.Number() == at && (kind == c.def.Kind || p.cache.Has(kind)) {
			return p.explain(kind, key)
		}
	}
	return nil
}

// look adds what a cache holds of an object.
func look(a *millracev1.ExplainAnswer, from *cache.Cache, kind event.Kind, key event.Key) {
	for _, st := range from.Status() {
		if st.Kind == kind {
			a.Kind = kindStatus(st)
		}
	}
	if uid, version, ok := from.Lookup(kind, key); ok {
		a.Cached = Ref{kind, key, uid, version}.proto()
		a.Opaque = from.Opaque(kind, key)
	}
}

func (p *Partition) explain(kind event.Kind, key event.Key) *millracev1.ExplainAnswer {
	a := &millracev1.ExplainAnswer{
		Member:    &millracev1.Member{Id: p.Member()},
		Partition: uint32(p.Number()), //nolint:gosec // at most 255
		Epoch:     p.Epoch(),
	}
	look(a, p.cache, kind, key)
	if !p.cache.Has(kind) {
		look(a, p.c.wide, kind, key)
	}
	p.mu.Lock()
	at, complete := p.complete()
	a.Synced = complete && at == p.opened
	p.mu.Unlock()
	var keys []event.Key
	if kind == p.c.def.Kind {
		keys = append(keys, key)
	} else if p.c.def.Concerns != nil {
		keys = p.c.def.Concerns(p, kind, key)
	}
	for _, k := range keys {
		a.Keys = append(a.Keys, p.stateOf(k))
	}
	return a
}

// stateOf says where a key stands.
func (p *Partition) stateOf(key event.Key) *millracev1.KeyState {
	s := p.ledger.state(key)
	s.Key = Ref{Kind: p.kindOf(key), Key: key}.proto()
	if p.c.def.Explain != nil {
		s.Notes = p.c.def.Explain(p, key)
	}
	for _, w := range p.ledger.out(key) {
		if !p.seen(w) { // it may have come back since the key ran
			s.Unseen = append(s.Unseen, Ref{w.Kind, w.Key, w.UID, w.Version}.proto())
		}
	}
	if due, ok := p.c.work.due(p.item(key)); ok {
		s.NextTry = durationpb.New(time.Until(due))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	danger, parked := p.parked[key]
	switch {
	case s.GetState() == StateRunning:
	case parked:
		s.State = StateParked
		s.WaitsFor = p.why(danger)
	case p.isPaused(key):
		s.State, s.WaitsFor = StatePaused, s.GetLastError()
	case len(s.GetUnseen()) > 0:
		s.State = StateUnseen
	case s.GetNextTry() != nil && s.GetFailures() > 0:
		s.State = StateRetry
	}
	return s
}

// isPaused reports whether key waits for the end of a pause. p.mu is held.
func (p *Partition) isPaused(key event.Key) bool {
	_, paused := p.paused[key]
	return paused
}

// why says, for people, what a parked key waits for. p.mu is held.
func (p *Partition) why(d Danger) string {
	err := p.gate(d)
	switch {
	case err == nil:
		return "nothing any more"
	case !errors.Is(err, ErrNotSynced):
		return err.Error()
	}
	var missing []string
	for _, from := range []*cache.Cache{p.cache, p.c.wide} {
		for _, st := range from.Status() {
			if st.Problem != "" {
				missing = append(missing, st.Problem)
			}
		}
	}
	if missing == nil {
		return err.Error()
	}
	return strings.Join(missing, "; ")
}
