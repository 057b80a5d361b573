package role

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/process"
	"github.com/millrace-io/millrace/shared/telemetry"
)

// user is somebody with a ClusterRole of his own, which a test changes.
type user struct {
	*testing.T

	name  string
	admin kubernetes.Interface
	api   *kube.API
}

func newUser(t *testing.T, qps float32, rules ...rbacv1.PolicyRule) *user {
	t.Helper()
	cluster := kubetest.Shared(t)
	u := &user{T: t, name: "rights-" + cluster.Namespace(t), admin: cluster.Client()}
	meta := metav1.ObjectMeta{Name: u.name}
	if _, err := u.admin.RbacV1().ClusterRoles().Create(t.Context(), &rbacv1.ClusterRole{ObjectMeta: meta, Rules: rules}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err := u.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: u.name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: u.name}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	as := cluster.Admin()
	as.Impersonate = rest.ImpersonationConfig{UserName: u.name, Groups: []string{"system:authenticated"}}
	if u.api, err = kube.ConnectTo(as, kube.Config{Namespace: "elsewhere", QPS: qps, Burst: 1}, u.name, nil, nil); err != nil {
		t.Fatal(err)
	}
	return u
}

func (u *user) may(rules ...rbacv1.PolicyRule) {
	u.Helper()
	_, err := u.admin.RbacV1().ClusterRoles().Update(u.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: u.name}, Rules: rules}, metav1.UpdateOptions{})
	if err != nil {
		u.Fatal(err)
	}
}

