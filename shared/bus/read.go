package bus

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// How a feed reads. Source: docs/design, measured: nats.md section 10.
const (
	// createWait bounds the creation of a consumer; a slow server gets a new
	// name instead. Unit: time.
	createWait = 500 * time.Millisecond
	// inactiveLife is how long the server keeps a feed nobody reads. Unit: time.
	inactiveLife = 15 * time.Second
	// pullMessages is how many messages are asked for at once; half that many
	// are on their way when the next are asked for. Unit: messages. Source:
	// BenchmarkFeed.
	pullMessages = 256
	// room is for the messages and status words of one reading. It holds twice
	// what two pulls bring; what does not fit is dropped, and found missing.
	room = 4 * pullMessages
	// beat is how often the server speaks when there is nothing to deliver, and
	// pullExpiry how long it keeps a pull. Unit: time.
	beat       = time.Second
	pullExpiry = 5 * time.Second
	// silentTicks of half a beat end a reading: 2 to 2.5 s.
	silentTicks = 5
)

var (
	// errGone means that a reading's consumer does not exist any more.
	errGone = fmt.Errorf("%w: consumer is gone", ErrGap)
	// errSilent means that the server has missed two beats on a connection that
	// seems to live.
	errSilent = fmt.Errorf("%w: no heartbeat", ErrGap)
	// errEnough ends a reading without an error.
	errEnough = errors.New("enough")
)

// reading is one ephemeral consumer to be read from the first message on.
type reading struct {
	stream      string
	name        string // never used before
	filters     []string
	headersOnly bool
	// idle, if there is one, is called at each heartbeat: nothing is on its way.
	// ⚠ What was pending with the last message may have expired since, and then
	// no message comes that would tell.
	idle func() error
}

// delivery is one message of a reading.
type delivery struct {
	*nats.Msg
	Seq     uint64    // in the stream
	Pending uint64    // messages still to come, as far as the server knows
	Stored  time.Time // when, by the server's clock
}

// read creates the consumer, calls opened with the number of messages that wait,
// then got for each message in stream order, until got returns an error, ctx
// ends, or the flow breaks. Consumer sequences run 1, 2, 3, and each heartbeat
// names the last one; anything else is ErrGap.
//
// It pulls by itself. The library's iterator hides the heartbeats, and with them
// that the last message was lost with a connection ⚠; its ordered consumer
// resumes silently after a wipe and then misses deletions; its watch on a bucket
// needs up to 18 s to notice a restarted server.
func (b *Bus) read(ctx context.Context, r reading, opened func(pending uint64) error, got func(delivery) error) error {
	changes, cancel := b.Changes()
	defer cancel()
	p := puller{bus: b, reading: r, opened: b.State().Generation, msgs: make(chan *nats.Msg, room)}
	pending, err := b.createReader(ctx, r)
	if err != nil {
		return err
	}
	defer b.deleteReader(r)
	if err := p.open(); err != nil {
		return err
	}
	defer p.close()
	if err := opened(pending); err != nil {
		return enough(err)
	}
	return enough(p.run(ctx, changes, got))
}

func enough(err error) error {
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

func (b *Bus) createReader(ctx context.Context, r reading) (pending uint64, err error) {
	ctx, cancel := context.WithTimeout(ctx, createWait)
	defer cancel()
	config := jetstream.ConsumerConfig{
		Name:              r.name,
		DeliverPolicy:     jetstream.DeliverAllPolicy,
		AckPolicy:         jetstream.AckNonePolicy,
		HeadersOnly:       r.headersOnly,
		InactiveThreshold: inactiveLife,
		MemoryStorage:     true,
		Replicas:          1,
	}
	if len(r.filters) == 1 { // a single filter is part of the request's subject, and so of a user's rights
		config.FilterSubject = r.filters[0]
	} else {
		config.FilterSubjects = r.filters
	}
	consumer, err := b.js.CreateConsumer(ctx, r.stream, config)
	if err != nil {
		return 0, fmt.Errorf("creating consumer %s: %w", r.name, sorted(err))
	}
	return consumer.CachedInfo().NumPending, nil
}

// deleteReader asks for the consumer to go and does not wait: what is left
// behind goes by itself after inactiveLife.
func (b *Bus) deleteReader(r reading) {
	_ = b.nc.Publish("$JS.API.CONSUMER.DELETE."+r.stream+"."+r.name, nil)
}

// puller pulls the messages of one reading.
type puller struct {
	reading
	bus    *Bus
	sub    *nats.Subscription
	inbox  string
	msgs   chan *nats.Msg
	opened uint64 // generation of the connection last pulled on
	due    int    // messages asked for and not here yet
	last   uint64 // consumer sequence of the last message
	quiet  int    // ticks without a word
}

func (p *puller) open() error {
	p.inbox = p.bus.nc.NewInbox()
	sub, err := p.bus.nc.ChanSubscribe(p.inbox, p.msgs)
	p.sub = sub
	return sorted(err)
}

func (p *puller) close() { _ = p.sub.Unsubscribe() } // fails only when the bus is closed

func (p *puller) run(ctx context.Context, changes <-chan struct{}, got func(delivery) error) error {
	ticker := time.NewTicker(beat / 2)
	defer ticker.Stop()
	p.pull()
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-changes:
			p.relink()
		case <-ticker.C:
			if p.quiet++; p.quiet >= silentTicks {
				return errSilent
			}
			if !p.bus.State().Connected {
				p.quiet = 0 // nobody can speak; whether we missed something is seen afterwards
			}
		case msg := <-p.msgs:
			if err := p.take(msg, got); err != nil {
				return err
			}
		}
	}
}

