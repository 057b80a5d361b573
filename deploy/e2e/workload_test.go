package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"

	"github.com/millrace-io/millrace/deploy/fleet"
)

const (
	namespaces = 6
	anchors    = 4  // pods per namespace that stay ready for as long as the test lasts
	podNames   = 22 // per namespace, anchors besides
	zones      = 3
	nodesHere  = 6
)

var (
	apps  = []string{"a", "b", "c"}
	tiers = []string{"x", "y"}
)

// workload changes services and pods at random, from a seed, each namespace in
// an order of its own. What a kubelet and a scheduler would do is done here,
// directly: pods are bound when they are made and their status is patched.
type workload struct {
	api       kubernetes.Interface
	prefix    string
	perSecond float64
	spaces    []*space

	changes atomic.Int64 // that the API server took
	address atomic.Uint32
}

// space is one namespace, and what its worker believes is in it. The API
// server may know better: a write that finds its object gone or there already
// only mends the belief.
type space struct {
	w        *workload
	name     string
	rng      *rand.Rand
	pods     map[string]*corev1.Pod // by name; anchors are not among them
	services map[string]bool
}

func (s *space) pick(list []string) string { return list[s.rng.IntN(len(list))] }

func (s *space) chance(percent int) bool { return s.rng.IntN(100) < percent }

// prepare makes nodes, namespaces, anchors and a steady service in each.
func prepare(ctx context.Context, t *testing.T, f *fleet.Fleet, prefix string, seed uint64, perSecond float64) *workload {
	t.Helper()
	w := &workload{api: adminClient(f), prefix: prefix, perSecond: perSecond}
	if err := makeNodes(ctx, w.api); err != nil {
		t.Fatal(err)
	}
	for i := range namespaces {
		s := &space{
			w: w, name: fmt.Sprintf("%s%d", prefix, i), rng: rand.New(rand.NewPCG(seed, uint64(i))), //nolint:gosec // a seed is the point
			pods: map[string]*corev1.Pod{}, services: map[string]bool{},
		}
		if err := s.begin(ctx); err != nil {
			t.Fatal(err)
		}
		w.spaces = append(w.spaces, s)
	}
	return w
}

// makeNodes makes those of the nodes of workloads that are not there.
func makeNodes(ctx context.Context, api kubernetes.Interface) error {
	for i := range nodesHere {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
			Name: nodeName(i), Labels: map[string]string{corev1.LabelTopologyZone: zoneName(i)},
		}}
		if _, err := api.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	return nil
}

func nodeName(i int) string { return fmt.Sprintf("e2e-node-%d", i) }

func zoneName(i int) string { return fmt.Sprintf("zone-%d", i%zones) }

func (s *space) begin(ctx context.Context) error {
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: s.name}}
	if _, err := s.w.api.CoreV1().Namespaces().Create(ctx, ns, metav1.CreateOptions{}); err != nil {
		return err
	}
	steady := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "steady", Namespace: s.name},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"steady": "yes"},
			Ports:    []corev1.ServicePort{{Name: "http", Port: 80, TargetPort: intstr.FromString("http")}},
		},
	}
	if _, err := s.w.api.CoreV1().Services(s.name).Create(ctx, steady, metav1.CreateOptions{}); err != nil {
		return err
	}
	for i := range anchors {
		p := s.newPod(fmt.Sprintf("anchor-%d", i))
		p.Labels["steady"], p.Labels["app"] = "yes", apps[i%len(apps)]
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
		made, err := s.w.api.CoreV1().Pods(s.name).Create(ctx, p, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if err := s.report(ctx, made, corev1.PodRunning, true); err != nil {
			return err
		}
	}
	return nil
}

// run makes that many changes, and waits out faults: it ends early only with
// ctx. Each namespace has a worker of its own.
func (w *workload) run(ctx context.Context, changes int) {
	var wg sync.WaitGroup
	limit := w.changes.Load() + int64(changes)
	for _, s := range w.spaces {
		wg.Go(func() {
			pace := time.NewTicker(time.Duration(float64(time.Second) * float64(len(w.spaces)) / w.perSecond))
			defer pace.Stop()
			for w.changes.Load() < limit {
				select {
				case <-ctx.Done():
					return
				case <-pace.C:
				}
				s.change(ctx)
			}
		})
	}
	wg.Wait()
}

// change does one thing.
func (s *space) change(ctx context.Context) {
	switch n := s.rng.IntN(100); {
	case n < 24:
		s.createPod(ctx)
	case n < 54:
		s.flip(ctx)
	case n < 64:
		s.relabel(ctx)
	case n < 78:
		s.deletePod(ctx)
	case n < 82:
		s.finish(ctx)
	case n < 87:
		s.createService(ctx)
	case n < 97:
		s.editService(ctx)
	case n < 99:
		s.deleteService(ctx)
	default:
		s.moveNode(ctx)
	}
}

