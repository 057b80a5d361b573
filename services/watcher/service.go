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
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/event"
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
	return members.Run(ctx, h.hold)
}

func newHolder(env *process.Env, edges *role.Edges, cfg Kinds) *holder {
	h := &holder{
		bus: edges.Bus, api: apiServer{edges.API}, log: env.Log,
		keeper: newKeeper(edges.Bus, env.Log), kinds: kindsOf(cfg, env.Registry),
	}
	return h
}

// kindsOf prepares everything that this watcher may come to hold.
func kindsOf(cfg Kinds, reg prometheus.Registerer) map[event.Kind]kindOf {
	m := newMetrics(reg)
	kinds := make(map[event.Kind]kindOf)
	for _, unit := range cfg.units() {
		kind := event.Kind(unit)
		k := kindOf{
			kind: kind, metadataOnly: !withBody[kind], tombstones: cmp.Or(cfg.TombstoneLife, tombstoneLife), metrics: m.of(kind), status: &kindStatus{kind: kind},
		}
		if kind == kube.Nodes {
			k.beats = newBeats(reg)
		}
		kinds[kind] = k
	}
	return kinds
}
