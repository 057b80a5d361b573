package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

// Contract: "bad input gets" of issue 2: one clear line and exit code 2.
func TestBadConfiguration(t *testing.T) {
	ctx, f := begin(t, time.Minute)
	tests := map[string]struct {
		args []string
		env  string
		says []string
	}{
		"a misspelt variable":               {[]string{"endpoints"}, "MILLRACE_NATS_URRL=nats://127.0.0.1:1", []string{"MILLRACE_NATS_URRL", "MILLRACE_NATS_URL"}},
		"a misspelt one of another role":    {[]string{"watcher"}, "MILLRACE_ENDPOINTS_MAX_ENDPOINT_PER_SLICE=5", []string{"MILLRACE_ENDPOINTS_MAX_ENDPOINTS_PER_SLICE"}},
		"a misspelt one, asked by a person": {[]string{"status"}, "MILLRACE_NATS_CLUSTR=x", []string{"MILLRACE_NATS_CLUSTER"}},
		"a duration without a unit":         {[]string{"watcher"}, "MILLRACE_KUBE_REQUEST_TIMEOUT=soon", []string{"MILLRACE_KUBE_REQUEST_TIMEOUT", "soon", "duration"}},
		"a URL that is none":                {[]string{"endpoints"}, "MILLRACE_NATS_URL=nonsense", []string{"MILLRACE_NATS_URL", "nonsense"}},
		"a number out of its range":         {[]string{"endpoints"}, "MILLRACE_ENDPOINTS_MAX_ENDPOINTS_PER_SLICE=1001", []string{"MILLRACE_ENDPOINTS_MAX_ENDPOINTS_PER_SLICE", "1001", "1000"}},
		"too many partitions":               {[]string{"watcher"}, "MILLRACE_NATS_PARTITIONS=257", []string{"MILLRACE_NATS_PARTITIONS", "257", "256"}},
		"standalone beside a NATS":          {[]string{"standalone"}, "MILLRACE_LOG_LEVEL=info", []string{"MILLRACE_NATS_URL is set", "a NATS of its own"}},
		"a kubeconfig that is not there":    {[]string{"endpoints"}, "KUBECONFIG=/nowhere", []string{"kubeconfig", "/nowhere", "no such file"}},
		"a kind that is no kind":            {[]string{"watcher"}, "MILLRACE_WATCHER_KINDS=Pods", []string{"MILLRACE_WATCHER_KINDS", "Pods"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
			defer cancel()
			r := f.Exec(ctx, f.Env(kubetest.RoleEndpoints, tt.env), tt.args...)
			text := strings.TrimSpace(r.Out + r.Complaints)
			if r.Code != 2 {
				t.Errorf("exit code %d, want 2", r.Code)
			}
			if strings.Count(text, "\n") != 0 {
				t.Errorf("it says more than one line:\n%s", text)
			}
			for _, want := range tt.says {
				if !strings.Contains(text, want) {
					t.Errorf("it says %q, want something about %q", text, want)
				}
			}
		})
	}
}

// serviceLinks are what Kubernetes injects for a Service named millrace-nats.
var serviceLinks = []string{
	"MILLRACE_NATS_SERVICE_HOST=10.0.0.1", "MILLRACE_NATS_SERVICE_PORT=4222", "MILLRACE_NATS_PORT=tcp://10.0.0.1:4222",
	"MILLRACE_NATS_PORT_4222_TCP=tcp://10.0.0.1:4222", "MILLRACE_NATS_PORT_4222_TCP_PROTO=tcp",
	"MILLRACE_NATS_PORT_4222_TCP_PORT=4222", "MILLRACE_NATS_PORT_4222_TCP_ADDR=10.0.0.1",
}