// try repeats what fails for reasons that pass, and reports whether it was done.
func (s *space) try(ctx context.Context, do func(ctx context.Context) error) bool {
	for ctx.Err() == nil {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
			defer cancel()
			return do(ctx)
		}()
		switch {
		case err == nil:
			s.w.changes.Add(1)
			return true
		case apierrors.IsNotFound(err), apierrors.IsAlreadyExists(err), apierrors.IsConflict(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
			return false
		}
		select {
		case <-ctx.Done():
		case <-time.After(200 * time.Millisecond):
		}
	}
	return false
}

func (s *space) newPod(name string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.name, Labels: s.labels()},
		Spec: corev1.PodSpec{
			NodeName:   nodeName(s.rng.IntN(nodesHere)),
			Containers: []corev1.Container{{Name: "c", Image: "none"}},
		},
	}
	switch s.rng.IntN(4) {
	case 0: // it has no such port
	case 1:
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 9090}}
	default:
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}
	}
	if s.chance(20) {
		p.Spec.Hostname, p.Spec.Subdomain = name, s.serviceName()
	}
	return p
}

func (s *space) labels() map[string]string {
	l := map[string]string{"app": s.pick(apps), "tier": s.pick(tiers)}
	if s.chance(25) {
		l["steady"] = "yes"
	}
	return l
}

func (s *space) createPod(ctx context.Context) {
	name := fmt.Sprintf("pod-%d", s.rng.IntN(podNames))
	if s.pods[name] != nil {
		s.flip(ctx)
		return
	}
	var made *corev1.Pod
	want := s.newPod(name)
	done := s.try(ctx, func(ctx context.Context) (err error) {
		made, err = s.w.api.CoreV1().Pods(s.name).Create(ctx, want, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) { // an answer got lost
			made, err = s.w.api.CoreV1().Pods(s.name).Get(ctx, name, metav1.GetOptions{})
		}
		return err
	})
	if !done {
		return
	}
	s.pods[name] = made
	if s.chance(85) { // the others are seen pending for a while
		ready := s.chance(70)
		s.try(ctx, func(ctx context.Context) error { return s.report(ctx, made, corev1.PodRunning, ready) })
	}
}

// report writes a pod's status, as its kubelet would.
func (s *space) report(ctx context.Context, p *corev1.Pod, phase corev1.PodPhase, ready bool) error {
	if p.Status.PodIP == "" {
		n := s.w.address.Add(1)
		p.Status.PodIP = fmt.Sprintf("10.%d.%d.%d", 64+n>>16&63, n>>8&255, n&255)
		p.Status.PodIPs = []corev1.PodIP{{IP: p.Status.PodIP}}
		if n%3 == 0 {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("fd00::%x", n)})
		}
	}
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": p.UID},
		"status": map[string]any{
			"phase": phase, "podIP": p.Status.PodIP, "podIPs": p.Status.PodIPs,
			"conditions": []corev1.PodCondition{{Type: corev1.PodReady, Status: status, LastTransitionTime: metav1.Now()}},
		},
	})
	if err != nil {
		return err
	}
	made, err := s.w.api.CoreV1().Pods(s.name).Patch(ctx, p.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err == nil {
		made.DeepCopyInto(p)
	}
	return err
}

// some returns one of the pods there are, nil if there is none.
func (s *space) some() *corev1.Pod {
	n := s.rng.IntN(podNames) // a map's order would not follow the seed
	for i := range podNames {
		if p := s.pods[fmt.Sprintf("pod-%d", (n+i)%podNames)]; p != nil {
			return p
		}
	}
	return nil
}

func (s *space) flip(ctx context.Context) {
	if p := s.some(); p != nil {
		s.try(ctx, func(ctx context.Context) error { return s.report(ctx, p, corev1.PodRunning, !podReady(p)) })
	}
}

func (s *space) finish(ctx context.Context) {
	if p := s.some(); p != nil {
		phase := corev1.PodFailed
		if s.chance(50) {
			phase = corev1.PodSucceeded
		}
		s.try(ctx, func(ctx context.Context) error { return s.report(ctx, p, phase, podReady(p)) })
	}
}

