// Package watcher turns the API server's watches into last-value messages on the
// bus: one watch per kind for the whole fleet, however many controllers read it.
//
// It is the only writer of the stream of events and the only reader of whole
// kinds. It keeps no objects, decides nothing about them, and refuses to carry
// what no controller reads. What it publishes, and when, is judged by
// protocol.Publisher; this room gives it eyes and hands.
package watcher

import (
	"context"
	"os"
	"sync"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/lease"
	"github.com/millrace-io/millrace/shared/process"
)

// Run publishes its share of the kinds until ctx ends, then hands them over.
func Run(ctx context.Context, env *process.Env) error {
	var cfg Config
	if err := env.Load(&cfg); err != nil {
		return err
	}
	events, err := bus.Connect(ctx, cfg.Bus, role, env.Log, env.Registry)
	if err != nil {
		return err
	}
	defer events.Close()
	api, err := kube.Connect(cfg.Kube, "millrace-"+role, env.Log, env.Registry)
	if err != nil {
		return err
	}
	return serve(ctx, env, cfg, events, api)
}

func serve(ctx context.Context, env *process.Env, cfg Config, events *bus.Bus, api *kube.API) error {
	h := &holder{
		bus: events, api: apiServer{api}, log: env.Log, keeper: newKeeper(events, env.Log),
		kinds: make(map[event.Kind]kindOf),
	}
	m := newMetrics(env.Registry)
	units := cfg.units()
	for _, unit := range units {
		kind := event.Kind(unit)
		h.kinds[kind] = kindOf{
			kind: kind, metadataOnly: !withBody[kind], metrics: m.of(kind), status: &kindStatus{kind: kind},
		}
	}
	host, _ := os.Hostname() // for people; empty will do
	var members *lease.Lease
	members = lease.New(lease.Config{
		Role: role, Cluster: cfg.Bus.Cluster, Units: units, Host: host, Version: env.Version,
		Status: func() []byte { return h.answer(members.Member(), host, env) },
	}, events.KV(bus.Own), wire{events}, env.Log, env.Registry)
	defer h.watchOver(env.Health, members)()

	keeping, stop := context.WithCancel(context.WithoutCancel(ctx))
	var tasks sync.WaitGroup
	tasks.Go(func() { h.keeper.run(keeping) })
	defer tasks.Wait()
	defer stop()
	return members.Run(ctx, h.hold)
}
