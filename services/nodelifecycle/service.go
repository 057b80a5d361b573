// Package nodelifecycle keeps what the cluster believes of its nodes true: taints
// by their conditions, Unknown for those that have fallen silent, their pods not
// Ready, and at last, at a rate per zone, the taints by which pods are evicted.
//
// It runs in any number of replicas, each of which holds some of the nodes and
// some of the pods; all of them read every node. It deletes nothing itself.
package nodelifecycle

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/process"
	"github.com/millrace-io/millrace/shared/protocol"
	sharedrole "github.com/millrace-io/millrace/shared/role"
	"github.com/millrace-io/millrace/shared/silence"
)

// Run serves until ctx ends, then hands its partitions over.
func Run(ctx context.Context, env *process.Env) error {
	var cfg Config
	if err := env.Load(&cfg); err != nil {
		return err
	}
	if cfg.Policy.NodeMonitorGracePeriod <= lowGrace {
		env.Log.Warn("a kubelet needs up to 45s to find its connection broken; its node will look silent by then",
			"node_monitor_grace_period", cfg.Policy.NodeMonitorGracePeriod)
	}
	edges, err := sharedrole.Connect(ctx, env, role, cfg.Bus, cfg.Kube)
	if err != nil {
		return err
	}
	defer edges.Close()
	edges.Needs(Rights())
	events, stop := edges.API.Recorder(component)
	defer stop()

	background, end := context.WithCancel(ctx)
	defer end()
	s := newNodeLifecycle(background, cfg.Policy, edges.API, edges.WriteOptions(cfg.Controller), events)
	s.partitions = edges.Bus.Partitions()
	s.registered, s.zones = factsOf(edges.Bus.KV(bus.Facts))
	s.evictions = newEvictor(background, &s.policy, bucketsOf(edges.Rates()), s.census)
	s.silences = silence.New(edges.Bus, role, env.Log, env.Registry)
	s.metrics = newMetrics(env.Registry, s)
	s.log = env.Log
	go s.zones.view.Run(background)
	return edges.Run(ctx, cfg.Controller, s.definition())
}

// Rights are what the role must be allowed to do, as README.md states it.
func Rights() []kube.Right {
	return slices.Concat(
		kube.Rights("", "nodes", "get", "patch"),
		kube.Rights("", "nodes/status", "patch"),
		kube.Rights("", "pods", "get"),
		kube.Rights("", "pods/status", "patch"),
		kube.RightsIn(corev1.NamespaceNodeLease, "coordination.k8s.io", "leases", "get"),
		kube.Rights("", "events", "create", "patch"),
	)
}

func (s *nodeLifecycle) definition() controller.Definition {
	return controller.Definition{
		Role:   role,
		By:     protocol.ByKey,
		Kind:   nodes,
		Inputs: partitionInputs(),
		Wide:   wideInputs(),
		Keys:   func(p *controller.Partition, c cache.Change) []event.Key { return s.keys(p, c) },
		All:    func(p *controller.Partition) []event.Key { return s.all(p) },
		New:    func(p *controller.Partition) controller.Reconciler { return s.forPartition(p) },
		Concerns: func(_ *controller.Partition, kind event.Kind, key event.Key) []event.Key {
			return s.concerned(kind, key)
		},
		KindOf: func(key event.Key) event.Kind {
			if isNode(key) {
				return nodes
			}
			return pods
		},
		Explain:  s.explain,
		Classify: classifyRequest,
	}
}
