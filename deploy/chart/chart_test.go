package chart

import (
	"context"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

var update = flag.Bool("update", false, "write the golden files anew")

// sets are the values of testdata, by name.
func sets(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/*.values.yaml")
	if err != nil || len(files) < 2 {
		t.Fatalf("values: %v %v", files, err)
	}
	out := map[string]string{}
	for _, f := range files {
		path, err := filepath.Abs(f)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(f); err != nil { // for the cache of go test
			t.Fatal(err)
		}
		out[strings.TrimSuffix(filepath.Base(f), ".values.yaml")] = path
	}
	return out
}

func render(t *testing.T, values string, more ...string) (text string, objects []*unstructured.Unstructured) {
	t.Helper()
	text, err := Render(t.Context(), append([]string{"--values", values}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	if objects, err = Objects(text); err != nil {
		t.Fatal(err)
	}
	return text, objects
}

// What the chart renders is in git, so that a change of it is seen.
func TestGolden(t *testing.T) {
	for name, values := range sets(t) {
		t.Run(name, func(t *testing.T) {
			text, _ := render(t, values)
			golden := filepath.Join("testdata", name+".golden.yaml")
			if *update {
				if err := os.WriteFile(golden, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), text); diff != "" {
				t.Errorf("go test ./deploy/chart -update writes it anew (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLint(t *testing.T) {
	for name, values := range sets(t) {
		t.Run(name, func(t *testing.T) {
			if _, err := Helm(t.Context(), "lint", "millrace", "--strict", "--values", values); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestBadValuesAreRefused(t *testing.T) {
	tests := map[string]struct{ set, says string }{
		"no NATS":                           {"nats.url=", "nats.url must be set"},
		"a URL that is none":                {"nats.url=http://n:1", "/nats/url"},
		"a role that is none":               {"controllers.endpoint.mode=active", "'endpoint' not allowed"},
		"a value that is none":              {"controllers.endpoints.replica=3", "'replica' not allowed"},
		"a mode that is none":               {"controllers.endpoints.mode=on", "'off', 'shadow', 'active'"},
		"a mode for the watcher":            {"watcher.mode=active", "'mode' not allowed"},
		"a kind that is none":               {"watcher.kinds={Pods}", "/watcher/kinds/0"},
		"too many partitions":               {"cluster.partitions=257", "/cluster/partitions"},
		"a cluster with capitals":           {"cluster.id=Prod", "/cluster/id"},
		"two servers for a stream":          {"nats.replicas=2", "/nats/replicas"},
		"a digest that is a tag":            {"image.digest=v1", "/image/digest"},
		"a Secret without saying what for":  {"nats.auth.existingSecret=x", "needs credsKey, or user and passwordKey"},
		"a setting as a variable":           {"controllers.endpoints.settings.MAX=1", "does not match pattern"},
		"a setting that the role lacks":     {"controllers.nodelifecycle.settings.podEvictionTimeout=5m", "'podEvictionTimeout' not allowed"},
		"a grace without a unit":            {"controllers.nodelifecycle.settings.nodeMonitorGracePeriod=50", "/nodelifecycle/settings/nodeMonitorGracePeriod"},
		"a share above all":                 {"controllers.nodelifecycle.settings.unhealthyZoneThreshold=55", "/nodelifecycle/settings/unhealthyZoneThreshold"},
		"a part's mode that is none":        {"controllers.podevictor.settings.taintEvictionMode=on", "/podevictor/settings/taintEvictionMode"},
		"a way to evict that is none":       {"controllers.podevictor.settings.evictionMode=drain", "'delete', 'evict'"},
		"a burst below nothing":             {"controllers.podevictor.settings.podEvictionBurst=-1", "/podevictor/settings/podEvictionBurst"},
		"a rate below nothing":              {"controllers.podevictor.settings.zonePodEvictionQps=-1", "/podevictor/settings/zonePodEvictionQps"},
		"a value that no controller has":    {"controllers.nodelifecycle.replica=3", "'replica' not allowed"},
		"memory limits that are no numbers": {"watcher.resources.limits.memory=true", "/watcher/resources/limits/memory"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Render(t.Context(), "--set", "nats.url=nats://n:4222", "--set", tt.set)
			if err == nil || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("%v; want %q", err, tt.says)
			}
		})
	}
}

// Contract: issue 3, part 10: a role's rights in the chart are those that its
// README states, and those under which everything here is tested.
func TestRights(t *testing.T) {
	root, err := fleet.ModuleRoot()
	if err != nil {
		t.Fatal(err)
	}
	// What a role may need at most.
	_, objects := render(t, sets(t)["default"], "--set", "controllers.podevictor.settings.evictionMode=evict")
	roles := 0
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		roles++
		role := o.GetLabels()["app.kubernetes.io/component"]
		t.Run(role, func(t *testing.T) {
			got, err := RightsOf(objects, func(name string) bool { return strings.HasSuffix(name, ":"+role) })
			if err != nil {
				t.Fatal(err)
			}
			readme, err := os.ReadFile(filepath.Join(root, "services", role, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(DocumentedRights(string(readme), kinds(t)), got); diff != "" {
				t.Errorf("services/%s/README.md and the chart differ (-README +chart):\n%s", role, diff)
			}
			manifest, err := os.ReadFile(filepath.Join(root, "deploy", "devcluster", "rbac", role+".yaml"))
			if err != nil {
				t.Fatal(err)
			}
			tested, err := Objects(string(manifest))
			if err != nil {
				t.Fatal(err)
			}
			want, err := RightsOf(tested, func(name string) bool { return name == "millrace:"+role })
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("deploy/devcluster/rbac/%s.yaml and the chart differ (-devcluster +chart):\n%s", role, diff)
			}
		})
	}
	if roles < 2 {
		t.Errorf("%d roles rendered", roles)
	}
}

// Contract: issue 5, part 6: the right to evict is given where it is used, and only
// there.
func TestEvictionIsARightOfEvictMode(t *testing.T) {
	eviction := Right{Resource: "pods/eviction", Verb: "create"}
	for mode, want := range map[string]bool{"delete": false, "evict": true} {
		_, objects := render(t, sets(t)["default"], "--set", "controllers.podevictor.settings.evictionMode="+mode)
		got, err := RightsOf(objects, func(name string) bool { return strings.HasSuffix(name, ":podevictor") })
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(got, eviction) != want {
			t.Errorf("in mode %s it may %v", mode, got)
		}
	}
}

// kinds are what the watcher carries by default.
func kinds(t *testing.T) []string {
	t.Helper()
	text, err := Helm(t.Context(), "show", "values", "millrace")
	if err != nil {
		t.Fatal(err)
	}
	var values struct{ Watcher struct{ Kinds []string } }
	if err := yaml.Unmarshal([]byte(text), &values); err != nil {
		t.Fatal(err)
	}
	return values.Watcher.Kinds
}

// resources are the kinds that the chart renders.
var resources = map[string]schema.GroupVersionResource{
	"ServiceAccount":      {Version: "v1", Resource: "serviceaccounts"},
	"Deployment":          {Group: "apps", Version: "v1", Resource: "deployments"},
	"PodDisruptionBudget": {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
	"ClusterRole":         {Group: rbacv1.GroupName, Version: "v1", Resource: "clusterroles"},
	"Role":                {Group: rbacv1.GroupName, Version: "v1", Resource: "roles"},
	"RoleBinding":         {Group: rbacv1.GroupName, Version: "v1", Resource: "rolebindings"},
	"ClusterRoleBinding":  {Group: rbacv1.GroupName, Version: "v1", Resource: "clusterrolebindings"},
}

// A real API server takes everything, unknown fields refused, and a namespace that
// enforces the restricted profile takes every pod.
func TestServerTakesEverything(t *testing.T) {
	cluster := kubetest.Start(t)
	api, err := dynamic.NewForConfig(cluster.Admin())
	if err != nil {
		t.Fatal(err)
	}
	pods, err := kubernetes.NewForConfig(cluster.Admin())
	if err != nil {
		t.Fatal(err)
	}
	restricted := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: Namespace, Labels: map[string]string{
		"pod-security.kubernetes.io/enforce": "restricted",
	}}}
	if _, err := pods.CoreV1().Namespaces().Create(t.Context(), restricted, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for name, values := range sets(t) {
		t.Run(name, func(t *testing.T) {
			_, objects := render(t, values)
			for _, o := range objects {
				create(t, api, o)
				if o.GetKind() == "Deployment" {
					createPod(t.Context(), t, api, o)
				}
			}
		})
	}
}

func create(t *testing.T, api dynamic.Interface, o *unstructured.Unstructured) {
	t.Helper()
	gvr, ok := resources[o.GetKind()]
	if !ok {
		t.Fatalf("%s %s: a kind that this test does not know", o.GetKind(), o.GetName())
	}
	_, err := api.Resource(gvr).Namespace(o.GetNamespace()).Create(t.Context(), o, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Errorf("%s %s: %v", o.GetKind(), o.GetName(), err)
	}
}

// createPod does what no controller here does.
func createPod(ctx context.Context, t *testing.T, api dynamic.Interface, deployment *unstructured.Unstructured) {
	t.Helper()
	template, _, err := unstructured.NestedMap(deployment.Object, "spec", "template")
	if err != nil {
		t.Fatal(err)
	}
	pod := &unstructured.Unstructured{Object: template}
	pod.SetAPIVersion("v1")
	pod.SetKind("Pod")
	pod.SetName(deployment.GetName())
	_, err = api.Resource(schema.GroupVersionResource{Version: "v1", Resource: "pods"}).Namespace(deployment.GetNamespace()).
		Create(ctx, pod, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Errorf("pod of %s: %v", deployment.GetName(), err)
	}
}
