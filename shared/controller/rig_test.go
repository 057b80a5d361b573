package controller

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller/controllertest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	things event.Kind = "things"
	outs   event.Kind = "outs"
	nodes  event.Kind = "nodes"
)

var errUndecodable = errors.New("it is bad")

// thing is what the tests' kinds decode to.
type thing struct {
	Key     event.Key
	UID     string
	Version uint64
	Body    string
}

func decode(m event.Message) (any, error) {
	switch string(m.Body) {
	case "bad":
		return nil, errUndecodable
	case "boom":
		panic("decoder")
	}
	return thing{m.Key, m.UID, m.Version, string(m.Body)}, nil
}

// errConflict is what the tests' API refuses a write of an old version with.
var errConflict = errors.New("object has changed")

// rig is one role that runs in a small world: for every thing it makes an out of
// the same key, whose body is the thing's and the number of nodes.
type rig struct {
	*testing.T
	*controllertest.World
	lease *controllertest.Lease
	cfg   Config
	def   Definition
	reg   *prometheus.Registry
	c     *Controller
	logs  syncBuffer

	things, outs, nodes *controllertest.Watcher
	clock               *serverClock

	// part is whose writes they are. Set before start.
	part string
	// reconcile replaces mirror. Set before start.
	reconcile func(ctx context.Context, p *Partition, key event.Key) (Result, error)

	mu      sync.Mutex
	runs    map[event.Key][]time.Time
	inHand  map[event.Key]int
	writes  int
	failing bool // the API is flaky
}

// play runs a test in a bubble with a rig of so many partitions; prepare may
// change it before it starts and fill the world.
func play(t *testing.T, partitions int, prepare func(r *rig), story func(r *rig)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, partitions)
		if prepare != nil {
			prepare(r)
		}
		stop := r.start()
		defer stop()
		story(r)
	})
}

func newRig(t *testing.T, partitions int) *rig {
	r := &rig{
		T: t, World: controllertest.New(partitions), lease: controllertest.NewLease(),
		cfg: Default(), reg: prometheus.NewRegistry(),
		runs: make(map[event.Key][]time.Time), inHand: make(map[event.Key]int),
		clock: &serverClock{known: true},
	}
	r.reconcile = r.mirror
	r.def = Definition{
		Role: "mirror", By: protocol.ByNamespace,
		Inputs: []cache.Input{
			{Kind: things, Projection: 1, Decode: decode},
			{Kind: outs, Projection: 1, Decode: decode},
		},
		Wide: []cache.Input{{Kind: nodes, Projection: 1, Decode: decode}},
		Keys: func(p *Partition, c cache.Change) []event.Key {
			if c.Kind == nodes {
				return keysOf(p)
			}
			return []event.Key{c.Key}
		},
		All:      keysOf,
		New:      func(p *Partition) Reconciler { return &mirror{r, p} },
		Classify: classifyTest,
		Clock:    r.clock,
	}
	r.things, r.outs, r.nodes = r.Watch(things, 1), r.Watch(outs, 1), r.Watch(nodes, 1)
	return r
}

func classifyTest(err error) Class {
	if errors.Is(err, errConflict) {
		return Conflict
	}
	return Retry
}

func keysOf(p *Partition) (keys []event.Key) {
	p.View(func(r Reader) { keys = append(r.Keys(things), r.Keys(outs)...) })
	slices.SortFunc(keys, event.Key.Compare)
	return slices.Compact(keys)
}

// start runs the role until stop is called.
func (r *rig) start() (stop func()) {
	var err error
	log := slog.New(slog.NewTextHandler(&r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))
	if r.c, err = New(r.cfg, r.def, r.World, log, r.reg); err != nil {
		r.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { r.Tick(ctx) })
	tasks.Go(func() {
		if err := Serve(ctx, r.c, r.lease); err != nil {
			r.Error(err)
		}
	})
	return func() { cancel(); tasks.Wait() }
}

type mirror struct {
	r *rig
	p *Partition
}

// Reconcile counts and checks that a key is never in hand twice.
func (m *mirror) Reconcile(ctx context.Context, key event.Key) (Result, error) {
	m.r.mu.Lock()
	m.r.runs[key] = append(m.r.runs[key], time.Now())
	m.r.inHand[key]++
	if m.r.inHand[key] > 1 {
		m.r.Errorf("%s is in hand twice", key)
	}
	m.r.mu.Unlock()
	defer func() {
		m.r.mu.Lock()
		defer m.r.mu.Unlock()
		m.r.inHand[key]--
	}()
	return m.r.reconcile(ctx, m.p, key)
}

// state is what mirror decides by.
type state struct {
	thing, out       thing
	hasThing, hasOut bool
	nodes            int
}

func (r *rig) cached(p *Partition, key event.Key) (s state) {
	p.View(func(v Reader) {
		s.thing, s.hasThing = cache.Get[thing](v, things, key)
		s.out, s.hasOut = cache.Get[thing](v, outs, key)
		s.nodes = len(v.List(nodes, ""))
	})
	return s
}

