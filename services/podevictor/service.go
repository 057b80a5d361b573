// Package podevictor deletes pods that must not stay where they are: those whose
// node bears a NoExecute taint that they do not tolerate, or no longer, and those
// that nobody runs any more.
//
// It runs in any number of replicas, each of which holds some of the pods; all of
// them read every node. It decides on no taint and no condition: what it goes by is
// written in the API, by whomever, and read there once more before anything is
// deleted.
package podevictor

import (
	"cmp"
	"context"
	"slices"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/process"
	"github.com/millrace-io/millrace/shared/protocol"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// Run serves until ctx ends, then hands its partitions over.
func Run(ctx context.Context, env *process.Env) error {
	var cfg Config
	if err := env.Load(&cfg); err != nil {
		return err
	}
	edges, err := sharedrole.Connect(ctx, env, role, cfg.Bus, cfg.Kube)
	if err != nil {
		return err
	}
	defer edges.Close()
	edges.Needs(Rights(cfg.Policy.EvictionMode))
	events, stop := edges.API.Recorder(component)
	defer stop()

	background, end := context.WithCancel(ctx)
	defer end()
	s := newPodEvictor(cfg.Policy, edges.API, edges.WriteOptions(cfg.Controller), events)
	s.log = env.Log
	s.sightings = newSightings(edges.Bus.KV(bus.Facts))
	s.line = newLine(background, s.policy, edges.Rates(), cmp.Or(cfg.Controller.Workers, workers))
	s.metrics = newMetrics(env.Registry, s)
	go s.sightings.run(background)
	if cfg.Policy.TerminatedPodGCThreshold > 0 {
		edges.Job(s.terminated(), s.countTerminated(cmp.Or(cfg.Controller.Workers, workers)))
	}
	return edges.Run(ctx, cfg.Controller, s.definition())
}

// Rights are what the role must be allowed to do in an eviction mode, as README.md
// states it.
func Rights(mode string) []kube.Right {
	rights := slices.Concat(
		kube.Rights("", "pods", "get", "delete"),
		kube.Rights("", "pods/status", "patch"),
		kube.Rights("", "nodes", "get"),
		kube.Rights("", "events", "create", "patch"),
	)
	if mode == modeEvict {
		rights = append(rights, kube.Rights("", "pods/eviction", "create")...)
	}
	return rights
}

func (s *podEvictor) definition() controller.Definition {
	return controller.Definition{
		Role:    role,
		Workers: workers,
		By:      protocol.ByKey,
		Kind:    pods,
		Inputs:  partitionInputs(),
		Wide:    wideInputs(),
		Parts:   map[string]string{partTaints: s.policy.TaintEvictionMode, partGarbage: s.policy.GarbageCollectionMode},
		Keys:    func(p *controller.Partition, c cache.Change) []event.Key { return s.keys(p, c) },
		All:     func(p *controller.Partition) []event.Key { return s.all(p) },
		New:     func(p *controller.Partition) controller.Reconciler { return s.forPartition(p) },
		Concerns: func(_ *controller.Partition, kind event.Kind, key event.Key) []event.Key {
			if kind != pods {
				return nil
			}
			return []event.Key{key}
		},
		Explain:  s.explain,
		Pending:  s.pending,
		Classify: classify,
	}
}
