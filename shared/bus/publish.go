package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/shared/event"
)

// Publication is one event to publish.
type Publication struct {
	Message event.Message
	// PK and PN are the partitions of the object's key and of its namespace; a
	// bookmark stands by Message.Slice instead.
	PK, PN int
	// Expect is the sequence of the last message of the subject; 0: there is
	// none.
	Expect uint64
	// TTL makes the message vanish by itself, for tombstones. Unit: time, at
	// least 1 s; 0: it stays.
	TTL time.Duration
}

// Publish sends an event and returns; it blocks for at most the time one write
// to the socket may take. done is called exactly once, from another goroutine
// that all publications share, so it must be short: with the stream sequence, or
// with ErrRefused, ErrTooLarge or ErrFull, which wrote nothing; after any other
// error the outcome is unknown and the caller must read Last.
//
// Publications are sent in the order of the calls. Nothing is kept while the
// server is away ⚠.
func (b *Bus) Publish(p Publication, done func(seq uint64, err error)) {
	h, body, err := encode(p.Message)
	if err == nil {
		err = b.fits(h, body)
	}
	if err != nil {
		b.publisher.refuse(done, err)
		return
	}
	b.publisher.publish(&nats.Msg{
		Subject: b.subjectOf(p),
		Header:  conditions(h, p.Expect, p.TTL),
		Data:    body,
	}, done)
}

func (b *Bus) subjectOf(p Publication) string {
	if p.Message.Op == event.Bookmark {
		return event.BookmarkSubject(b.root, p.Message.Kind, p.Message.Slice)
	}
	return event.Subject(b.root, p.Message.Kind, p.Message.Key, p.PK, p.PN)
}

// conditions adds what the server must check and keep to headers.
func conditions(h nats.Header, expect uint64, ttl time.Duration) nats.Header {
	h[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(expect, 10)}
	if ttl > 0 {
		h[jetstream.MsgTTLHeader] = []string{ttl.String()}
	}
	return h
}

// fits refuses what neither the stream nor the server would take. 256 bytes are
// left for the headers of the server's conditions.
func (b *Bus) fits(h nats.Header, body []byte) error {
	size := 256 + len(body)
	for name, values := range h {
		size += len(name) + len(values[0]) + 4
	}
	limit := int64(maxMessageBytes)
	if server := b.State().MaxPayload; server > 0 {
		limit = min(limit, server)
	}
	if int64(size) > limit {
		return fmt.Errorf("%w: %d bytes, %d are allowed", ErrTooLarge, size, limit)
	}
	return nil
}

// Last returns the last message of an object's subject, body included; ErrNone
// if there is none. It asks the leader of the stream, so it sees every publish
// that was acknowledged.
func (b *Bus) Last(ctx context.Context, kind event.Kind, key event.Key) (event.Message, error) {
	return b.last(ctx, event.Subject(b.root, kind, key, b.pk(key), b.pn(key)))
}

// LastMark returns the last bookmark of a slice; ErrNone if there is none.
func (b *Bus) LastMark(ctx context.Context, kind event.Kind, slice int) (event.Message, error) {
	return b.last(ctx, event.BookmarkSubject(b.root, kind, slice))
}

