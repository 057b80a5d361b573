package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// TestFailover: whoever writes slices is killed with SIGKILL at the moment a pod
// flips, and a client sees the slice follow once another has taken over: of
// upstream two managers with leader election as they come, of millrace three
// replicas.
func TestFailover(t *testing.T) {
	beside(t)
	ctx, cancel := context.WithTimeout(t.Context(), pick(6*time.Minute, 30*time.Minute))
	defer cancel()
	rounds := pick(1, 5)
	f := launch(ctx, t, fleet.Options{})
	s := newFlips(ctx, t, f.Cluster.Client())

	manager := func() *kubetest.Manager {
		m, err := kubetest.LaunchControllerManager(ctx, f.Cluster, "endpointslice-controller", "--leader-elect=true")
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	var upstream []time.Duration
	active := manager()
	s.settle(ctx, t)
	for range rounds {
		standby := manager()
		active.Kill()
		upstream = append(upstream, s.one(ctx, t))
		active = standby
	}
	if err := active.Stop(); err != nil {
		t.Log(err)
	}

	join(ctx, t, f, "watcher", "watcher-1")
	replica := func(n int) *fleet.Member { return join(ctx, t, f, "endpoints", fmt.Sprintf("endpoints-%d", n)) }
	replicas := []*fleet.Member{replica(0), replica(1), replica(2)}
	s.settle(ctx, t)
	var ours []time.Duration
	for round := range 3 * rounds { // whoever holds the namespace is among three
		replicas[round%3].Kill()
		ours = append(ours, s.one(ctx, t))
		replicas[round%3] = replica(round + 3)
		s.settle(ctx, t) // the new one has joined and has been connected for long enough to judge
	}
	up, us := spreadOf(upstream), spreadOf(ours)
	t.Logf("kill -9 → first write\nupstream, two managers      %s\nmillrace, three replicas    %s", up, us)
	if us.Max >= up.P50 {
		t.Errorf("millrace needs %s at worst, upstream %s at the median", us.Max, up.P50)
	}
}

// one flips one pod and returns how long its slice took to follow.
func (s *flips) one(ctx context.Context, t *testing.T) time.Duration {
	t.Helper()
	s.mu.Lock()
	s.done = nil
	s.mu.Unlock()
	s.flip(ctx, t, 1)
	s.await(ctx, t)
	s.mu.Lock()
	defer s.mu.Unlock()
	took := s.done[0]
	s.done = nil
	return took
}
