package bus

import (
	"bytes"
	"context"
	"encoding/json"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	// ackWait is how long a publish waits for the server's answer. Unit: time.
	// Source: answers take under 10 ms; one that is not there after 2 s belongs
	// to a stream without leader.
	ackWait = 2 * time.Second
	// ackCheck is how often overdue answers are looked for. Unit: time.
	ackCheck = 100 * time.Millisecond
)

// publisher sends messages to streams and calls back once for each: with the
// server's answer, or when it is overdue, or when the connection breaks. The
// library's own asynchronous publisher has one call-back for all, retries what
// nobody answered, and stalls its caller.
type publisher struct {
	metrics *metrics
	nc      *nats.Conn
	prefix  string // of the subjects that answers come to

	mu      sync.Mutex
	next    uint64
	pending map[uint64]*flight
	// order lists the pending ids by age; settled ones are skipped.
	order []uint64

	failed  chan struct{} // wakes run
	lost    []loss
	stopped bool // run has ended
}

// flight is one message under way.
type flight struct {
	sent time.Time
	done func(seq uint64, err error)
}

// loss is a flight that failed without an answer from the server.
type loss struct {
	flight *flight
	err    error
}

func newPublisher(m *metrics) *publisher {
	return &publisher{metrics: m, pending: map[uint64]*flight{}, failed: make(chan struct{}, 1)}
}

func (p *publisher) open(nc *nats.Conn) error {
	p.nc = nc
	p.prefix = nc.NewInbox() + "."
	sub, err := nc.Subscribe(p.prefix+"*", p.answered)
	if err != nil {
		return err
	}
	return sub.SetPendingLimits(-1, -1) // as many as there are flights
}

// publish sends msg; done is called exactly once, never from within publish.
func (p *publisher) publish(msg *nats.Msg, done func(seq uint64, err error)) {
	f := &flight{sent: time.Now(), done: done}
	p.mu.Lock()
	p.next++
	id := p.next
	p.pending[id] = f
	p.order = append(p.order, id)
	p.mu.Unlock()

	msg.Reply = p.prefix + strconv.FormatUint(id, 36)
	if err := p.nc.PublishMsg(msg); err != nil {
		p.lose(id, sorted(err))
	}
}

// wait sends msg and waits for the answer. The flight itself is bounded, so a
// context that ends earlier leaves its outcome unknown.
func (p *publisher) wait(ctx context.Context, msg *nats.Msg) (uint64, error) {
	type answer struct {
		seq uint64
		err error
	}
	got := make(chan answer, 1)
	p.publish(msg, func(seq uint64, err error) { got <- answer{seq, err} })
	select {
	case a := <-got:
		return a.seq, a.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// answered takes one answer; nats.go calls it from one goroutine.
func (p *publisher) answered(msg *nats.Msg) {
	id, err := strconv.ParseUint(msg.Subject[len(p.prefix):], 36, 64)
	if err != nil {
		return
	}
	p.mu.Lock()
	f := p.take(id)
	p.mu.Unlock()
	if f == nil {
		return // it was given up
	}
	seq, err := readAck(msg)
	p.settle(f, seq, err)
}

// take removes a flight; nil if there is none. p.mu is held.
func (p *publisher) take(id uint64) *flight {
	f := p.pending[id]
	delete(p.pending, id)
	if len(p.pending) == 0 {
		p.order = p.order[:0]
	}
	return f
}

func (p *publisher) settle(f *flight, seq uint64, err error) {
	p.metrics.publishes.WithLabelValues(resultOf(err)).Inc()
	p.metrics.publishSeconds.Observe(time.Since(f.sent).Seconds())
	f.done(seq, err)
}

// lose hands a flight to run, because its caller may hold what done needs.
func (p *publisher) lose(id uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if f := p.take(id); f != nil {
		p.lost = append(p.lost, loss{f, err})
		p.wake()
	}
}

// refuse reports a message that was never sent.
func (p *publisher) refuse(done func(seq uint64, err error), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lost = append(p.lost, loss{&flight{sent: time.Now(), done: done}, err})
	p.wake()
}

// failAll gives up everything under way.
func (p *publisher) failAll(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		err = ErrClosed // the library reports our own closing later, as a disconnect
	}
	for _, id := range p.order {
		if f := p.pending[id]; f != nil {
			p.lost = append(p.lost, loss{f, err})
		}
	}
	clear(p.pending)
	p.order = p.order[:0]
	p.wake()
}

// wake lets what was lost be reported. p.mu is held.
func (p *publisher) wake() {
	if p.stopped {
		go p.report()
		return
	}
	select {
	case p.failed <- struct{}{}:
	default:
	}
}

// run reports what failed and gives up what is overdue, until ctx ends; then it
// fails the rest, and what comes later is reported by a goroutine each.
func (p *publisher) run(ctx context.Context) {
	ticker := time.NewTicker(ackCheck)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			p.mu.Lock()
			p.stopped = true
			p.mu.Unlock()
			p.failAll(ErrClosed)
			p.report()
			return
		case <-p.failed:
		case <-ticker.C:
			p.expire(time.Now())
		}
		p.report()
	}
}

func (p *publisher) expire(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for len(p.order) > 0 {
		f := p.pending[p.order[0]]
		if f != nil {
			if now.Sub(f.sent) < ackWait {
				return
			}
			p.lost = append(p.lost, loss{f, ErrTimeout})
			delete(p.pending, p.order[0])
		}
		p.order = p.order[1:]
	}
}

func (p *publisher) report() {
	p.mu.Lock()
	lost := p.lost
	p.lost = nil
	p.mu.Unlock()
	for _, l := range lost {
		p.settle(l.flight, 0, l.err)
	}
}

var seqField = []byte(`"seq":`)

// readAck reads the server's answer to a publish. The common case, {"stream":
// "K8S_default","seq":5}, is read without the JSON package, which would cost as
// much as the rest of the path.
func readAck(msg *nats.Msg) (uint64, error) {
	if len(msg.Data) == 0 && msg.Header.Get("Status") == "503" {
		return 0, sorted(nats.ErrNoResponders)
	}
	if i := bytes.Index(msg.Data, seqField); i > 0 && bytes.HasPrefix(msg.Data, []byte(`{"stream":"`)) {
		n, digits := uint64(0), msg.Data[i+len(seqField):]
		for _, c := range digits {
			if c < '0' || c > '9' {
				break
			}
			n = n*10 + uint64(c-'0')
		}
		if n > 0 {
			return n, nil
		}
	}
	var ack struct {
		Error *jetstream.APIError `json:"error"`
		Seq   uint64              `json:"seq"`
	}
	if err := json.Unmarshal(msg.Data, &ack); err != nil {
		return 0, jetstream.ErrInvalidJSAck
	}
	if ack.Error != nil {
		return 0, sorted(ack.Error)
	}
	if ack.Seq == 0 {
		return 0, jetstream.ErrInvalidJSAck
	}
	return ack.Seq, nil
}
