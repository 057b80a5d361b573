package kubetest

import (
	"context"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
)

// eventually polls a condition until ctx ends. A condition that is about the API
// server has no other way to wait that does not trust the code under test.
func eventually(ctx context.Context, t *testing.T, what string, condition func(context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextCancel(ctx, 20*time.Millisecond, true, condition); err != nil {
		t.Fatalf("waiting until %s: %v", what, err)
	}
}

func TestUpstreamsControllerManagerRunsTheControllersItIsTold(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	m := ControllerManager(t, c, "namespace-controller")
	ns := c.Namespace(t)
	namespaces := c.Client().CoreV1().Namespaces()
	if err := namespaces.Delete(ctx, ns, metav1.DeleteOptions{}); err != nil {
		t.Fatalf("deleting the namespace: %v", err)
	}
	eventually(ctx, t, "the namespace is gone", func(ctx context.Context) (bool, error) {
		_, err := namespaces.Get(ctx, ns, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return true, nil
		}
		return false, err
	})
	page, err := m.Metrics(ctx)
	if err != nil {
		t.Fatalf("Metrics() = %v", err)
	}
	if !strings.Contains(string(page), `workqueue_adds_total{name="namespace"}`) {
		t.Error("the metrics page does not count the controller's work")
	}
	m.Kill()
	if err := m.Stop(); err != nil {
		t.Errorf("Stop() after Kill() = %v", err)
	}
}

func TestAControllerManagerThatCannotStartSaysWhy(t *testing.T) {
	c := Shared(t)
	_, err := LaunchControllerManager(bounded(t), c, "no-such-controller")
	if err == nil || !strings.Contains(err.Error(), "kube-controller-manager-") {
		t.Errorf("error = %v, want one that names the log", err)
	}
}

func TestAControllerManagerMayBeElected(t *testing.T) {
	c, ctx := Start(t), bounded(t)
	ControllerManager(t, c, "namespace-controller", "--leader-elect=true")
	leases := c.Client().CoordinationV1().Leases(metav1.NamespaceSystem)
	eventually(ctx, t, "it holds the lease", func(ctx context.Context) (bool, error) {
		lease, err := leases.Get(ctx, "kube-controller-manager", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil && lease.Spec.HolderIdentity != nil && *lease.Spec.HolderIdentity != "", err
	})
}