// relink pulls anew on a new connection: the server forgets the pulls of the one
// before. A cut alone breaks nothing; what was lost with it is found by the next
// message or heartbeat, and a consumer that is gone answers at once.
func (p *puller) relink() {
	if s := p.bus.State(); s.Connected && s.Generation != p.opened {
		p.opened, p.due, p.quiet = s.Generation, 0, 0
		p.pull()
	}
}

// pull asks for more once half of the last is here.
func (p *puller) pull() {
	if p.due > pullMessages/2 {
		return
	}
	request := `{"batch":` + strconv.Itoa(pullMessages-p.due) +
		`,"expires":` + strconv.FormatInt(int64(pullExpiry), 10) +
		`,"idle_heartbeat":` + strconv.FormatInt(int64(beat), 10) + `}`
	p.due = pullMessages
	// One that cannot be sent is sent again with the next connection.
	_ = p.bus.nc.PublishRequest("$JS.API.CONSUMER.MSG.NEXT."+p.stream+"."+p.name, p.inbox, []byte(request))
}

func (p *puller) take(msg *nats.Msg, got func(delivery) error) error {
	p.quiet = 0
	if msg.Reply == "" {
		return p.status(msg)
	}
	meta, err := msg.Metadata()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrGap, err)
	}
	if meta.Sequence.Consumer != p.last+1 {
		return fmt.Errorf("%w: message %d came where %d was due", ErrGap, meta.Sequence.Consumer, p.last+1)
	}
	p.last++
	p.due = max(p.due-1, 0)
	p.pull()
	return got(delivery{msg, meta.Sequence.Stream, meta.NumPending, meta.Timestamp})
}

// status reads a word of the server about a pull. One that is not known ends the
// reading, which costs a replay; to go on could cost a message.
func (p *puller) status(msg *nats.Msg) error {
	switch code := msg.Header.Get("Status"); code {
	case "100":
		return p.heartbeat(msg)
	case "408", "409": // a pull has ended, by time or with its connection
		left, err := strconv.Atoi(msg.Header.Get("Nats-Pending-Messages"))
		if err != nil {
			return fmt.Errorf("%w: %s", errGone, msg.Header.Get("Description"))
		}
		p.due = max(p.due-left, 0)
		p.pull()
		return nil
	case "503":
		return errGone
	default:
		return fmt.Errorf("%w: status %s %s", ErrGap, code, msg.Header.Get("Description"))
	}
}

// heartbeat compares the last message that the server has sent with the last one
// that came: they share one subscription, so none is still on its way.
func (p *puller) heartbeat(msg *nats.Msg) error {
	sent, err := strconv.ParseUint(msg.Header.Get("Nats-Last-Consumer"), 10, 64)
	if err != nil {
		return fmt.Errorf("%w: heartbeat without a sequence", ErrGap)
	}
	if sent != p.last {
		return fmt.Errorf("%w: message %d was sent, %d is the last that came", ErrGap, sent, p.last)
	}
	if p.idle != nil {
		return p.idle()
	}
	return nil
}

// complete reports whether everything that now stands under filters was
// delivered, given that the reading has come as far as seq: the last message of
// each filter is not behind it. A message that replaced another ahead of the
// reading is why "nothing pending" is not enough.
func (b *Bus) complete(ctx context.Context, stream string, filters []string, seq uint64) (bool, error) {
	for _, filter := range filters {
		last, err := b.lastSeq(ctx, stream, filter)
		if err != nil && !errors.Is(err, ErrNone) {
			return false, err
		}
		if last > seq {
			return false, nil
		}
	}
	return true, nil
}

// lastSeq is the sequence of the last message under filter; ErrNone if there is
// none. It comes without the body.
func (b *Bus) lastSeq(ctx context.Context, stream, filter string) (uint64, error) {
	m, err := b.getRaw(ctx, stream, map[string]any{"last_by_subj": filter, "no_hdr": true})
	if err != nil {
		return 0, err
	}
	return m.Seq, nil
}
