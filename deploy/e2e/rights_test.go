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
	evict := []string{"MILLRACE_PODEVICTOR_EVICTION_MODE=evict"}
	tests := map[string]struct {
		verb, resource string
		env            []string
		says           string
		without        []string // an environment in which that is not needed; nil: none
	}{
		"endpoints": {
			verb: "delete", resource: "endpointslices", says: "rights: not allowed to delete endpointslices.discovery.k8s.io",
		},
		"nodelifecycle": {
			verb: "patch", resource: "nodes/status", says: "rights: not allowed to patch nodes/status",
		},
		"podevictor": {
			verb: "create", resource: "pods/eviction", env: evict, says: "rights: not allowed to create pods/eviction", without: []string{},
		},
	}
	for role, tt := range tests {
		t.Run(role, func(t *testing.T) {
			t.Parallel()
			give := deny(ctx, t, client, role, tt.verb, tt.resource)
			m := start(ctx, t, f, role, tt.env...)
			eventually(ctx, t, 90*time.Second, tt.says, func() (bool, string) { return says(ctx, m, tt.says) })
			if tt.without != nil {
				ready(ctx, t, start(ctx, t, f, role, tt.without...))
			}
			give()
			ready(ctx, t, m)
		})
	}
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
