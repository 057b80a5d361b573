package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The taint of most tests: not one that admission adds tolerations for.
const testTaint = "example.com/evict"

// stage is where one test keeps its pods and nodes, apart from all others.
type stage struct {
	*evictWorld
	t  *testing.T
	ns string
}

// on makes the stage of a test in a world.
func (w *evictWorld) on(ctx context.Context, t *testing.T) *stage {
	t.Helper()
	name := prefixOf(t)
	s := &stage{evictWorld: w, t: t, ns: name[:len(name)-1]}
	w.namespace(ctx, s.ns)
	return s
}

func (w *evictWorld) namespace(ctx context.Context, name string) {
	w.t.Helper()
	_, err := w.api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if !apierrors.IsAlreadyExists(err) {
		w.must(err)
	}
}

// must is the world's, but fails this test alone.
func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Error(err)
	}
}

// noExecute is such a taint, put on at that time; the zero time is none, as
// kubectl does it.
func noExecute(key string, added time.Time) corev1.Taint {
	taint := corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
	if !added.IsZero() {
		at := metav1.NewTime(added.Truncate(time.Second))
		taint.TimeAdded = &at
	}
	return taint
}

// tolerate is a toleration for so many seconds; negative is for ever.
func tolerate(key string, seconds int64) corev1.Toleration {
	t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
	if seconds >= 0 {
		t.TolerationSeconds = &seconds
	}
	return t
}

// node makes a node with these taints; its name is of this stage.
func (s *stage) node(ctx context.Context, name string, taints ...corev1.Taint) string {
	s.t.Helper()
	name = s.ns + "-" + name
	_, err := s.api.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{Taints: taints},
	}, metav1.CreateOptions{})
	s.must(err)
	return name
}

// nodes makes so many.
func (s *stage) nodes(ctx context.Context, n int, taints ...corev1.Taint) (names []string) {
	s.t.Helper()
	for i := range n {
		names = append(names, s.node(ctx, fmt.Sprintf("n%03d", i), taints...))
	}
	return names
}

func (s *stage) deleteNode(ctx context.Context, name string) {
	s.t.Helper()
	s.must(s.api.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}))
}

// taint makes these a node's taints, as a person would: without a look at what
// is there.
func (s *stage) taint(ctx context.Context, node string, taints ...corev1.Taint) {
	s.t.Helper()
	if taints == nil {
		taints = []corev1.Taint{} // not null
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	s.must(err)
	_, err = s.api.CoreV1().Nodes().Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{})
	s.must(err)
}

// change is what a test wants of a pod besides.
type change func(*corev1.Pod)

func tolerating(tolerations ...corev1.Toleration) change {
	return func(p *corev1.Pod) { p.Spec.Tolerations = tolerations }
}

// lingering pods keep their deletionTimestamp until somebody ends them; others
// are gone with it.
func lingering(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = new(int64(30)) }

func finalized(p *corev1.Pod) { p.Finalizers = []string{"example.com/kept"} }

// pod makes a pod, bound if it has a node.
func (s *stage) pod(ctx context.Context, name, node string, changes ...change) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: s.ns},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{Name: "c", Image: "i"}},
		},
	}
	for _, c := range changes {
		c(p)
	}
	made, err := s.api.CoreV1().Pods(s.ns).Create(ctx, p, metav1.CreateOptions{})
	if err != nil {
		s.t.Errorf("making pod %s: %v", name, err)
		return p
	}
	return made
}

// bind is what a scheduler does.
func (s *stage) bind(ctx context.Context, p *corev1.Pod, node string) {
	s.t.Helper()
	s.must(s.api.CoreV1().Pods(s.ns).Bind(ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: p.Name, Namespace: s.ns, UID: p.UID},
		Target:     corev1.ObjectReference{Kind: "Node", Name: node},
	}, metav1.CreateOptions{}))
}

// status changes a pod's status, as its kubelet would.
func (s *stage) status(ctx context.Context, name string, status corev1.PodStatus) *corev1.Pod {
	s.t.Helper()
	patch, err := json.Marshal(map[string]any{"status": status})
	s.must(err)
	p, err := s.api.CoreV1().Pods(s.ns).Patch(ctx, name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	s.must(err)
	return p
}

// delete deletes a pod in the name of the test, which no oracle then asks about.
func (s *stage) delete(ctx context.Context, p *corev1.Pod, o metav1.DeleteOptions) {
	s.t.Helper()
	s.log.ours(p.UID)
	s.must(gone(s.api.CoreV1().Pods(s.ns).Delete(ctx, p.Name, o)))
}

func (w *evictWorld) unfinalize(ctx context.Context, ns, name string) {
	_, err := w.api.CoreV1().Pods(ns).Patch(ctx, name, types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`), metav1.PatchOptions{})
	if gone(err) != nil {
		w.t.Error(err)
	}
}

// explained is what millrace tells of a pod, for a test that fails.
func (s *stage) explained(ctx context.Context, name string) string {
	out, err := s.f.Run(ctx, "explain", "pod", s.ns+"/"+name)
	if err != nil {
		return err.Error()
	}
	return out
}