// Peek is Last without the body and without the leader: any server of a cluster
// may answer, one that lags by what it lags. It is for whoever may read one
// object at a time and nothing else: the subject is part of the request's.
func (b *Bus) Peek(ctx context.Context, kind event.Kind, key event.Key) (event.Message, error) {
	ctx, cancel := bounded(ctx)
	defer cancel()
	subject := event.Subject(b.root, kind, key, b.pk(key), b.pn(key))
	msg, err := b.nc.RequestWithContext(ctx, "$JS.API.DIRECT.GET."+b.eventStream()+"."+subject, nil)
	if err != nil {
		return event.Message{}, fmt.Errorf("reading last message of %s: %w", subject, sorted(err))
	}
	switch code := msg.Header.Get("Status"); code {
	case "":
	case "404":
		return event.Message{}, fmt.Errorf("reading last message of %s: %w", subject, ErrNone)
	default:
		return event.Message{}, fmt.Errorf("reading last message of %s: status %s %s", subject, code, msg.Header.Get("Description"))
	}
	m, err := decode(b.root, msg.Header.Get(jetstream.SubjectHeader), msg.Header, nil, true)
	if err != nil {
		return event.Message{}, err
	}
	m.Seq, err = strconv.ParseUint(msg.Header.Get(jetstream.SequenceHeader), 10, 64)
	if err != nil {
		return event.Message{}, fmt.Errorf("reading last message of %s: %w", subject, err)
	}
	return m, nil
}

func (b *Bus) last(ctx context.Context, subject string) (event.Message, error) {
	raw, err := b.lastRaw(ctx, b.eventStream(), subject)
	if err != nil {
		return event.Message{}, err
	}
	m, err := decode(b.root, raw.Subject, raw.header, raw.Data, false)
	if err != nil {
		return event.Message{Seq: raw.Seq}, err
	}
	m.Seq = raw.Seq
	return m, nil
}

// stored is a message as the server tells it.
type stored struct {
	Subject string    `json:"subject"`
	Seq     uint64    `json:"seq"`
	Headers []byte    `json:"hdrs"`
	Data    []byte    `json:"data"`
	Time    time.Time `json:"time"`
	header  nats.Header
}

// lastRaw reads the last message that matches filter from the stream's leader.
// Not by "direct get", which a lagging peer may answer.
func (b *Bus) lastRaw(ctx context.Context, stream, filter string) (*stored, error) {
	m, err := b.getRaw(ctx, stream, map[string]any{"last_by_subj": filter})
	if err != nil {
		return nil, fmt.Errorf("reading last message of %s: %w", filter, err)
	}
	return m, nil
}

// scan reads the messages that match filter one by one, the oldest first. It is
// for few: a reader that may only ask for messages needs no right to make a
// consumer, which could send what it reads anywhere.
func (b *Bus) scan(ctx context.Context, stream, filter string, got func(*stored) error) error {
	for seq := uint64(1); ; {
		m, err := b.getRaw(ctx, stream, map[string]any{"seq": seq, "next_by_subj": filter})
		switch {
		case errors.Is(err, ErrNone):
			return nil
		case err != nil:
			return fmt.Errorf("reading messages of %s: %w", filter, err)
		}
		if err := got(m); err != nil {
			return err
		}
		seq = m.Seq + 1
	}
}

func (b *Bus) getRaw(ctx context.Context, stream string, which map[string]any) (*stored, error) {
	request, err := json.Marshal(which)
	if err != nil {
		return nil, err
	}
	var reply struct {
		Message *stored `json:"message"`
	}
	if err := b.api(ctx, "STREAM.MSG.GET."+stream, request, &reply); err != nil {
		return nil, err
	}
	if reply.Message == nil {
		return nil, errors.New("empty answer")
	}
	if len(reply.Message.Headers) > 0 {
		if reply.Message.header, err = nats.DecodeHeadersMsg(reply.Message.Headers); err != nil {
			return nil, err
		}
	}
	return reply.Message, nil
}

// api sends one raw request of the JetStream API and reads its answer. Raw,
// because the library asks for stream information first, which a role need not
// be allowed.
func (b *Bus) api(ctx context.Context, what string, request []byte, reply any) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	msg, err := b.nc.RequestWithContext(ctx, "$JS.API."+what, request)
	if err != nil {
		return sorted(err)
	}
	var failure struct {
		Error *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(msg.Data, &failure); err != nil {
		return fmt.Errorf("reading answer: %w", err)
	}
	if failure.Error != nil {
		return sorted(failure.Error)
	}
	if reply == nil {
		return nil
	}
	return json.Unmarshal(msg.Data, reply)
}