func (s *space) relabel(ctx context.Context) {
	p := s.some()
	if p == nil {
		return
	}
	labels := map[string]any{"steady": nil}
	for k, v := range s.labels() {
		labels[k] = v
	}
	patch, _ := json.Marshal(map[string]any{"metadata": map[string]any{"uid": p.UID, "labels": labels}})
	s.try(ctx, func(ctx context.Context) error {
		made, err := s.w.api.CoreV1().Pods(s.name).Patch(ctx, p.Name, types.MergePatchType, patch, metav1.PatchOptions{})
		if err == nil {
			made.DeepCopyInto(p)
		}
		return err
	})
}

// deletePod deletes at once, or gracefully: then the pod stays, terminating,
// until it is chosen again.
func (s *space) deletePod(ctx context.Context) {
	p := s.some()
	if p == nil {
		return
	}
	o := metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &p.UID}}
	graceful := p.DeletionTimestamp == nil && s.chance(50)
	if !graceful {
		o.GracePeriodSeconds = new(int64)
	}
	s.try(ctx, func(ctx context.Context) error {
		err := s.w.api.CoreV1().Pods(s.name).Delete(ctx, p.Name, o)
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
		if !graceful {
			delete(s.pods, p.Name)
			return err
		}
		made, err := s.w.api.CoreV1().Pods(s.name).Get(ctx, p.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			delete(s.pods, p.Name)
			return nil
		}
		if err == nil {
			made.DeepCopyInto(p)
		}
		return err
	})
}

func (s *space) serviceName() string { return fmt.Sprintf("svc-%d", s.rng.IntN(4)) }

func (s *space) ports() []corev1.ServicePort {
	named := corev1.ServicePort{Name: "web", Port: 80, TargetPort: intstr.FromString("http")}
	number := corev1.ServicePort{Name: "metrics", Port: 9100, TargetPort: intstr.FromInt32(9100 + s.rng.Int32N(3))}
	switch s.rng.IntN(3) {
	case 0:
		return []corev1.ServicePort{named}
	case 1:
		return []corev1.ServicePort{number}
	default:
		return []corev1.ServicePort{named, number}
	}
}

func (s *space) selector() map[string]string {
	l := map[string]string{"app": s.pick(apps)}
	if s.chance(30) {
		l["tier"] = s.pick(tiers)
	}
	return l
}

func (s *space) createService(ctx context.Context) {
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: s.serviceName(), Namespace: s.name, Labels: map[string]string{"color": s.pick(apps)}},
		Spec: corev1.ServiceSpec{
			Selector: s.selector(), Ports: s.ports(), PublishNotReadyAddresses: s.chance(20),
		},
	}
	if s.chance(30) {
		svc.Spec.ClusterIP = corev1.ClusterIPNone
		if s.chance(30) {
			svc.Spec.Ports = nil
		}
	}
	if s.services[svc.Name] {
		s.editService(ctx)
		return
	}
	s.try(ctx, func(ctx context.Context) error {
		_, err := s.w.api.CoreV1().Services(s.name).Create(ctx, svc, metav1.CreateOptions{})
		if err == nil || apierrors.IsAlreadyExists(err) {
			s.services[svc.Name] = true
		}
		return err
	})
}

func (s *space) editService(ctx context.Context) {
	name := s.serviceName()
	if !s.services[name] {
		return
	}
	var ops []map[string]any
	replace := func(path string, value any) {
		ops = append(ops, map[string]any{"op": "replace", "path": path, "value": value})
	}
	switch s.rng.IntN(4) {
	case 0:
		replace("/spec/selector", s.selector())
	case 1:
		replace("/spec/ports", s.ports())
	case 2:
		ops = append(ops, map[string]any{"op": "add", "path": "/spec/publishNotReadyAddresses", "value": s.chance(50)})
	default:
		replace("/metadata/labels", map[string]string{"color": s.pick(apps)})
	}
	patch, _ := json.Marshal(ops)
	s.try(ctx, func(ctx context.Context) error {
		_, err := s.w.api.CoreV1().Services(s.name).Patch(ctx, name, types.JSONPatchType, patch, metav1.PatchOptions{})
		return err
	})
}

func (s *space) deleteService(ctx context.Context) {
	name := s.serviceName()
	s.try(ctx, func(ctx context.Context) error {
		err := s.w.api.CoreV1().Services(s.name).Delete(ctx, name, metav1.DeleteOptions{})
		if err == nil || apierrors.IsNotFound(err) {
			delete(s.services, name)
		}
		return err
	})
}

// moveNode gives a node another zone.
func (s *space) moveNode(ctx context.Context) {
	patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%q}}}`, corev1.LabelTopologyZone, zoneName(s.rng.IntN(zones)))
	name := nodeName(s.rng.IntN(nodesHere))
	s.try(ctx, func(ctx context.Context) error {
		_, err := s.w.api.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	})
}
