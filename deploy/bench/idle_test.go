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
	ctx, cancel := context.WithTimeout(t.Context(), pick(5*time.Minute, 15*time.Minute))
	defer cancel()
	span := pick(8*time.Second, 30*time.Second)
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
			busy := func(p *fleet.Process) float64 { return share(ctx, t, p, span) }
			t.Logf("idle, 20 kinds, P=%d: watcher %.1f %%, NATS %.1f %%, one of 3 replicas %.1f %% of a core",
				partitions, 100*busy(watcher.Process), 100*busy(f.NATS.Process), 100*busy(replicas[0].Process))
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

// share returns how much of a core a process used during span.
func share(ctx context.Context, t *testing.T, p *fleet.Process, span time.Duration) float64 {
	t.Helper()
	before, err := p.Usage()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	select {
	case <-time.After(span):
	case <-ctx.Done():
		t.Fatal(ctx.Err())
	}
	after, err := p.Usage()
	if err != nil {
		t.Fatal(err)
	}
	return (after.CPU - before.CPU).Seconds() / time.Since(began).Seconds()
}
