package bus

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

func (b *Bus) decisionRoot() string { return "decisions." + event.Token(b.cfg.Cluster) }

// Decision records stand at
//
//	decisions.<cluster>.<role>.<key's kind>.<ns|_>.<name>.<object's kind>.<ns|_>.<name>
//
// so that one filter finds what the reconciles of one key wrote, another what
// was written to one object, and the stream can keep the last of each.
func (b *Bus) decisionSubject(d *millracev1.Decision) string {
	return b.decisionRoot() + "." + event.Token(d.GetRole()) + "." + place(d.GetKey()) + "." + place(d.GetObject())
}

func place(r *millracev1.ObjectRef) string {
	return placeOf(event.Kind(r.GetKind()), event.Key{Namespace: r.GetNamespace(), Name: r.GetName()})
}

// placeOf spells an object in three tokens.
func placeOf(kind event.Kind, key event.Key) string {
	namespace := "_"
	if key.Namespace != "" {
		namespace = event.Token(key.Namespace)
	}
	return event.Token(string(kind)) + "." + namespace + "." + event.Token(key.Name)
}

// RecordDecision appends one record of what a role decided and did; done is
// called as by Publish and may be nil. A lost record is lost: nothing waits for
// it.
func (b *Bus) RecordDecision(d *millracev1.Decision, done func(seq uint64, err error)) {
	if done == nil {
		done = func(uint64, error) {}
	}
	body, err := proto.Marshal(d)
	if err == nil {
		err = b.fits(nil, body)
	}
	if err != nil {
		b.publisher.refuse(done, err)
		return
	}
	b.publisher.publish(&nats.Msg{Subject: b.decisionSubject(d), Data: body}, done)
}

// Decisions returns the records of an object, oldest first: those of writes to
// it, and those of writes that its own reconciles made.
func (b *Bus) Decisions(ctx context.Context, kind event.Kind, key event.Key) ([]*millracev1.Decision, error) {
	at := placeOf(kind, key)
	found := map[uint64]*millracev1.Decision{}
	for _, filter := range []string{
		b.decisionRoot() + ".*." + at + ".*.*.*",
		b.decisionRoot() + ".*.*.*.*." + at,
	} {
		if err := b.readDecisions(ctx, filter, found); err != nil {
			return nil, fmt.Errorf("reading decisions about %s %s: %w", kind, key, err)
		}
	}
	seqs := make([]uint64, 0, len(found))
	for seq := range found {
		seqs = append(seqs, seq)
	}
	slices.SortFunc(seqs, cmp.Compare[uint64])
	out := make([]*millracev1.Decision, len(seqs))
	for i, seq := range seqs {
		out[i] = found[seq]
	}
	return out, nil
}

func (b *Bus) readDecisions(ctx context.Context, filter string, into map[uint64]*millracev1.Decision) error {
	return b.scan(ctx, b.decisionStream(), filter, func(m *stored) error {
		record := &millracev1.Decision{}
		if err := proto.Unmarshal(m.Data, record); err != nil {
			return errors.Join(errors.New("reading decision: "+m.Subject), err)
		}
		into[m.Seq] = record
		return nil
	})
}
