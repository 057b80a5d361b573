package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/partition"
)

const (
	namespace = "shop"
	role      = "endpoints"

	// soon is how long an ordinary change may take to reach a slice, and
	// takeover how long it may take when its replica has just been killed. Unit:
	// time. Source: a hundred times what it takes here, and the goal of 2 s with
	// room for a machine that is busy.
	soon     = 2 * time.Second
	takeover = 5 * time.Second
)

// app is one service and its pods.
type app struct {
	name string
	pods int
}

var apps = []app{{"web", 3}, {"api", 2}, {"db", 1}}

func (a app) names() []string {
	names := make([]string, a.pods)
	for i := range names {
		names[i] = fmt.Sprintf("%s-%d", a.name, i)
	}
	return names
}

// story is the installation and those who look at it.
type story struct {
	f       *fleet.Fleet
	alone   bool // millrace is one process
	line    *timeline
	api     kubernetes.Interface
	kubelet *kubetest.Kubelet
	seen    *observer

	nodes      []string
	registered time.Time // when they were asked to
	victim     string    // the one that falls silent
}

// begin starts the members and the fake kubelet.
func begin(ctx context.Context, f *fleet.Fleet, line *timeline, alone bool) (*story, error) {
	s := &story{f: f, alone: alone, line: line, api: f.Cluster.Client(), nodes: kubetest.NodeNames("node", 3)}
	version, err := s.api.Discovery().ServerVersion()
	if err != nil {
		return s, fmt.Errorf("asking the API server: %w", err)
	}
	line.say("kube-apiserver %s serves %s", version.GitVersion, f.Cluster.Server())
	if err := s.start(ctx); err != nil {
		return s, err
	}
	s.registered = time.Now()
	if s.kubelet, err = kubetest.LaunchKubelet(ctx, f.Cluster.Admin(), kubetest.KubeletConfig{
		Nodes: s.nodes, Zones: []string{"a", "b", "c"}, Beat: beat, Bind: true,
	}); err != nil {
		return s, err
	}
	line.say("three nodes in three zones have registered; each beats every %s", beat)
	if _, err := s.api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
		return s, fmt.Errorf("creating namespace: %w", err)
	}
	s.seen, err = observe(ctx, s.api, namespace)
	return s, err
}

func (s *story) start(ctx context.Context) error {
	if s.alone {
		return s.startAlone(ctx)
	}
	s.line.say("NATS serves %s", s.f.URL())
	began := time.Now()
	if _, err := s.f.Member(ctx, "watcher", "watcher-1"); err != nil {
		return err
	}
	for i := range 3 {
		if _, err := s.f.Member(ctx, role, fmt.Sprintf("%s-%d", role, i+1)); err != nil {
			return err
		}
	}
	for _, role := range []string{lifecycle, evictor} {
		for i := range 2 {
			if _, err := s.f.Member(ctx, role, fmt.Sprintf("%s-%d", role, i+1)); err != nil {
				return err
			}
		}
	}
	for _, m := range slices.Concat(s.f.Members("watcher"), s.f.Members(role), s.f.Members(lifecycle), s.f.Members(evictor)) {
		if err := m.AwaitReady(ctx); err != nil {
			return err
		}
	}
	s.line.say("one watcher, three replicas of %s, two of %s and two of %s are ready after %s", role, lifecycle, evictor, millis(time.Since(began)))
	return s.describe(ctx)
}

// close stops who looks on, and the nodes. It may be called twice.
func (s *story) close() {
	if s.seen != nil {
		s.seen.stop()
	}
	if s.kubelet != nil {
		s.kubelet.Stop()
	}
}

func (s *story) play(ctx context.Context) error {
	scenes := []func(context.Context) error{s.register, s.appear, s.flip, s.relabel, s.kill, s.join, s.leave}
	if s.alone {
		scenes = []func(context.Context) error{s.register, s.appear, s.flip, s.relabel, s.restart, s.leave}
	}
	scenes = append(scenes, s.silence, s.evict, s.comeBack, s.maintain, s.orphan)
	if s.alone {
		scenes = append(scenes, s.end)
	}
	for _, scene := range scenes {
		if err := scene(ctx); err != nil {
			return err
		}
	}
	missing := s.seen.missing()
	s.line.fact("db-0, always ready, was behind its service at every version seen", len(missing) == 0)
	return nil
}

// appear: services and pods come, and slices follow.
func (s *story) appear(ctx context.Context) error {
	s.line.say("three services and six pods appear in namespace %s", namespace)
	began := time.Now()
	for _, a := range apps {
		if err := s.create(ctx, a); err != nil {
			return err
		}
	}
	took := make([]time.Duration, len(apps))
	for i, a := range apps {
		at, err := s.seen.await(ctx, a.name, a.names()...)
		if err != nil {
			return err
		}
		took[i] = at.Sub(began)
	}
	by := s.holder(ctx)
	for i, a := range apps {
		s.line.check(fmt.Sprintf("service %s has its %d pods", a.name, a.pods), by, took[i], 2*soon)
	}
	s.seen.expectSteady("db-0", "db")
	return nil
}

func (s *story) create(ctx context.Context, a app) error {
	labels := map[string]string{"app": a.name}
	if err := s.createService(ctx, a.name, labels); err != nil {
		return err
	}
	for _, name := range a.names() {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Image: "example"}}},
		}
		if _, err := s.api.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("creating pod %s: %w", name, err)
		}
	}
	return nil
}

