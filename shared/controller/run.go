package controller

import (
	"context"
	"crypto/rand"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// Controller is one role of this process.
type Controller struct {
	cfg     Config
	def     Definition
	bus     Bus
	log     *slog.Logger
	metrics *metrics
	seed    maphash.Seed

	work     *work
	asker    *asker
	letters  *letters
	records  *records
	modes    *modes
	parts    map[string]*modes // by name
	wide     *cache.Cache
	wideFeed *feed
	ready    chan struct{} // closed when the wide inputs were complete for the first time
	once     sync.Once

	mu     sync.Mutex
	held   map[*Partition]struct{}
	jobs   map[*Job]struct{}
	giving *time.Timer   // gives memory back
	moved  chan struct{} // closed when a mode changes
	closed chan struct{} // closed when a job is held no more
}

// New returns a role that does not run yet. It fails only for a configuration or
// definition that cannot work. log and reg may be nil.
func New(cfg Config, def Definition, bus Bus, log *slog.Logger, reg prometheus.Registerer) (*Controller, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if err := def.validate(); err != nil {
		return nil, err
	}
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	log = log.With("role", def.Role)
	c := &Controller{
		cfg: cfg, def: def, bus: bus, log: log, metrics: newMetrics(reg), seed: maphash.MakeSeed(),
		work:  newWork(def.Role),
		asker: newAsker(bus),
		ready: make(chan struct{}),
		held:  make(map[*Partition]struct{}),
		jobs:  make(map[*Job]struct{}),
		moved: make(chan struct{}), closed: make(chan struct{}),
	}
	c.letters = newLetters(bus, def.Role, log, c.metrics)
	c.records = newRecords(bus, c.metrics)
	c.modes = newModes(ModeKey(def.Role), cfg.Mode, log)
	c.modes.turned = c.turned
	c.parts = c.newParts()
	c.wideFeed = c.newFeed(log, c.feedOfWide())
	c.wideFeed.moved = c.wideMoved
	scope := protocol.Scope{By: protocol.Whole, Partitions: bus.Partitions()}
	c.wide = c.wideFeed.fill(scope, def.Wide, c.wideChanged, c.wideMarked)
	if len(def.Wide) == 0 {
		close(c.ready)
	}
	if reg != nil {
		reg.MustRegister(newCollector(c))
	}
	return c, nil
}

// Run runs a role until ctx ends: New and Serve.
func Run[G Grant](ctx context.Context, cfg Config, def Definition, bus Bus, l Lease[G], log *slog.Logger, reg prometheus.Registerer) error {
	c, err := New(cfg, def, bus, log, reg)
	if err != nil {
		return err
	}
	return Serve(ctx, c, l)
}

// Serve runs a role until ctx ends and every partition has been handed over, or
// until l fails.
func Serve[G Grant](ctx context.Context, c *Controller, l Lease[G]) error {
	run, stop := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	defer tasks.Wait()
	defer c.work.close()
	defer stop()
	tasks.Go(func() { c.asker.run(run) })
	tasks.Go(func() { c.letters.run(run) })
	tasks.Go(func() { c.records.run(run) })
	tasks.Go(func() { c.answering(run, ExplainSubject(c.bus.Cluster()), c.explain) })
	tasks.Go(func() { c.answering(run, ShadowSubject(c.bus.Cluster()), c.shadowReport) })
	tasks.Go(func() { c.answering(run, PendingSubject(c.bus.Cluster()), c.pending) })
	tasks.Go(func() { c.modes.follow(run, c.bus) })
	for _, m := range c.parts {
		tasks.Go(func() { m.follow(run, c.bus) })
	}
	tasks.Go(func() { c.resuming(run) })
	if len(c.def.Wide) > 0 {
		tasks.Go(func() { c.wideFeed.follow(run) })
	}
	for range c.def.workers(c.cfg) {
		tasks.Go(c.worker)
	}
	defer c.awaitJobs()
	return share(ctx, c, l)
}

// Joinable is closed once the wide inputs are complete for the first time:
// only then should the member count. It is what lease.Config.Ready takes.
func (c *Controller) Joinable() <-chan struct{} { return c.ready }

// feedOfWide says what the feed of the wide inputs reads. The member has no id
// yet, so it makes a name up.
func (c *Controller) feedOfWide() event.Feed {
	f := event.Feed{Name: c.def.Role + "-wide-" + rand.Text()[:10]}
	for _, in := range c.def.Wide {
		f.Filters = append(f.Filters, event.KindFilter(event.Root(c.bus.Cluster()), in.Kind))
	}
	return f
}

func (c *Controller) wideMoved() {
	if c.wide.Synced() {
		c.once.Do(func() {
			if len(c.def.Wide) > 0 {
				close(c.ready)
			}
		})
	}
	for _, p := range c.partitions() {
		p.look()
	}
}

func (c *Controller) wideChanged(change cache.Change) {
	for _, p := range c.partitions() {
		p.changedWide(change)
	}
}

func (c *Controller) wideMarked(kind event.Kind) {
	for _, p := range c.partitions() {
		p.marked(kind)
	}
}

// enter and leave keep the set of partitions held.
func (c *Controller) enter(p *Partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.held[p] = struct{}{}
}

func (c *Controller) leave(p *Partition) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.held, p)
}

// partitions returns those held, in no order.
func (c *Controller) partitions() []*Partition {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Keys(c.held))
}

// count counts one reconcile.
func (c *Controller) count(result string) { c.metrics.reconciles.WithLabelValues(result).Inc() }