func rule(resource string, verbs ...string) rbacv1.PolicyRule {
	group := ""
	if strings.HasPrefix(resource, "lease") {
		group = "coordination.k8s.io"
	}
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// until waits for what a ready check says; "" is nothing. The server takes a while
// to hear of new rights, and the member of a moment.
func (u *user) until(said func() string, want string) {
	u.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for said() != want {
		if time.Now().After(deadline) {
			u.Fatalf("it says %q after 30 s, want %q", said(), want)
		}
		time.Sleep(20 * time.Millisecond) // the API server is real
	}
}

// needed is what the test's role needs.
var needed = slices.Concat(
	kube.Rights("", "pods", "get", "delete"),
	kube.Rights("", "pods/status", "patch"),
	kube.Rights("", "pods/eviction", "create"),
	kube.RightsIn("kube-node-lease", "coordination.k8s.io", "leases", "get"),
)

// Contract: issue 5, part 6: a missing right makes the role not ready and names the
// verb.
func TestAMissingRightIsNamed(t *testing.T) {
	t.Parallel()
	pods, status, eviction := rule("pods", "get", "delete"), rule("pods/status", "patch"), rule("pods/eviction", "create")
	leases, switches := rule("leases", "get"), rule("configmaps", "get")
	switches.ResourceNames = []string{"millrace"}
	u := newUser(t, -1, pods, status, eviction, leases, switches)

	var health telemetry.Health
	registry := prometheus.NewRegistry()
	e := &Edges{API: u.api, name: "tester", env: &process.Env{Log: slog.New(slog.DiscardHandler), Registry: registry, Health: &health}}
	e.Needs(needed)
	said := func() string { return strings.Join(health.Missing(), "; ") }
	if want := "rights: not known: not asked yet"; said() != want {
		t.Errorf("it says %q before the first answer, want %q", said(), want)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	go e.rights.run(ctx)
	u.until(said, "")

	// A deletion is forbidden: that is what makes it ask again, well before the
	// minute is over.
	u.may(rule("pods", "get"), status, eviction, leases, switches)
	began := time.Now()
	u.until(func() string {
		err := u.api.Client().CoreV1().Pods("default").Delete(t.Context(), "nobody", metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
			return err.Error()
		}
		return said()
	}, "rights: not allowed to delete pods")
	if took := time.Since(began); took > rightsIdle/2 {
		t.Errorf("it took %s", took)
	}
	families, err := registry.Gather()
	if err != nil || len(families) != 1 || families[0].GetName() != "millrace_rights_missing" || families[0].GetMetric()[0].GetGauge().GetValue() != 1 {
		t.Errorf("metrics: %v, %v", families, err)
	}

	// Several; and that one is given back is seen unasked.
	u.may(pods)
	u.until(said, "rights: not allowed to patch pods/status, create pods/eviction, "+
		"get leases.coordination.k8s.io in kube-node-lease, get configmaps millrace in elsewhere")
	u.may(pods, status, eviction, leases, switches)
	u.until(said, "")
}

// The answer of an admission policy is 403 as well, and no missing right.
func TestAPolicysNoIsNoMissingRight(t *testing.T) {
	t.Parallel()
	u := newUser(t, 0.01, rule("pods", "delete")) // no question may wait for that
	r := newRights(kube.Rights("", "pods", "delete"), u.api.Lacks, u.api.Forbidden(), slog.New(slog.DiscardHandler), nil)
	u.until(func() string {
		if r.ask(t.Context()) {
			return ""
		}
		return "no"
	}, "")
	select {
	case <-u.api.Forbidden():
		t.Error("something was forbidden before anything was")
	default:
	}
	// Any 403 will do: whether it was a policy's is not looked at.
	if _, err := u.api.Client().CoreV1().Secrets("default").Get(t.Context(), "nobody", metav1.GetOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("reading a Secret: %v, want Forbidden", err)
	}
	select {
	case <-u.api.Forbidden():
	case <-time.After(5 * time.Second):
		t.Fatal("nobody was told of an answer 403")
	}
	if !r.ask(t.Context()) || r.ready() != nil {
		t.Errorf("ready: %v", r.ready())
	}
}

// Where not even that may be asked, as in a cluster without system:basic-user, this
// is what is missing.
func TestWhoMayNotAskSaysSo(t *testing.T) {
	t.Parallel()
	cluster := kubetest.Shared(t)
	as := cluster.Admin()
	as.Impersonate = rest.ImpersonationConfig{UserName: "system:anonymous"} // all others are system:authenticated
	api, err := kube.ConnectTo(as, kube.Config{}, "tester", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newRights(needed, api.Lacks, api.Forbidden(), slog.New(slog.DiscardHandler), nil)
	if r.ask(t.Context()) {
		t.Error("nothing is missing")
	}
	const want = "not allowed to create selfsubjectaccessreviews.authorization.k8s.io"
	if err := r.ready(); err == nil || err.Error() != want {
		t.Errorf("it says %v, want %s", err, want)
	}
}

func TestWhenRightsAreAskedFor(t *testing.T) {
	tests := map[string]struct {
		missing   []kube.Right
		err       error
		forbidden int // answers 403, in one burst each second
		most      int64
		least     int64
		says      string
	}{
		"all is well":                        {least: 10, most: 11},
		"a right is missing":                 {missing: needed[1:2], least: 120, most: 121, says: "not allowed to delete pods"},
		"the API server is away":             {err: errors.New("away"), least: 120, most: 121, says: "not known: away"},
		"every write is refused by a policy": {forbidden: 100, least: 100, most: 121},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var asked atomic.Int64
				forbidden := make(chan struct{}, 1)
				r := newRights(needed, func(context.Context, []kube.Right) ([]kube.Right, error) {
					asked.Add(1)
					return tt.missing, tt.err
				}, forbidden, slog.New(slog.DiscardHandler), nil)
				ctx, stop := context.WithTimeout(t.Context(), 10*time.Minute+time.Second)
				defer stop()
				var refusing sync.WaitGroup
				refusing.Go(func() {
					for ctx.Err() == nil {
						for range tt.forbidden {
							select {
							case forbidden <- struct{}{}:
							default:
							}
						}
						time.Sleep(time.Second)
					}
				})
				r.run(ctx)
				refusing.Wait()
				if n := asked.Load(); n < tt.least || n > tt.most {
					t.Errorf("asked %d times in ten minutes, want %d to %d", n, tt.least, tt.most)
				}
				said := ""
				if err := r.ready(); err != nil {
					said = err.Error()
				}
				if said != tt.says {
					t.Errorf("it says %q, want %q", said, tt.says)
				}
			})
		})
	}
}

// What was known holds while the API server does not answer.
func TestAnUnansweredQuestionChangesNothing(t *testing.T) {
	t.Parallel()
	var answer error
	var missing []kube.Right
	r := newRights(needed, func(context.Context, []kube.Right) ([]kube.Right, error) { return missing, answer },
		nil, slog.New(slog.DiscardHandler), nil)
	if !r.ask(t.Context()) || r.ready() != nil {
		t.Fatalf("ready: %v", r.ready())
	}
	answer = errors.New("away")
	if r.ask(t.Context()) || r.ready() != nil {
		t.Errorf("after no answer: %v", r.ready())
	}
	answer, missing = nil, needed[:1]
	r.ask(t.Context())
	answer = errors.New("away")
	if r.ask(t.Context()) || r.ready() == nil {
		t.Error("it has forgotten what is missing")
	}
}
