package bench

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// moreKinds makes the watcher's kinds twenty; they are carried as metadata.
var moreKinds = []string{
	"deployments.apps", "replicasets.apps", "statefulsets.apps", "daemonsets.apps", "jobs.batch",
	"cronjobs.batch", "serviceaccounts", "configmaps", "persistentvolumes",
}

// TestIdle: what it costs that nothing happens: bookmarks once a second for each
// of twenty kinds and every partition, members that renew, feeds that beat.
func TestIdle(t *testing.T) {
	beside(t)
	ctx, cancel := context.WithTimeout(t.Context(), pick(5*time.Minute, 15*time.Minute))
	defer cancel()
	span := pick(5*time.Second, 30*time.Second)
	for _, partitions := range pick([]int{32}, []int{32, 256}) {
		t.Run(fmt.Sprintf("P=%d", partitions), func(t *testing.T) {
			f := launch(ctx, t, fleet.Options{Partitions: partitions})
			watcher := join(ctx, t, f, "watcher", "watcher-1",
				"MILLRACE_WATCHER_KINDS_METADATA="+strings.Join(moreKinds, ","),
				"KUBECONFIG="+f.Cluster.Kubeconfig("admin")) // it may list all of them
			var replicas []*fleet.Member
			for i := range 3 {
				replicas = append(replicas, join(ctx, t, f, "endpoints", fmt.Sprintf("endpoints-%d", i+1)))
			}
			busy := shares(ctx, t, span, watcher.Process, f.NATS.Process, replicas[0].Process)
			t.Logf("idle, 20 kinds, P=%d: watcher %.1f %%, NATS %.1f %%, one of 3 replicas %.1f %% of a core",
				partitions, 100*busy[0], 100*busy[1], 100*busy[2])
			m, err := watcher.Metrics(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if n := m.Sum("millrace_watcher_bookmarks_total"); n < float64(partitions) {
				t.Errorf("only %.0f bookmarks have been published", n)
			}
		})
	}
}

// shares returns how much of a core each process used during span.
func shares(ctx context.Context, t *testing.T, span time.Duration, processes ...*fleet.Process) []float64 {
	t.Helper()
	used := func() (cpu []time.Duration) {
		for _, p := range processes {
			u, err := p.Usage()
			if err != nil {
				t.Fatal(err)
			}
			cpu = append(cpu, u.CPU)
		}
		return cpu
	}
	before, began := used(), time.Now()
	select {
	case <-time.After(span):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	after, took := used(), time.Since(began).Seconds()
	out := make([]float64, len(processes))
	for i := range out {
		out[i] = (after[i] - before[i]).Seconds() / took
	}
	return out
}
