package kubetest

import (
	"errors"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

func TestADeniedVerbFailsForThatUserOnlyUntilTheDenialIsRemoved(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	slices := kubernetes.NewForConfigOrDie(c.Config(RoleEndpoints)).DiscoveryV1().EndpointSlices(c.Namespace(t))
	remove, err := c.DenyVerb(ctx, Denial{
		Operation: admissionv1.Create,
		Group:     "discovery.k8s.io",
		Resource:  "endpointslices",
		User:      "millrace:endpoints",
	})
	if err != nil {
		t.Fatalf("DenyVerb() = %v", err)
	}
	made := slice("mine")
	if _, err := slices.Create(ctx, made, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("creating while denied = %v, want Forbidden", err)
	}
	if _, err := c.Client().DiscoveryV1().EndpointSlices("default").Create(ctx, slice("others"), metav1.CreateOptions{}); err != nil {
		t.Errorf("creating as somebody else: %v", err)
	}
	if _, err := c.Client().CoreV1().ConfigMaps("default").Create(ctx, configMap("others"), metav1.CreateOptions{}); err != nil {
		t.Errorf("creating something else: %v", err)
	}
	if err := remove(ctx); err != nil {
		t.Fatalf("remove() = %v", err)
	}
	if _, err := slices.Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating once allowed again: %v", err)
	}
}

func TestADenialMayNameASubresourceAndAReason(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	client, ns := c.Client(), c.Namespace(t)
	pod, err := client.CoreV1().Pods(ns).Create(ctx, boundPod("p", ""), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating a pod: %v", err)
	}
	remove, err := c.DenyVerb(ctx, Denial{
		Operation: admissionv1.Update,
		Resource:  "pods/status",
		Reason:    metav1.StatusReasonInvalid,
	})
	if err != nil {
		t.Fatalf("DenyVerb() = %v", err)
	}
	defer remove(ctx)
	pod.Labels = map[string]string{"seen": "yes"}
	if pod, err = client.CoreV1().Pods(ns).Update(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("updating the pod itself: %v", err)
	}
	if _, err := client.CoreV1().Pods(ns).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); !apierrors.IsInvalid(err) {
		t.Errorf("updating its status = %v, want Invalid", err)
	}
}

func TestADenialMayBeOfOneNamespace(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	here, there := c.Namespace(t), c.Namespace(t)
	remove, err := c.DenyVerb(ctx, Denial{Operation: admissionv1.Create, Resource: "secrets", Namespace: here})
	if err != nil {
		t.Fatalf("DenyVerb() = %v", err)
	}
	defer remove(ctx)
	made := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "s"}}
	if _, err := c.Client().CoreV1().Secrets(here).Create(ctx, made, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("creating where it is denied = %v, want Forbidden", err)
	}
	if _, err := c.Client().CoreV1().Secrets(there).Create(ctx, made, metav1.CreateOptions{}); err != nil {
		t.Errorf("creating elsewhere: %v", err)
	}
}

func TestABrokenKindIsDiscoveredButCannotBeReadUntilRepaired(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	gvr, repair, err := c.BrokenKind(ctx)
	if err != nil {
		t.Fatalf("BrokenKind() = %v", err)
	}
	found, err := discovery.NewDiscoveryClientForConfigOrDie(c.Admin()).ServerResourcesForGroupVersion(gvr.GroupVersion().String())
	if err != nil || len(found.APIResources) == 0 {
		t.Errorf("discovery = %v, %v; want the kind", found, err)
	}
	client := dynamic.NewForConfigOrDie(c.Admin()).Resource(gvr)
	if _, err := client.List(ctx, metav1.ListOptions{}); err == nil {
		t.Error("the broken kind could be listed")
	}
	start := time.Now()
	if err := repair(ctx); err != nil {
		t.Fatalf("repair() = %v", err)
	}
	t.Logf("repaired in %s", time.Since(start))
	list, err := client.List(ctx, metav1.ListOptions{})
	if err != nil || len(list.Items) != 1 {
		t.Errorf("listing the repaired kind = %v, %v; want its one object", list, err)
	}
}

// A cluster of its own: while discovery is broken it is so for everybody.
func TestBrokenDiscoveryIsIncompleteUntilRepaired(t *testing.T) {
	c, ctx := Start(t), bounded(t)
	group, repair, err := c.BrokenDiscovery(ctx)
	if err != nil {
		t.Fatalf("BrokenDiscovery() = %v", err)
	}
	client := c.Client().Discovery()
	_, found, err := client.ServerGroupsAndResources()
	var failed *discovery.ErrGroupDiscoveryFailed
	if !errors.As(err, &failed) || len(failed.Groups) != 1 {
		t.Errorf("discovery = %v, want a failure of %s alone", err, group)
	}
	if len(found) == 0 {
		t.Error("discovery found nothing of the groups that work")
	}
	if err := repair(ctx); err != nil {
		t.Fatalf("repair() = %v", err)
	}
	if _, _, err := client.ServerGroupsAndResources(); err != nil {
		t.Errorf("discovery once repaired: %v", err)
	}
}
