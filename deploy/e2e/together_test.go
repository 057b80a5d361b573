package e2e

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// Contract: 6.6. The watch of pods breaks, that of services goes on. Meanwhile new
// pods become ready and their service turns to them: nobody may decide on the new
// selector and the pods of before, or clients are left with nothing.
func TestASliceJoinsNoMomentsApart(t *testing.T) {
	ctx, f := begin(t, 3*time.Minute)
	proxy := kubetest.StartProxy(t, f.Cluster)
	kubeconfig, err := proxy.Kubeconfig(kubetest.RoleWatcher)
	if err != nil {
		t.Fatal(err)
	}
	member := start(ctx, t, f, "endpoints")
	ready(ctx, t, start(ctx, t, f, "watcher", "KUBECONFIG="+kubeconfig), member)
	w := prepare(ctx, t, f, prefixOf(t), 1, 60)
	o := observe(ctx, t, f, w.prefix)
	s := w.spaces[0]
	serve := func(version string) {
		t.Helper()
		p := s.newPod(version)
		p.Labels = map[string]string{"version": version}
		made, err := w.api.CoreV1().Pods(s.name).Create(ctx, p, metav1.CreateOptions{})
		if err == nil {
			err = s.report(ctx, made, corev1.PodRunning, true)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	serve("blue")
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: s.name},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"version": "blue"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := w.api.CoreV1().Services(s.name).Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	o.awaitRest(ctx, t, f, 30*time.Second)
	whole(ctx, t, f)

	proxy.Refuse("pods")
	eventually(ctx, t, 20*time.Second, "pods are too old", func() (bool, string) {
		m, err := member.Metrics(ctx)
		if err != nil {
			return false, err.Error()
		}
		age := m.Sum("millrace_controller_freshness_seconds", "kind", "pods")
		return age > 4, fmt.Sprintf("they are %.1f s old", age)
	})
	serve("green")
	turn := []byte(`{"spec":{"selector":{"version":"green"}}}`)
	if _, err := w.api.CoreV1().Services(s.name).Patch(ctx, "web", types.MergePatchType, turn, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	pause(ctx, 2*time.Second) // a decision takes milliseconds
	proxy.Accept("pods")
	rest := o.awaitRest(ctx, t, f, 30*time.Second)

	o.mu.Lock()
	defer o.mu.Unlock()
	var said []string
	for _, r := range o.log {
		slice, ok := r.object.(*discoveryv1.EndpointSlice)
		if !ok || slice.Labels[discoveryv1.LabelServiceName] != "web" {
			continue
		}
		names := ""
		for _, e := range endpointsIn(slice) {
			if e.Ready {
				names += " " + e.Pod
			}
		}
		if names == "" && len(said) > 0 {
			t.Errorf("revision %d leaves nobody", r.revision)
		}
		if names != "" {
			said = append(said, names)
		}
	}
	t.Logf("slices said%s, at rest after %s", said, rest.Round(time.Millisecond))
}
