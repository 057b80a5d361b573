package kubetest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
)

// bounded is a context that ends a stuck test long before go test does.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func TestAStoppedClusterLeavesNoProcess(t *testing.T) {
	c := Start(t)
	if _, err := c.Client().Discovery().ServerVersion(); err != nil {
		t.Fatalf("reading the version: %v", err)
	}
	pid := c.Pid()
	if err := c.Stop(); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("signalling the stopped process = %v, want %v", err, syscall.ESRCH)
	}
	if err := c.Stop(); err != nil {
		t.Errorf("second Stop() = %v", err)
	}
}

func TestEachRoleMayDoWhatItNeedsAndNoMore(t *testing.T) {
	c, ctx := Shared(t), bounded(t)
	ns := c.Namespace(t)

	list := func(k kubernetes.Interface) error {
		_, err := k.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		return err
	}
	get := func(k kubernetes.Interface) error {
		_, err := k.CoreV1().Pods(ns).Get(ctx, "nobody", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	write := func(k kubernetes.Interface) error {
		_, err := k.CoreV1().ConfigMaps(ns).Create(ctx, configMap("mine"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	pause := func(k kubernetes.Interface) error {
		_, err := k.CoreV1().ConfigMaps(ns).Get(ctx, "millrace", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	// What is allowed and not there is NotFound; what is not allowed is Forbidden.
	there := func(err error) error {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	patch := func(resource, namespace string, subresources ...string) func(kubernetes.Interface) error {
		return func(k kubernetes.Interface) error {
			return there(k.CoreV1().RESTClient().Patch(types.MergePatchType).NamespaceIfScoped(namespace, namespace != "").
				Resource(resource).Name("nobody").SubResource(subresources...).Body([]byte("{}")).Do(ctx).Error())
		}
	}
	lease := func(namespace string) func(kubernetes.Interface) error {
		return func(k kubernetes.Interface) error {
			_, err := k.CoordinationV1().Leases(namespace).Get(ctx, "nobody", metav1.GetOptions{})
			return there(err)
		}
	}
	listNodes := func(k kubernetes.Interface) error {
		_, err := k.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
		return err
	}
	evict := func(k kubernetes.Interface) error {
		return there(k.CoreV1().Pods(ns).Delete(ctx, "nobody", metav1.DeleteOptions{}))
	}
	evictBudgeted := func(k kubernetes.Interface) error {
		return there(k.PolicyV1().Evictions(ns).Evict(ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: "nobody", Namespace: ns}}))
	}
	readNode := func(k kubernetes.Interface) error {
		_, err := k.CoreV1().Nodes().Get(ctx, "nobody", metav1.GetOptions{})
		return there(err)
	}
	tests := map[string]struct {
		role    string
		do      func(kubernetes.Interface) error
		allowed bool
	}{
		"the admin writes":                             {RoleAdmin, write, true},
		"the watcher lists":                            {RoleWatcher, list, true},
		"the watcher does not write":                   {RoleWatcher, write, false},
		"the watcher reads no ConfigMap":               {RoleWatcher, pause, false},
		"endpoints reads no pod live":                  {RoleEndpoints, get, false},
		"endpoints does not list pods":                 {RoleEndpoints, list, false},
		"endpoints reads the pause switch":             {RoleEndpoints, pause, true},
		"endpoints does not write ConfigMaps":          {RoleEndpoints, write, false},
		"node lifecycle reads one pod":                 {RoleNodeLifecycle, get, true},
		"node lifecycle taints a node":                 {RoleNodeLifecycle, patch("nodes", ""), true},
		"node lifecycle writes a node's conditions":    {RoleNodeLifecycle, patch("nodes", "", "status"), true},
		"node lifecycle writes a pod's conditions":     {RoleNodeLifecycle, patch("pods", ns, "status"), true},
		"node lifecycle changes no pod":                {RoleNodeLifecycle, patch("pods", ns), false},
		"node lifecycle deletes no pod":                {RoleNodeLifecycle, evict, false},
		"node lifecycle does not list nodes":           {RoleNodeLifecycle, listNodes, false},
		"node lifecycle reads a node's lease":          {RoleNodeLifecycle, lease(corev1.NamespaceNodeLease), true},
		"node lifecycle reads no other lease":          {RoleNodeLifecycle, lease("kube-system"), false},
		"node lifecycle reads the pause switch":        {RoleNodeLifecycle, pause, true},
		"the watcher lists nodes":                      {RoleWatcher, listNodes, true},
		"the evictor does not list":                    {RolePodEvictor, list, false},
		"the evictor reads one pod":                    {RolePodEvictor, get, true},
		"the evictor deletes a pod":                    {RolePodEvictor, evict, true},
		"the evictor evicts a pod":                     {RolePodEvictor, evictBudgeted, true},
		"the evictor writes a pod's status":            {RolePodEvictor, patch("pods", ns, "status"), true},
		"the evictor changes no pod":                   {RolePodEvictor, patch("pods", ns), false},
		"the evictor reads a node":                     {RolePodEvictor, readNode, true},
		"the evictor taints no node":                   {RolePodEvictor, patch("nodes", ""), false},
		"the evictor writes no node's conditions":      {RolePodEvictor, patch("nodes", "", "status"), false},
		"the evictor reads the pause switch":           {RolePodEvictor, pause, true},
		"quota reads one pod":                          {RoleQuota, get, true},
		"its own user gives the manager no ConfigMaps": {RoleControllerManager, write, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.do(kubernetes.NewForConfigOrDie(c.Config(tt.role)))
			if tt.allowed && err != nil {
				t.Errorf("error = %v, want none", err)
			}
			if !tt.allowed && !apierrors.IsForbidden(err) {
				t.Errorf("error = %v, want Forbidden", err)
			}
		})
	}
}

func TestAKilledClusterContinuesWithItsData(t *testing.T) {
	c, ctx := Start(t), bounded(t)
	server, pid := c.Server(), c.Pid()
	client := c.Client()
	if _, err := client.CoreV1().ConfigMaps("default").Create(ctx, configMap("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating: %v", err)
	}
	c.Kill()
	if err := c.Restart(ctx); err != nil {
		t.Fatalf("Restart() = %v", err)
	}
	if c.Server() != server {
		t.Errorf("server moved from %s to %s", server, c.Server())
	}
	if c.Pid() == pid {
		t.Error("the process is the old one")
	}
	// The old client, to show that ports and tokens stayed.
	if _, err := client.CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("reading what was written before the kill: %v", err)
	}
}

func TestASecondClusterOnTheSameDirectoryContinuesTheFirst(t *testing.T) {
	ctx := bounded(t)
	dir := t.TempDir()
	first := Start(t, WithDurableDir(dir))
	if _, err := first.Client().CoreV1().ConfigMaps("default").Create(ctx, configMap("kept"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating: %v", err)
	}
	if err := first.Stop(); err != nil {
		t.Fatalf("Stop() = %v", err)
	}
	second, err := Launch(ctx, dir, os.Stderr)
	if err != nil {
		t.Fatalf("Launch() = %v", err)
	}
	defer second.Stop()
	if _, err := second.Client().CoreV1().ConfigMaps("default").Get(ctx, "kept", metav1.GetOptions{}); err != nil {
		t.Errorf("reading what the first cluster wrote: %v", err)
	}
}

func TestAfterCompactionAndRestartHistoryIsGone(t *testing.T) {
	c, ctx := Start(t), bounded(t)
	maps := c.Client().CoreV1().ConfigMaps("default")
	old, err := maps.Create(ctx, configMap("first"), metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("creating: %v", err)
	}
	if _, err := maps.Create(ctx, configMap("second"), metav1.CreateOptions{}); err != nil {
		t.Fatalf("creating: %v", err)
	}
	// A list of the past is read from etcd itself, so it tells a compaction from a
	// mere restart, after which the server's memory is empty as well.
	past := metav1.ListOptions{ResourceVersion: old.ResourceVersion, ResourceVersionMatch: metav1.ResourceVersionMatchExact}
	if err := c.Restart(ctx); err != nil {
		t.Fatalf("Restart() = %v", err)
	}
	if _, err := maps.List(ctx, past); err != nil {
		t.Fatalf("listing the past after a restart alone: %v", err)
	}
	if err := c.Compact(ctx); err != nil {
		t.Fatalf("Compact() = %v", err)
	}
	if err := c.Restart(ctx); err != nil {
		t.Fatalf("Restart() = %v", err)
	}
	if _, err := maps.List(ctx, past); !apierrors.IsResourceExpired(err) {
		t.Errorf("listing revision %s = %v, want 410 Expired", old.ResourceVersion, err)
	}
	w, err := maps.Watch(ctx, metav1.ListOptions{ResourceVersion: old.ResourceVersion})
	if err == nil {
		defer w.Stop()
		event := <-w.ResultChan()
		if event.Type != watch.Error {
			t.Fatalf("first event = %s %v, want an error", event.Type, event.Object)
		}
		err = apierrors.FromObject(event.Object)
	}
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		t.Errorf("watching from revision %s = %v, want 410 Gone", old.ResourceVersion, err)
	}
}

func TestMoreRightsMayBeGivenAtTheStart(t *testing.T) {
	file := filepath.Join(t.TempDir(), "rbac.yaml")
	rights := `
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: more, namespace: default}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "millrace:watcher"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "millrace:quota"}]
`
	if err := os.WriteFile(file, []byte(rights), 0o600); err != nil {
		t.Fatal(err)
	}
	c, ctx := Start(t, WithRBACFiles(file)), bounded(t)
	client := kubernetes.NewForConfigOrDie(c.Config(RoleQuota))
	if _, err := client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{}); err != nil {
		t.Errorf("listing pods with the file's rights: %v", err)
	}
}

func TestAFrozenServerAnswersNothingUntilItThaws(t *testing.T) {
	c, ctx := Start(t), bounded(t)
	if err := c.Freeze(); err != nil {
		t.Fatalf("Freeze() = %v", err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	client := c.Client()
	if _, err := client.CoreV1().Namespaces().Get(short, "default", metav1.GetOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("reading from a frozen server = %v, want %v", err, context.DeadlineExceeded)
	}
	if err := c.Thaw(); err != nil {
		t.Fatalf("Thaw() = %v", err)
	}
	if _, err := client.CoreV1().Namespaces().Get(ctx, "default", metav1.GetOptions{}); err != nil {
		t.Errorf("reading from a thawed server: %v", err)
	}
}
