// Package e2e holds tests of a whole installation, run as processes.
package e2e

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/deploy/fleet"
)

func TestAServiceGetsItsSlice(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	f, err := fleet.Start(ctx, fleet.Options{Dir: t.TempDir(), Progress: testWriter{t}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 30*time.Second)
		defer cancel()
		if err := f.Stop(ctx); err != nil {
			t.Error(err)
		}
	})
	var members []*fleet.Member
	for role, names := range map[string][]string{"watcher": {"watcher-1"}, "endpoints": {"endpoints-1", "endpoints-2", "endpoints-3"}} {
		for _, name := range names {
			m, err := f.Member(ctx, role, name)
			if err != nil {
				t.Fatal(err)
			}
			members = append(members, m)
		}
	}
	began := time.Now()
	for _, m := range members {
		if err := m.AwaitReady(ctx); err != nil {
			t.Fatalf("%v\n%s", err, m.Output())
		}
	}
	t.Logf("ready after %s", time.Since(began))
	api := f.Cluster.Client()
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "default"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	began = time.Now()
	if _, err := api.CoreV1().Services("default").Create(ctx, svc, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for {
		list, err := api.DiscoveryV1().EndpointSlices("default").List(ctx, metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=web"})
		if err != nil {
			t.Fatal(err)
		}
		if len(list.Items) == 1 {
			t.Logf("slice %s after %s", list.Items[0].Name, time.Since(began))
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	out, err := f.Run(ctx, "status")
	t.Logf("%s %v", out, err)
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) { w.t.Logf("%s", p); return len(p), nil }
