// Package e2e holds tests of a whole installation, run as processes.
package e2e

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The shortest way through: a service is made, and gets its slice.
func TestAServiceGetsItsSlice(t *testing.T) {
	ctx, f := begin(t, 3*time.Minute)
	startReady(ctx, t, f, 3)
	api := adminClient(f)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	if _, err := api.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	took := eventually(ctx, t, 10*time.Second, "a slice", func() (bool, string) {
		list, err := api.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: discoveryv1.LabelServiceName + "=web"})
		return err == nil && len(list.Items) == 1, "none"
	})
	t.Logf("slice after %s", took.Round(time.Millisecond))
	out, err := f.Run(ctx, "status")
	if err != nil {
		t.Error(err)
	}
	t.Log(out)
}
