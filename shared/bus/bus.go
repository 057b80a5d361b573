// Package bus is all of NATS: the connection, the streams and buckets declared
// as data, publishing by compare-and-set, feeds, leases' key-value store and the
// small requests between members. It refuses to know what the messages mean, and
// nothing outside this room may name NATS.
//
// Three rules run through it. Nothing is buffered while the server is away: a
// write either reached it or failed (⚠ a buffered old object would overwrite a
// newer one after the reconnect). Sequences never repeat, not even over a wiped
// store. And whoever reads is told when the flow was broken, because a reader
// that resumes silently misses deletions.
package bus

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

const (
	// requestWait bounds one request to the server where the caller's context
	// does not. Unit: time. Source: a healthy server answers in under 10 ms; a
	// stream that changes its leader takes 4 to 6 s and is asked again.
	requestWait = 2 * time.Second

	// drainWait is how long Close lets outgoing bytes leave. Unit: time.
	drainWait = time.Second
)

// Bus is one connection to NATS. It is safe for concurrent use.
type Bus struct {
	cfg     Config
	name    string
	root    string
	log     *slog.Logger
	metrics *metrics

	nc        *nats.Conn
	js        jetstream.JetStream
	link      *link
	publisher *publisher
	unique    string        // names this life of this connection
	feeds     atomic.Uint64 // makes every feed's name new

	stop  context.CancelFunc
	tasks sync.WaitGroup
	once  sync.Once
}

// Connect opens the bus under the name of a role. It fails only for a
// configuration that cannot work; while the server is away it returns a Bus that
// keeps trying, and every operation says ErrDisconnected at once.
//
// reg receives the bus's metrics: two buses in one process need registerers that
// add different labels. log and reg may be nil. ctx bounds nothing but this call.
func Connect(ctx context.Context, cfg Config, name string, log *slog.Logger, reg prometheus.Registerer) (*Bus, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	b := &Bus{
		cfg:     cfg,
		name:    name,
		unique:  rand.Text(),
		root:    event.Root(cfg.Cluster),
		log:     log,
		metrics: newMetrics(reg),
	}
	if err := b.open(context.WithoutCancel(ctx)); err != nil {
		return nil, fmt.Errorf("opening connection to %s: %w", cfg.redactedURL(), err)
	}
	return b, nil
}

// open dials and starts what runs beside the connection, until Close.
func (b *Bus) open(ctx context.Context) error {
	options, err := b.options()
	if err != nil {
		return err
	}
	run, stop := context.WithCancel(ctx)
	b.stop = stop
	b.link = newLink()
	b.publisher = newPublisher(b.metrics)
	if b.nc, err = nats.Connect(b.cfg.URL, options...); err != nil {
		stop()
		return err
	}
	if b.js, err = jetstream.New(b.nc, jetstream.WithDefaultTimeout(requestWait)); err != nil {
		b.nc.Close()
		stop()
		return err
	}
	if err := b.publisher.open(b.nc); err != nil {
		b.nc.Close()
		stop()
		return err
	}
	b.tasks.Go(func() { b.publisher.run(run) })
	b.tasks.Go(func() { b.proveLink(run) })
	return nil
}

// Close lets outgoing bytes leave, fails what is still waiting for an answer and
// closes the connection. It may be called more than once.
func (b *Bus) Close() {
	b.once.Do(func() {
		if b.nc.IsConnected() {
			_ = b.nc.FlushTimeout(drainWait) // what did not leave is reported as failed below
		}
		b.nc.Close()
		b.publisher.failAll(ErrClosed)
		b.stop()
		b.tasks.Wait()
		b.link.set(false, "", 0)
		b.metrics.connected.Set(0)
	})
}

// Cluster returns the cluster id, as configured.
func (b *Bus) Cluster() string { return b.cfg.Cluster }

// Partitions returns P, as configured; Verify compares it with the streams.
func (b *Bus) Partitions() int { return b.cfg.Partitions }

// Root returns the first tokens of every event subject: event.Root(Cluster()).
func (b *Bus) Root() string { return b.root }

func (b *Bus) pk(key event.Key) int { return partition.OfKey(key, b.cfg.Partitions) }
func (b *Bus) pn(key event.Key) int { return partition.OfNamespace(key, b.cfg.Partitions) }

// bounded gives ctx a deadline if it has none.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, requestWait)
}
