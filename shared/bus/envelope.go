package bus

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// WireVersion is the version of everything this build writes to the bus. It
// reads this one and the one before, and refuses newer ones.
const WireVersion = 1

// oldestWire is the oldest version this build reads.
const oldestWire = max(1, WireVersion-1)

// The headers of an event. They are on the wire: a name is never used again with
// another meaning, unknown ones are ignored, and those that a message does not
// need are left out. Short, because a replay parses them by the million.
const (
	headerWire       = "Mr-Wire"       // wire version, decimal
	headerOp         = "Mr-Op"         // put, delete, opaque or bookmark
	headerUID        = "Mr-Uid"        // metadata.uid
	headerVersion    = "Mr-Version"    // resourceVersion, decimal
	headerUpto       = "Mr-Upto"       // resourceVersion, decimal
	headerEpoch      = "Mr-Epoch"      // epoch of the watcher's lease, decimal
	headerHash       = "Mr-Hash"       // event.HashBody of the body, hexadecimal
	headerProjection = "Mr-Projection" // version of the projection, decimal
	headerObserved   = "Mr-Observed"   // µs since 1970, watcher's clock
	headerCommitted  = "Mr-Committed"  // µs since 1970, API server's clock
	headerTrace      = "traceparent"   // W3C trace context
)

// encode writes a message as headers and body. It fails only for a message that
// no decoder would take.
func encode(m event.Message) (nats.Header, []byte, error) {
	body := m.Body
	switch m.Op {
	case event.Put:
	case event.Delete, event.Opaque:
		if len(body) != 0 {
			return nil, nil, fmt.Errorf("encoding %s of %s: it has a body", m.Op, m.Key)
		}
	case event.Bookmark:
		if m.Mark == nil {
			return nil, nil, errors.New("encoding bookmark: it has no mark")
		}
		var err error
		if body, err = encodeMark(m.Mark); err != nil {
			return nil, nil, fmt.Errorf("encoding bookmark: %w", err)
		}
	default:
		return nil, nil, fmt.Errorf("encoding %s: op %d is unknown", m.Key, m.Op)
	}
	// One slice holds all values, so that twelve headers cost two allocations
	// beside the numbers.
	values := make([]string, 0, 12)
	h := make(nats.Header, 12)
	set := func(name, value string) {
		values = append(values, value)
		h[name] = values[len(values)-1 : len(values) : len(values)]
	}
	setNumber := func(name string, n uint64) {
		if n != 0 {
			set(name, strconv.FormatUint(n, 10))
		}
	}
	set(headerWire, strconv.Itoa(WireVersion))
	set(headerOp, m.Op.String())
	if m.UID != "" {
		set(headerUID, m.UID)
	}
	setNumber(headerVersion, m.Version)
	setNumber(headerUpto, m.Upto)
	setNumber(headerEpoch, m.Epoch)
	if m.Hash != 0 {
		set(headerHash, strconv.FormatUint(m.Hash, 16))
	}
	setNumber(headerProjection, uint64(m.Projection))
	if !m.Observed.IsZero() {
		set(headerObserved, strconv.FormatInt(m.Observed.UnixMicro(), 10))
	}
	if !m.Committed.IsZero() {
		set(headerCommitted, strconv.FormatInt(m.Committed.UnixMicro(), 10))
	}
	if m.Trace != "" {
		set(headerTrace, m.Trace)
	}
	return h, body, nil
}

// decode is the inverse of encode: it reads what a subject, headers and body
// say. bare means that the body was not delivered, so a bookmark has no Mark.
func decode(root, subject string, h nats.Header, body []byte, bare bool) (event.Message, error) {
	place, err := event.ParseSubject(root, subject)
	if err != nil {
		return event.Message{}, err
	}
	r := reader{header: h}
	if wire := r.number(headerWire, 10, 32); r.err == nil && (wire < oldestWire || wire > WireVersion) {
		return event.Message{}, fmt.Errorf("%w: the message has %d, this build reads %d", ErrWireVersion, wire, WireVersion)
	}
	m := event.Message{
		Kind:       place.Kind,
		Key:        place.Key,
		Op:         r.op(),
		UID:        r.text(headerUID),
		Version:    r.number(headerVersion, 10, 64),
		Upto:       r.number(headerUpto, 10, 64),
		Epoch:      r.number(headerEpoch, 10, 64),
		Hash:       r.number(headerHash, 16, 64),
		Projection: uint32(r.number(headerProjection, 10, 32)), //nolint:gosec // 32 bits were asked for
		Observed:   r.micros(headerObserved),
		Committed:  r.micros(headerCommitted),
		Trace:      r.text(headerTrace),
	}
	if r.err != nil {
		return event.Message{}, fmt.Errorf("decoding %s: %w", subject, r.err)
	}
	if place.Bookmark != (m.Op == event.Bookmark) {
		return event.Message{}, fmt.Errorf("decoding %s: %s stands in the wrong place", subject, m.Op)
	}
	switch {
	case m.Op == event.Put:
		m.Body = body
	case len(body) != 0 && m.Op != event.Bookmark:
		return event.Message{}, fmt.Errorf("decoding %s: %s has a body", subject, m.Op)
	case m.Op == event.Bookmark:
		m.Slice = place.PK
		if !bare {
			if m.Mark, err = decodeMark(body); err != nil {
				return event.Message{}, fmt.Errorf("decoding %s: %w", subject, err)
			}
		}
	}
	return m, nil
}

// reader reads headers and keeps the first error.
type reader struct {
	header nats.Header
	err    error
}

func (r *reader) text(name string) string {
	if v := r.header[name]; len(v) > 0 {
		return v[0]
	}
	return ""
}

func (r *reader) number(name string, base, bits int) uint64 {
	s := r.text(name)
	if s == "" {
		return 0
	}
	n, err := strconv.ParseUint(s, base, bits)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("header %s: %w", name, err)
	}
	return n
}

func (r *reader) micros(name string) time.Time {
	s := r.text(name)
	if s == "" {
		return time.Time{}
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("header %s: %w", name, err)
	}
	return time.UnixMicro(n).UTC()
}

func (r *reader) op() event.Op {
	switch s := r.text(headerOp); s {
	case "put":
		return event.Put
	case "delete":
		return event.Delete
	case "opaque":
		return event.Opaque
	case "bookmark":
		return event.Bookmark
	default:
		if r.err == nil {
			r.err = fmt.Errorf("header %s: %q is unknown", headerOp, s)
		}
		return 0
	}
}

func encodeMark(m *event.Mark) ([]byte, error) {
	return proto.Marshal(&millracev1.Mark{
		Counter:     m.Counter,
		Absent:      m.Absent,
		ByKey:       encodeSums(m.ByKey),
		ByNamespace: encodeSums(m.ByNamespace),
	})
}

func encodeSums(s event.Sums) *millracev1.Sums {
	return &millracev1.Sums{Count: s.Count, Existence: s.Existence, Exact: s.Exact}
}

func decodeMark(body []byte) (*event.Mark, error) {
	var m millracev1.Mark
	if err := proto.Unmarshal(body, &m); err != nil {
		return nil, fmt.Errorf("reading mark: %w", err)
	}
	return &event.Mark{
		Counter:     m.GetCounter(),
		Absent:      m.GetAbsent(),
		ByKey:       decodeSums(m.GetByKey()),
		ByNamespace: decodeSums(m.GetByNamespace()),
	}, nil
}

func decodeSums(s *millracev1.Sums) event.Sums {
	return event.Sums{Count: s.GetCount(), Existence: s.GetExistence(), Exact: s.GetExact()}
}