// Contract: "bad input gets": waiting with a reason, never a crash loop.
func TestWaitsForWhatIsAway(t *testing.T) {
	ctx, f := begin(t, 2*time.Minute)
	f.NATS.Kill()
	f.Cluster.Kill()
	members := []*fleet.Member{start(ctx, t, f, "watcher", serviceLinks...), start(ctx, t, f, "endpoints", serviceLinks...)}
	for _, m := range members {
		waits(ctx, t, m, "NATS")
	}
	if err := f.NATS.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	waits(ctx, t, members[0], "")
	if err := f.Cluster.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	ready(ctx, t, members...)
	whole(ctx, t, f)
	t.Logf("ready %s after the API server", time.Since(began).Round(time.Millisecond))
}

// waits checks that a member lives, is not ready, and says why.
func waits(ctx context.Context, t *testing.T, m *fleet.Member, reason string) {
	t.Helper()
	eventually(ctx, t, 15*time.Second, m.Name+" says what is missing", func() (bool, string) {
		ready, text, err := m.Readyz(ctx)
		if err != nil {
			return false, err.Error()
		}
		return !ready && strings.Contains(text, reason), text
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+"/livez", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("/livez of %s answers %s", m.Name, resp.Status)
	}
	_, text, _ := m.Readyz(ctx)
	t.Logf("%s waits: %s", m.Name, strings.TrimSpace(text))
}

// Contract: "bad input gets": another number of partitions is refused with the
// command that repairs it, and that repairs it.
func TestOtherPartitionsAreRefused(t *testing.T) {
	ctx, f := begin(t, 2*time.Minute)
	watcher, members := startReady(ctx, t, f, 1)
	leave(t, watcher)
	leave(t, members[0])

	const other = "MILLRACE_NATS_PARTITIONS=16"
	strange := []*fleet.Member{start(ctx, t, f, "watcher", other), start(ctx, t, f, "endpoints", other)}
	for _, m := range strange {
		waits(ctx, t, m, "millrace bus reset")
	}
	if r := f.Exec(ctx, f.Env(kubetest.RoleAdmin, other), "bus", "reset"); r.Code != 2 {
		t.Errorf("bus reset without --yes: exit %d: %s", r.Code, r.Complaints)
	}
	reset := func(env ...string) {
		if r := f.Exec(ctx, f.Env(kubetest.RoleAdmin, env...), "bus", "reset", "--yes"); r.Code != 0 {
			t.Fatalf("bus reset: exit %d: %s", r.Code, r.Complaints)
		}
	}
	reset(other)
	began := time.Now()
	ready(ctx, t, strange...)
	t.Logf("ready %s after the reset", time.Since(began).Round(time.Millisecond))
	for _, m := range strange {
		leave(t, m)
	}
	reset() // for the next test
}

// Contract: I10 and "bad input gets": a poison object is counted and named, and
// stops nothing but what reads it.
func TestPoisonStopsNothingElse(t *testing.T) {
	ctx, f := begin(t, 3*time.Minute)
	smaller(ctx, t, f, "64KB")
	t.Cleanup(func() { smaller(context.WithoutCancel(ctx), t, f, "4MB") })
	watcher, _ := startReady(ctx, t, f, 2)
	w := prepare(ctx, t, f, prefixOf(t), 1, 100)
	o := observe(ctx, t, f, w.prefix)
	o.awaitRest(ctx, t, f, 30*time.Second)

	sick, well := w.spaces[0], w.spaces[1]
	annotate := func(value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"e2e/weight":%q}}}`, value)
		if _, err := w.api.CoreV1().Pods(sick.name).Patch(ctx, "anchor-3", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	letters := func() (out []string) {
		s, err := f.Status(ctx)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range s.DeadLetters {
			if l.Key == sick.name+"/anchor-3" {
				out = append(out, l.Role+": "+l.Reason)
			}
		}
		return out
	}
	annotate(strings.Repeat("heavy ", 20_000))
	eventually(ctx, t, 15*time.Second, "a dead letter of the watcher", func() (bool, string) {
		l := letters()
		return len(l) > 0, fmt.Sprint(l)
	})
	t.Logf("dead letters: %v", letters())
	lines := 0
	for line := range strings.Lines(watcher.Output()) {
		if strings.Contains(line, "cannot be carried") && strings.Contains(line, sick.name+"/anchor-3") {
			lines++
			t.Log(strings.TrimSpace(line))
		}
	}
	if lines != 1 {
		t.Errorf("%d lines about it in the log, want 1", lines)
	}
	metrics, err := watcher.Metrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if metrics.Sum("millrace_watcher_publishes_total", "result", "opaque") == 0 {
		t.Error("it is not counted")
	}

	// Others go on: other namespaces, whoever holds them.
	flip := func(s *space) {
		t.Helper()
		p, err := w.api.CoreV1().Pods(s.name).Get(ctx, "anchor-0", metav1.GetOptions{})
		if err == nil {
			err = s.report(ctx, p, corev1.PodRunning, !podReady(p))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	flip(well)
	o.awaitRest(ctx, t, f, 10*time.Second)

	// What reads it waits, and goes on when it is light again.
	flip(sick)
	annotate("light")
	rest := o.awaitRest(ctx, t, f, 30*time.Second)
	eventually(ctx, t, 15*time.Second, "the letter is taken back", func() (bool, string) {
		l := letters()
		return len(l) == 0, fmt.Sprint(l)
	})
	t.Logf("right %s after the object was light again", rest.Round(time.Millisecond))
	o.noHoles(t, inputsMayBe)
}

// smaller restarts NATS with another limit on messages.
func smaller(ctx context.Context, t *testing.T, f *fleet.Fleet, limit string) {
	t.Helper()
	f.NATS.Kill()
	f.NATS.MaxPayload = limit
	if err := f.NATS.Restart(ctx); err != nil {
		t.Fatal(err)
	}
}

// Contract: I10: a kind that cannot be listed degrades only who needs it.
func TestAnUnlistableKindStopsNothingElse(t *testing.T) {
	ctx, f := begin(t, 3*time.Minute)
	gvr, repair, err := f.Cluster.BrokenKind(ctx)
	if err != nil {
		t.Fatal(err)
	}
	kind := gvr.Resource + "." + gvr.Group
	watcher := start(ctx, t, f, "watcher", "MILLRACE_WATCHER_KINDS_METADATA="+kind)
	replica := start(ctx, t, f, "endpoints")
	ready(ctx, t, replica)
	w := prepare(ctx, t, f, prefixOf(t), 1, 100)
	o := observe(ctx, t, f, w.prefix)
	w.run(ctx, 50)
	rest := o.awaitRest(ctx, t, f, 30*time.Second)
	waits(ctx, t, watcher, kind+": no list yet: failed to list "+kind+": "+kind+" is forbidden")
	mayRead(ctx, t, w.api, gvr)
	eventually(ctx, t, 15*time.Second, "another reason than a right that lacks", func() (bool, string) {
		ready, text, err := watcher.Readyz(ctx)
		return err == nil && !ready && strings.Contains(text, kind+": no list yet") && !strings.Contains(text, "forbidden"), text
	})
	waits(ctx, t, watcher, kind)
	if ok, text, err := replica.Readyz(ctx); !ok {
		t.Errorf("endpoints is not ready: %s %v", text, err)
	}
	t.Logf("at rest after %s beside a broken kind", rest.Round(time.Millisecond))

	began := time.Now()
	if err := repair(ctx); err != nil {
		t.Fatal(err)
	}
	ready(ctx, t, watcher)
	s, err := f.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n, synced := s.Objects("watcher", kind); n != 1 || !synced {
		t.Errorf("%d objects of the repaired kind, synced %t; want its one", n, synced)
	}
	t.Logf("carried %s after the repair", time.Since(began).Round(time.Millisecond))
}

// mayRead lets the watcher read a kind.
func mayRead(ctx context.Context, t *testing.T, api kubernetes.Interface, gvr schema.GroupVersionResource) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: "e2e-" + gvr.Group}
	_, err := api.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{
		APIGroups: []string{gvr.Group}, Resources: []string{gvr.Resource}, Verbs: []string{"get", "list", "watch"},
	}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = api.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: meta,
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: meta.Name},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "millrace:watcher"}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
