package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// evictWorld is an installation whose nodes are played by nobody and
// say what the test makes them say; the pod evictor alone deletes pods there.
type evictWorld struct {
	t   *testing.T
	f   *fleet.Fleet
	api kubernetes.Interface
	log *evictLog

	env, watcherEnv []string
	watcher         *fleet.Member
	members         []*fleet.Member

	quarantine, period time.Duration
}

// evictSetup says what it is made of.
type evictSetup struct {
	replicas        int
	env, watcherEnv []string
	through         func(*fleet.Fleet) (member, watcher []string) // more environment, that needs the fleet
	upstream        bool                                          // kube-controller-manager instead of ours
	pace            pace
}

// Upstream's are 40 s and 20 s, in which few tests would end.
const (
	shortQuarantine = 4 * time.Second
	shortGCPeriod   = 2 * time.Second
)

// evictIn makes such a world, with no pod or node in it.
func evictIn(t *testing.T, within time.Duration, s evictSetup) (context.Context, *evictWorld) {
	t.Helper()
	ctx, f := beginAt(t, within, s.pace)
	w := &evictWorld{
		t: t, f: f, api: adminClient(f), env: append(s.env, unlimited...), watcherEnv: s.watcherEnv,
		quarantine: shortQuarantine, period: shortGCPeriod,
	}
	s.upstream = s.upstream || os.Getenv("UPSTREAM") != ""
	if s.upstream {
		w.quarantine, w.period = 40*time.Second, 20*time.Second
	}
	w.env = append(w.env,
		"MILLRACE_PODEVICTOR_ORPHAN_QUARANTINE="+w.quarantine.String(), "MILLRACE_PODEVICTOR_GC_PERIOD="+w.period.String())
	if s.through != nil {
		member, watcher := s.through(f)
		w.env, w.watcherEnv = append(w.env, member...), append(w.watcherEnv, watcher...)
	}
	w.clear(ctx)
	w.log = logEvictions(ctx, t, w.api, w.quarantine)
	t.Cleanup(func() { w.clear(context.WithoutCancel(ctx)) })
	w.namespace(ctx, "millrace")
	if s.upstream {
		// The first of them finds pods by an index that only the last makes.
		kubetest.ControllerManager(t, f.Cluster, "taint-eviction-controller,pod-garbage-collector-controller,daemonset-controller",
			"--terminated-pod-gc-threshold=0", "--kube-api-qps=1000", "--kube-api-burst=1000")
		return ctx, w
	}
	w.watcher = start(ctx, t, f, kubetest.RoleWatcher, w.watcherEnv...)
	for range s.replicas {
		w.addMember(ctx)
	}
	w.settled(ctx)
	return ctx, w
}

func (w *evictWorld) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *evictWorld) addMember(ctx context.Context) *fleet.Member {
	m := start(ctx, w.t, w.f, kubetest.RolePodEvictor, w.env...)
	w.members = append(w.members, m)
	return m
}

// kill takes members away with SIGKILL.
func (w *evictWorld) kill(gone ...*fleet.Member) {
	for _, m := range gone {
		m.Kill()
	}
	w.members = slices.DeleteFunc(w.members, func(m *fleet.Member) bool { return slices.Contains(gone, m) })
}

// replace ends all members in good order and starts as many with more settings.
func (w *evictWorld) replace(ctx context.Context, env ...string) {
	replicas := len(w.members)
	for _, m := range w.members {
		leave(w.t, m)
	}
	w.members, w.env = nil, append(w.env, env...)
	for range replicas {
		w.addMember(ctx)
	}
	w.settled(ctx)
}

// restart kills everything of ours, does something, and starts it again.
func (w *evictWorld) restart(ctx context.Context, meanwhile func()) {
	replicas := len(w.members)
	w.kill(slices.Clone(w.members)...)
	w.watcher.Kill()
	meanwhile()
	w.watcher = start(ctx, w.t, w.f, kubetest.RoleWatcher, w.watcherEnv...)
	for range replicas {
		w.addMember(ctx)
	}
	w.settled(ctx)
}

// settled waits until all are ready and every partition is held and read.
func (w *evictWorld) settled(ctx context.Context) {
	w.t.Helper()
	ready(ctx, w.t, append(slices.Clone(w.members), w.watcher)...)
	eventually(ctx, w.t, 60*time.Second, "pods are watched over", func() (bool, string) {
		s, err := w.f.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		for _, r := range s.Roles {
			if r.Role != kubetest.RolePodEvictor {
				continue
			}
			for _, m := range r.Members {
				for _, u := range m.Units {
					if !u.Synced {
						return false, fmt.Sprintf("%s: %+v", m.Host, u)
					}
				}
			}
			return r.Held >= partitions && len(r.Members) >= len(w.members), fmt.Sprintf("%d held by %d", r.Held, len(r.Members))
		}
		return false, "no such role"
	})
}

// clear removes every pod and node.
func (w *evictWorld) clear(ctx context.Context) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 60*time.Second)
	defer cancel()
	pods, err := w.api.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	w.must(err)
	each(32, pods.Items, func(p corev1.Pod) {
		if len(p.Finalizers) > 0 {
			w.unfinalize(ctx, p.Namespace, p.Name)
		}
		w.must(gone(w.api.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, *metav1.NewDeleteOptions(0))))
	})
	w.must(w.api.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
}

// gone takes an object that is gone already for deleted.
func gone(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// each does something for every item, some at a time.
func each[T any](workers int, items []T, do func(T)) {
	work := make(chan T)
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for item := range work {
				do(item)
			}
		})
	}
	for _, item := range items {
		work <- item
	}
	close(work)
	wg.Wait()
}

// together runs cases of one world at the same time, each a test of its own.
func together(t *testing.T, cases map[string]func(t *testing.T)) {
	t.Helper()
	var wg sync.WaitGroup
	for name, run := range cases {
		wg.Go(func() { t.Run(name, run) })
	}
	wg.Wait()
}

// sum adds up a metric of the members that run.
func (w *evictWorld) sum(ctx context.Context, name string, labels ...string) (sum float64) {
	w.t.Helper()
	for _, m := range w.members {
		metrics, err := m.Metrics(ctx)
		w.must(err)
		sum += metrics.Sum(name, labels...)
	}
	return sum
}

// mode sets what the role or a part of it does; every member follows.
func (w *evictWorld) mode(ctx context.Context, t *testing.T, part, mode string) {
	t.Helper()
	if out, err := w.f.Run(ctx, "mode", filepath.Join(kubetest.RolePodEvictor, part), mode); err != nil {
		t.Fatalf("setting mode %s of %q: %v: %s", mode, part, err, out)
	}
}
