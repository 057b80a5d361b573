// Package endpoints keeps Services' EndpointSlices true to their pods.
//
// It runs in any number of replicas, each of which holds some namespaces. What
// it decides is the published library k8s.io/endpointslice; what the library's
// writes lack (preconditions, names that two owners agree on, the frame's
// questions) a guarded client adds.
package endpoints

import (
	"context"
	"slices"

	"k8s.io/component-base/metrics/legacyregistry"
	librarymetrics "k8s.io/endpointslice/metrics"

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
	events, stop := edges.API.Recorder(component)
	defer stop()
	edges.Needs(Rights())
	librarymetrics.RegisterMetrics()
	env.Telemetry.Gather(legacyregistry.DefaultGatherer)

	s := newEndpointSlices(edges.API.Client(), edges.WriteOptions(cfg.Controller), cfg.Policy, events, newMetrics(env.Registry))
	return edges.Run(ctx, cfg.Controller, s.definition())
}

// Rights are what the role must be allowed to do. Of README.md only the one on
// services/finalizers is not among them: most clusters do not ask for it.
func Rights() []kube.Right {
	return slices.Concat(
		kube.Rights("discovery.k8s.io", "endpointslices", "get", "list", "create", "update", "delete"),
		kube.Rights("", "events", "create", "patch"),
	)
}

func (s *endpointSlices) definition() controller.Definition {
	return controller.Definition{
		Role:   role,
		By:     protocol.ByNamespace,
		Kind:   services,
		Inputs: partitionInputs(),
		Wide:   wideInputs(),
		Ages:   ages(),
		Keys: func(p *controller.Partition, c cache.Change) []event.Key {
			return keys(p, c, s.ownOf(p))
		},
		All: func(p *controller.Partition) []event.Key { return all(p) },
		New: func(p *controller.Partition) controller.Reconciler { return s.forPartition(p) },
		Concerns: func(p *controller.Partition, kind event.Kind, key event.Key) []event.Key {
			return concerned(p, kind, key)
		},
		Compare: func(p *controller.Partition, key event.Key, effect any) []controller.Difference {
			want, _ := effect.(reachable) // apply says so
			return compareSlices(p, key, want)
		},
		Classify: classifyWrite,
	}
}