// live reads the out live, as every write of it needs.
func (r *rig) live(s state, key event.Key) state {
	o, exists := r.Get(outs, key)
	s.out, s.hasOut = thing{o.Key, o.UID, o.Version, o.Body}, exists
	return s
}

// mirror brings one out to what its thing asks for.
func (r *rig) mirror(ctx context.Context, p *Partition, key event.Key) (Result, error) {
	s := r.cached(p, key)
	if p.LiveFirst(key) {
		s = r.live(s, key)
		p.ReadLive(key)
	}
	return Result{}, r.apply(ctx, p, key, s)
}

func (r *rig) apply(ctx context.Context, p *Partition, key event.Key, s state) error {
	want := fmt.Sprintf("%s/%d", s.thing.Body, s.nodes)
	if s.hasThing == s.hasOut && (!s.hasOut || s.out.Body == want) {
		return nil
	}
	danger := Harmless
	if !s.hasThing {
		danger = Destructive
	}
	if err := p.GuardPart(ctx, key, r.part, danger); err != nil {
		if errors.Is(err, ErrShadow) {
			p.Intend(key, want)
			verb := map[bool]string{true: "update", false: "delete"}[s.hasThing]
			p.Record(key, Decision{Object: Ref{outs, key, s.out.UID, 0}, Verb: verb, Body: []byte(want), Shadow: true})
		}
		return err
	}
	if live, exists := r.Get(outs, key); exists != s.hasOut || live.Version != s.out.Version && exists {
		return errConflict
	}
	r.mu.Lock()
	r.writes++
	r.mu.Unlock()
	if !s.hasThing {
		r.Delete(outs, key)
		p.Wrote(key, protocol.Write{Kind: outs, Key: key, UID: s.out.UID, Deleted: true})
		return nil
	}
	o := r.Put(outs, key, want)
	p.Record(key, Decision{
		Object: Ref{outs, key, o.UID, o.Version}, Verb: "update", Base: s.out.Version, Rule: "mirror", Body: []byte(want),
		Detail: "because\nof " + strings.Repeat("ü", 200),
		Inputs: []Ref{{things, key, s.thing.UID, s.thing.Version}},
	})
	p.Wrote(key, protocol.Write{Kind: outs, Key: key, UID: o.UID, Version: o.Version})
	return nil
}

// ran returns how often a key was reconciled.
func (r *rig) ran(key event.Key) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.runs[key])
}

func (r *rig) written() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.writes
}

func (r *rig) wantRuns(key event.Key, want int) {
	r.Helper()
	if got := r.ran(key); got != want {
		r.Errorf("%s was reconciled %d times, want %d", key, got, want)
	}
}

// wantMirrored checks that every thing has its out and nothing else has one.
func (r *rig) wantMirrored() {
	r.Helper()
	if problem := r.unmirrored(); problem != "" {
		r.Error(problem)
	}
}

func (r *rig) unmirrored() string {
	have, count := r.Objects(outs), len(r.Objects(nodes))
	for key, o := range r.Objects(things) {
		if o.Body == "bad" || o.Body == "boom" {
			delete(have, key)
			continue
		}
		if want := fmt.Sprintf("%s/%d", o.Body, count); have[key].Body != want {
			return fmt.Sprintf("out of %s is %q, want %q", key, have[key].Body, want)
		}
		delete(have, key)
	}
	for key := range have {
		return fmt.Sprintf("out of %s is left behind", key)
	}
	return ""
}

// settle lets the world come to rest: bookmarks, retries and all.
func settle(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func partitionOf(k event.Key) int { return partition.OfNamespace(k, partitions) }

func key(name string) event.Key { return event.Key{Namespace: "a", Name: name} }

// value returns a counter or gauge of the rig's registry.
func (r *rig) value(name string, labels ...string) float64 {
	r.Helper()
	families, err := r.reg.Gather()
	if err != nil {
		r.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
	next:
		for _, m := range f.GetMetric() {
			for _, want := range labels {
				if !slices.ContainsFunc(m.GetLabel(), func(l *dto.LabelPair) bool { return l.GetName()+"="+l.GetValue() == want }) {
					continue next
				}
			}
			return m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
	}
	r.Fatalf("no metric %s %v", name, labels)
	return 0
}

// syncBuffer is a log that is written by many.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) count(s string) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Count(b.buf.String(), s)
}

// sleeper is a reconcile that takes its time and does nothing.
func sleeper(d time.Duration) func(context.Context, *Partition, event.Key) (Result, error) {
	return func(ctx context.Context, _ *Partition, _ event.Key) (Result, error) {
		select {
		case <-time.After(d):
			return Result{}, nil
		case <-ctx.Done():
			return Result{}, ctx.Err()
		}
	}
}
