// Package watcher turns the API server's watches into last-value messages on the
// bus: one watch per kind for the whole fleet, however many controllers read it.
//
// It is the only writer of the stream of events and the only reader of whole
// kinds. It keeps no objects, decides nothing about them, and refuses to carry
// what no controller reads. What it publishes, and when, is judged by
// protocol.Publisher; this room gives it eyes and hands.
package watcher

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/facts"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/process"
	"github.com/millrace-io/millrace/shared/role"
)

// Run publishes its share of the kinds until ctx ends, then hands them over.
func Run(ctx context.Context, env *process.Env) error {
	var cfg Config
	if err := env.Load(&cfg); err != nil {
		return err
	}
	edges, err := role.Connect(ctx, env, roleName, cfg.Bus, cfg.Kube)
	if err != nil {
		return err
	}
	defer edges.Close()
	if err := edges.AwaitBus(ctx, edges.Bus.Ensure); err != nil {
		return err
	}
	h := newHolder(env, edges, cfg.Kinds)
	members := edges.Lease(cfg.units(), nil, h.memberStatus)
	defer h.watchOver(env.Health)()

	// The streams are looked after until the last kind has been handed over.
	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	tasks.Go(func() { h.keeper.run(keeping) })
	defer tasks.Wait()
	defer stop()
	defer h.serveDemand(ctx, env, edges, cfg.Kinds)()
	return members.Run(ctx, h.hold)
}

// serveDemand takes part in carrying what is demanded until ctx ends; wait
// returns once it has been handed over.
func (h *holder) serveDemand(ctx context.Context, env *process.Env, edges *role.Edges, cfg Kinds) (wait func()) {
	demand := facts.NewDemand(edges.Bus.KV(bus.Facts))
	d := &demanded{
		h: h, demands: demand, set: slices.Concat(cfg.Kinds, cfg.Metadata), ready: env.Health.Ready, log: env.Log,
		carry: func(ctx context.Context, units []string) { _ = edges.Group("demand", units).Run(ctx, h.hold) }, // it returns nil
	}
	var tasks sync.WaitGroup
	tasks.Go(func() { demand.Run(ctx) })
	tasks.Go(func() { d.run(ctx) })
	return tasks.Wait
}

func newHolder(env *process.Env, edges *role.Edges, cfg Kinds) *holder {
	m := newMetrics(env.Registry)
	return &holder{
		bus: edges.Bus, api: apiServer{edges.API}, log: env.Log, keeper: newKeeper(edges.Bus, env.Log),
		metrics: m, tombstones: cfg.tombstones(), kinds: kindsOf(cfg, m, env.Registry),
	}
}

// kindsOf prepares everything that the setting lets this watcher come to hold.
func kindsOf(cfg Kinds, m *metrics, reg prometheus.Registerer) map[event.Kind]kindOf {
	kinds := make(map[event.Kind]kindOf)
	for _, unit := range cfg.units() {
		kind := event.Kind(unit)
		k := newKind(kind, m, cfg.tombstones())
		if kind == kube.Nodes {
			k.beats = newBeats(reg)
		}
		kinds[kind] = k
	}
	return kinds
}

func newKind(kind event.Kind, m *metrics, tombstones time.Duration) kindOf {
	return kindOf{
		kind: kind, metadataOnly: !withBody[kind], tombstones: tombstones, metrics: m.of(kind), status: &kindStatus{kind: kind},
	}
}

func (k Kinds) tombstones() time.Duration { return cmp.Or(k.TombstoneLife, tombstoneLife) }