// setReady flips a pod and waits for the slices of its service.
func (s *story) setReady(ctx context.Context, pod string, ready bool) (time.Time, error) {
	p, err := s.api.CoreV1().Pods(namespace).Get(ctx, pod, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("reading pod %s: %w", pod, err)
	}
	began := time.Now()
	if err := s.kubelet.SetReady(ctx, p, ready); err != nil {
		return began, fmt.Errorf("setting pod %s ready=%t: %w", pod, ready, err)
	}
	return began, nil
}

// flip: a pod fails its readiness probe and recovers.
func (s *story) flip(ctx context.Context) error {
	for _, ready := range []bool{false, true} {
		s.line.say("web-1 becomes ready=%t", ready)
		began, err := s.setReady(ctx, "web-1", ready)
		if err != nil {
			return err
		}
		want := []string{"web-0", "web-2"}
		if ready {
			want = append(want, "web-1")
		}
		at, err := s.seen.await(ctx, "web", want...)
		if err != nil {
			return err
		}
		s.line.check(fmt.Sprintf("web-1 ready=%t stands in the slice", ready), s.holder(ctx), at.Sub(began), soon)
	}
	return nil
}

// relabel: a pod is taken out of its service by hand.
func (s *story) relabel(ctx context.Context) error {
	s.line.say("somebody relabels web-2: it no longer belongs to service web")
	began := time.Now()
	patch := []byte(`{"metadata":{"labels":{"app":"quarantine"}}}`)
	if _, err := s.api.CoreV1().Pods(namespace).Patch(ctx, "web-2", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("relabelling: %w", err)
	}
	at, err := s.seen.await(ctx, "web", "web-0", "web-1")
	if err != nil {
		return err
	}
	s.line.check("web-2 has left the slice", s.holder(ctx), at.Sub(began), soon)
	return nil
}

// kill: the replica that holds the namespace dies without a word.
func (s *story) kill(ctx context.Context) error {
	victim := s.holder(ctx)
	i := slices.IndexFunc(s.f.Members(role), func(m *fleet.Member) bool { return m.Name == victim })
	if i < 0 {
		return fmt.Errorf("nobody holds namespace %s", namespace)
	}
	s.line.say("%s holds namespace %s: kill -9, and at once api-0 becomes ready=false", victim, namespace)
	began := time.Now()
	s.f.Members(role)[i].Kill()
	if _, err := s.setReady(ctx, "api-0", false); err != nil {
		return err
	}
	at, err := s.seen.await(ctx, "api", "api-1")
	if err != nil {
		return err
	}
	s.line.check("api-0 has left the slice although its replica is dead", s.holder(ctx), at.Sub(began), takeover)
	return s.describe(ctx)
}

// join: one more replica comes and gets its share.
func (s *story) join(ctx context.Context) error {
	s.line.say("a fourth replica joins")
	began := time.Now()
	m, err := s.f.Member(ctx, role, role+"-4")
	if err != nil {
		return err
	}
	for {
		held, all, err := s.held(ctx, m.Name)
		if err != nil {
			return err
		}
		if held > 0 && all {
			s.line.check(fmt.Sprintf("%s holds %d partitions, and every partition has a holder", m.Name, held), m.Name, time.Since(began), 3*takeover)
			break
		}
		select {
		case <-time.After(20 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s to hold something: %w", m.Name, ctx.Err())
		}
	}
	return s.describe(ctx)
}

// leave: a pod is deleted, and the slice follows.
func (s *story) leave(ctx context.Context) error {
	s.line.say("web-0 is deleted")
	began := time.Now()
	if err := s.api.CoreV1().Pods(namespace).Delete(ctx, "web-0", metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting pod: %w", err)
	}
	at, err := s.seen.await(ctx, "web", "web-1")
	if err != nil {
		return err
	}
	s.line.check("web-0 has left the slice", s.holder(ctx), at.Sub(began), soon)
	return nil
}

// holder returns the replica that holds the namespace.
func (s *story) holder(ctx context.Context) string {
	st, err := s.f.Status(ctx)
	if err != nil {
		return "?"
	}
	unit := strconv.Itoa(partition.OfNamespace(event.Key{Namespace: namespace}, st.Partitions))
	if host, ok := st.Holders(role)[unit]; ok {
		return host
	}
	return "nobody"
}

// held returns how many partitions a replica holds, and whether all are held.
func (s *story) held(ctx context.Context, name string) (n int, all bool, err error) {
	st, err := s.f.Status(ctx)
	if err != nil {
		return 0, false, err
	}
	for _, r := range st.Roles {
		if r.Role != role {
			continue
		}
		all = r.Held == r.Units
		for _, m := range r.Members {
			if m.Host == name {
				n = len(m.Units)
			}
		}
	}
	return n, all, nil
}

// describe prints who holds how much.
func (s *story) describe(ctx context.Context) error {
	st, err := s.f.Status(ctx)
	if err != nil {
		return err
	}
	for _, r := range st.Roles {
		if r.Role == "watcher" {
			continue
		}
		held := make([]string, len(r.Members))
		for i, m := range r.Members {
			held[i] = fmt.Sprintf("%s: %d", m.Host, len(m.Units))
		}
		s.line.say("partitions held  %s", strings.Join(held, "  "))
	}
	return nil
}
