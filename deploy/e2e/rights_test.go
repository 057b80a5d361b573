package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// Contract: issue 5, part 6: a missing right makes the role not ready and names the
// verb; given back, it is ready without a restart.
func TestAMissingRight(t *testing.T) {
	ctx, f := begin(t, 5*time.Minute)
	client := f.Cluster.Client()
	watcher := start(ctx, t, f, "watcher")
	ready(ctx, t, watcher)
	evict := "MILLRACE_PODEVICTOR_EVICTION_MODE=evict"
	tests := []struct {
		role, verb, resource string
		env                  []string
		says                 string
	}{
		{role: "endpoints", verb: "delete", resource: "endpointslices", says: "rights: not allowed to delete endpointslices.discovery.k8s.io"},
		{role: "nodelifecycle", verb: "patch", resource: "nodes/status", says: "rights: not allowed to patch nodes/status"},
		{role: "podevictor", verb: "create", resource: "pods/eviction", env: []string{evict}, says: "rights: not allowed to create pods/eviction"},
	}
	give := make([]func(), len(tests))
	members := make([]*fleet.Member, len(tests))
	for i, tt := range tests {
		give[i] = deny(ctx, t, client, tt.role, tt.verb, tt.resource)
		members[i] = start(ctx, t, f, tt.role, tt.env...)
	}
	for i, tt := range tests {
		eventually(ctx, t, 90*time.Second, tt.says, func() (bool, string) { return says(ctx, members[i], tt.says) })
	}
	deleting := start(ctx, t, f, "podevictor") // not in evict mode: it needs no eviction
	ready(ctx, t, deleting)
	for i := range tests {
		give[i]()
	}
	ready(ctx, t, members...)
}

// deny takes one verb on one resource out of the ClusterRole of a role; give puts it
// back, at the latest as the test ends.
func deny(ctx context.Context, t *testing.T, client kubernetes.Interface, role, verb, resource string) (give func()) {
	t.Helper()
	all := client.RbacV1().ClusterRoles()
	set := func(rules []rbacv1.PolicyRule) {
		ctx := context.WithoutCancel(ctx)
		_, err := all.Update(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "millrace:" + role}, Rules: rules}, metav1.UpdateOptions{})
		if err != nil {
			t.Errorf("writing the rights of %s: %v", role, err)
		}
	}
	had, err := all.Get(ctx, "millrace:"+role, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	less := had.DeepCopy().Rules
	for i := range less {
		if slices.Contains(less[i].Resources, resource) {
			less[i].Verbs = slices.DeleteFunc(less[i].Verbs, func(v string) bool { return v == verb })
		}
	}
	less = slices.DeleteFunc(less, func(r rbacv1.PolicyRule) bool { return len(r.Verbs) == 0 })
	set(less)
	give = func() { set(had.Rules) }
	t.Cleanup(give)
	return give
}

// says reports whether this is all that a member lacks.
func says(ctx context.Context, m *fleet.Member, want string) (bool, string) {
	_, reasons, err := m.Readyz(ctx)
	if err != nil {
		return false, err.Error()
	}
	return strings.TrimSpace(reasons) == want, reasons
}
