package controller

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

const (
	// maxInputs is how many inputs a record names. Unit: objects. Source: ours; a
	// record stays below 2 KB.
	maxInputs = 8
	// maxTextBytes is how much of a text a record carries. Unit: bytes. Source: ours;
	// a record stays below 2 KB.
	maxTextBytes = 300
	// recordsQueued is how many records may wait to be sent, recordsFlying how
	// many may be under way. What comes on top is lost, and counted: a record is
	// never worth a write's time. Units: records. Source: ours; a second of the
	// fastest replica.
	recordsQueued = 1024
	recordsFlying = 128
	// lastRecords bounds how long the last records may take to leave when the
	// role ends. Unit: time.
	lastRecords = time.Second
)

// Ref names one object, in one state where Version is not zero.
type Ref struct {
	Kind    event.Kind
	Key     event.Key
	UID     string
	Version uint64
}

func (r Ref) proto() *millracev1.ObjectRef {
	return &millracev1.ObjectRef{Kind: string(r.Kind), Namespace: r.Key.Namespace, Name: r.Key.Name, Uid: r.UID, Version: r.Version}
}

// Decision is one write: taken, refused, or in shadow mode intended.
type Decision struct {
	// Object is what was written, as it is afterwards.
	Object Ref
	// Verb is create, update, patch, patch_status or delete; Base the version it
	// was decided on, zero for a creation.
	Verb string
	Base uint64
	// Rule says which rule of the role asked for it: one of a few short names.
	Rule string
	// Detail says in one line, for people, why; it is cut at a bound.
	Detail string
	// Inputs are what the decision rests on, what matters most first; those over
	// a bound are only counted.
	Inputs []Ref
	// Body is what was sent.
	Body []byte
	// Shadow: nothing was sent.
	Shadow bool
	// Err is what the API server refused it with, and Class its class.
	Err   error
	Class string
}

// Record keeps one write of key for those who ask why. It never blocks and never
// fails: a record that cannot be kept is counted.
func (p *Partition) Record(key event.Key, d Decision) {
	r := p.c.record(d)
	r.Key = Ref{Kind: p.kindOf(key), Key: key}.proto()
	r.Member, r.Epoch = p.Member(), p.Epoch()
	r.Partition = uint32(p.Number()) //nolint:gosec // at most 255
	if cause, ok := p.Changed(key); ok {
		r.Cause = causeProto(&cause)
	}
	if taken := p.ledger.since(key); !taken.IsZero() {
		r.Taken = timestamppb.New(taken)
	}
	if d.Shadow {
		p.shadow.intend(key, r)
	}
	p.c.records.put(r)
}

// record is what there is to say of a write, whoever's it is.
func (c *Controller) record(d Decision) *millracev1.Decision {
	r := &millracev1.Decision{
		Role: c.def.Role, Host: c.def.Host, At: timestamppb.Now(), Object: d.Object.proto(), Verb: d.Verb, Base: d.Base,
		Rule: d.Rule, Detail: oneLine(d.Detail), Outcome: outcomeOf(d), ErrorClass: d.Class,
		BodyBytes: uint32(len(d.Body)), //nolint:gosec // the API server takes 3 MiB
	}
	if len(d.Body) > 0 {
		r.BodyHash = event.HashBody(d.Body)
	}
	if d.Err != nil {
		r.Error = cut(d.Err.Error())
	}
	for _, in := range d.Inputs[:min(maxInputs, len(d.Inputs))] {
		r.Inputs = append(r.Inputs, in.proto())
	}
	r.MoreInputs = uint32(len(d.Inputs) - len(r.Inputs)) //nolint:gosec // not negative
	return r
}

func outcomeOf(d Decision) millracev1.Outcome {
	switch {
	case d.Shadow:
		return millracev1.Outcome_OUTCOME_INTENDED
	case d.Err != nil:
		return millracev1.Outcome_OUTCOME_REFUSED
	default:
		return millracev1.Outcome_OUTCOME_TAKEN
	}
}

func causeProto(c *Cause) *millracev1.Cause {
	at := func(t time.Time) *timestamppb.Timestamp {
		if t.IsZero() {
			return nil
		}
		return timestamppb.New(t)
	}
	m := c.Message
	return &millracev1.Cause{
		Object: Ref{m.Kind, m.Key, m.UID, m.Version}.proto(), Op: m.Op.String(),
		Committed: at(m.Committed), Observed: at(m.Observed), Received: at(c.Received),
	}
}

// oneLine makes a text fit a record.
func oneLine(s string) string { return cut(strings.Join(strings.Fields(s), " ")) }

func cut(s string) string {
	if len(s) > maxTextBytes {
		s = strings.ToValidUTF8(s[:maxTextBytes], "") + "…"
	}
	return s
}

// records sends decision records, without ever making anybody wait.
type records struct {
	bus     Bus
	metrics *metrics
	queue   chan *millracev1.Decision
	flying  chan struct{}
}

func newRecords(bus Bus, m *metrics) *records {
	return &records{
		bus: bus, metrics: m,
		queue: make(chan *millracev1.Decision, recordsQueued), flying: make(chan struct{}, recordsFlying),
	}
}

func (r *records) put(d *millracev1.Decision) {
	select {
	case r.queue <- d:
	default:
		r.metrics.records.WithLabelValues(recordLost).Inc()
	}
}

// run sends until ctx ends, and then what is left, for a moment.
func (r *records) run(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case d := <-r.queue:
			if !r.send(ctx, d) {
				r.put(d)
			}
		case <-ctx.Done():
		}
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastRecords)
	defer cancel()
	for len(r.queue) > 0 {
		if !r.send(last, <-r.queue) {
			r.metrics.records.WithLabelValues(recordLost).Inc()
		}
	}
	for range cap(r.flying) { // all slots are free once nothing is under way
		select {
		case r.flying <- struct{}{}:
		case <-last.Done():
			return
		}
	}
}

// send hands one record to the bus once a slot is free; false if ctx ended first.
func (r *records) send(ctx context.Context, d *millracev1.Decision) bool {
	select {
	case r.flying <- struct{}{}:
	case <-ctx.Done():
		return false
	}
	r.bus.RecordDecision(d, func(_ uint64, err error) {
		<-r.flying
		result := recordKept
		if err != nil {
			result = recordLost
		}
		r.metrics.records.WithLabelValues(result).Inc()
	})
	return true
}
