package main

import (
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"github.com/millrace-io/millrace/deploy/chart"
	"github.com/millrace-io/millrace/services/endpoints"
	"github.com/millrace-io/millrace/services/nodelifecycle"
	"github.com/millrace-io/millrace/services/podevictor"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/process"
)

// deployed is one role as a deployment runs it.
type deployed struct {
	args []string
	env  map[string]string
}

// Contract: issue 3, part 10: a role that lacks its compose service or its chart
// entry fails this test, and so does one that is deployed and does not exist.
func TestEveryRoleIsDeployed(t *testing.T) {
	want := slices.Sorted(maps.Keys(roles))
	for where, have := range map[string]map[string]deployed{
		"docker-compose.yaml": composed(t), "charts/millrace": charted(t, "default"),
	} {
		if got := slices.Sorted(maps.Keys(have)); !slices.Equal(got, want) {
			t.Errorf("%s has %q, the binary %q", where, got, want)
		}
	}
}

// Whatever a deployment sets must be a setting, and one that the role accepts.
func TestDeploymentsAreUnderstood(t *testing.T) {
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(kubeconfig, []byte("apiVersion: v1\nkind: Config\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for where, have := range map[string]map[string]deployed{
		"compose": composed(t), "chart": charted(t, "default"), "chart in full": charted(t, "full"),
	} {
		for role, d := range have {
			t.Run(where+"/"+role, func(t *testing.T) {
				if !slices.Equal(d.args, []string{role}) {
					t.Errorf("it is started with %q", d.args)
				}
				for name, value := range d.env {
					t.Setenv(name, value)
				}
				if d.env["MILLRACE_NATS_URL"] == "" {
					t.Error("it is not told where NATS is")
				}
				// It is there where the deployment says; here it is elsewhere.
				t.Setenv("KUBECONFIG", kubeconfig)
				fresh := reflect.New(reflect.TypeOf(roles[role].config).Elem()).Interface()
				if code := process.Check(role, fresh, settings()...); code != process.ExitOK {
					t.Errorf("exit code %d", code)
				}
			})
		}
	}
}

// The chart's default kinds, from which the watcher's rights follow, are the
// binary's.
func TestChartNamesTheDefaultKinds(t *testing.T) {
	all, err := process.SettingsOf(process.Prefix, roles["watcher"].config)
	if err != nil {
		t.Fatal(err)
	}
	const name = "MILLRACE_WATCHER_KINDS"
	i := slices.IndexFunc(all, func(s process.Setting) bool { return s.Name == name })
	if got := charted(t, "default")["watcher"].env[name]; i < 0 || got != all[i].Default {
		t.Errorf("%s is %q in the chart, %q in the binary", name, got, all[i].Default)
	}
}

// Settings of a role that the chart names have the binary's defaults there: a chart
// that was installed without a word changes nothing.
func TestChartNamesTheDefaultSettings(t *testing.T) {
	named := 0
	for role, d := range charted(t, "default") {
		all, err := process.SettingsOf(process.Prefix, roles[role].config)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range all {
			if value, is := d.env[s.Name]; is && strings.HasPrefix(s.Name, "MILLRACE_"+strings.ToUpper(role)+"_") {
				named++
				if value != s.Default {
					t.Errorf("%s is %q in the chart, %q in the binary", s.Name, value, s.Default)
				}
			}
		}
	}
	if named < 9 {
		t.Errorf("%d settings compared, want those of nodelifecycle at least", named)
	}
}

// A role's README names each of its settings in a row with the default.
func TestReadmesNameTheSettings(t *testing.T) {
	for role, r := range roles {
		all, err := process.SettingsOf(process.Prefix, r.config)
		if err != nil {
			t.Fatal(err)
		}
		readme := string(read(t, filepath.Join("services", role, "README.md")))
		for _, s := range all {
			if !strings.HasPrefix(s.Name, "MILLRACE_"+strings.ToUpper(role)+"_") {
				continue
			}
			_, row, ok := strings.Cut(readme, "| `"+s.Name+"` |")
			row, _, _ = strings.Cut(row, "\n")
			switch {
			case !ok:
				t.Errorf("services/%s/README.md has no row for %s", role, s.Name)
			case s.Default == "", strings.Contains(s.Default, ","): // told in words
			case !strings.Contains(strings.ReplaceAll(row, "`", ""), " "+s.Default+" |"):
				t.Errorf("services/%s/README.md has another default for %s than %q: %s", role, s.Name, s.Default, row)
			}
		}
	}
}

// needed are the rights without which a role says that it is not ready. The watcher
// needs to list and watch, and says of each kind whether it can.
var needed = map[string][]kube.Right{
	"endpoints":     endpoints.Rights(),
	"nodelifecycle": nodelifecycle.Rights(),
	"podevictor":    podevictor.Rights("evict"),
}

// Contract: issue 5, part 6: what a role misses when it is not allowed is what its
// README says that it needs.
func TestRolesNeedTheRightsInTheirREADME(t *testing.T) {
	unasked := []chart.Right{
		{Resource: "services/finalizers", Verb: "update"}, // only where a cluster demands it
		{Resource: "configmaps millrace", Verb: "get"},    // asked for by all, in shared/role
	}
	for role := range roles {
		if role == "watcher" {
			continue
		}
		want := chart.DocumentedRights(string(read(t, filepath.Join("services", role, "README.md"))), nil)
		want = slices.DeleteFunc(want, func(r chart.Right) bool { return slices.Contains(unasked, r) })
		var got []chart.Right
		for _, r := range needed[role] {
			got = append(got, chart.Right{Resource: r.Object(), Verb: r.Verb})
		}
		less := func(a, b chart.Right) int { return strings.Compare(a.Resource+" "+a.Verb, b.Resource+" "+b.Verb) }
		slices.SortFunc(got, less)
		slices.SortFunc(want, less)
		if !slices.Equal(got, want) {
			t.Errorf("%s asks for %v, its README says %v", role, got, want)
		}
	}
}

// composeService is what is read of docker-compose.yaml.
type composeService struct {
	Image       string
	Command     []string
	Environment map[string]string
	Ports       []string
	HealthCheck struct{ Test []string }
}

func compose(t *testing.T) map[string]composeService {
	t.Helper()
	var file struct{ Services map[string]composeService }
	if err := yaml.Unmarshal(read(t, "docker-compose.yaml"), &file); err != nil {
		t.Fatal(err)
	}
	return file.Services
}

// composed are the roles of docker-compose.yaml: all but what they stand on.
func composed(t *testing.T) map[string]deployed {
	t.Helper()
	out := map[string]deployed{}
	for name, s := range compose(t) {
		if name != "nats" && name != "devcluster" {
			out[name] = deployed{s.Command, s.Environment}
		}
	}
	return out
}

func TestCompose(t *testing.T) {
	services := compose(t)
	for name, s := range services {
		for _, p := range s.Ports {
			if !strings.HasPrefix(p, "127.0.0.1:") {
				t.Errorf("%s publishes %s to the world", name, p)
			}
		}
		if _, role := roles[name]; !role {
			continue
		}
		if want := "/cluster/" + name + ".kubeconfig"; s.Environment["KUBECONFIG"] != want {
			t.Errorf("%s logs in with %s, want %s", name, s.Environment["KUBECONFIG"], want)
		}
		if !slices.Equal(s.HealthCheck.Test, []string{"CMD", "/millrace", "probe"}) {
			t.Errorf("%s is judged by %q", name, s.HealthCheck.Test)
		}
	}
	// The server is the one that everything is tested with.
	for line := range strings.Lines(string(read(t, "go.mod"))) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "github.com/nats-io/nats-server/v2 v"); ok {
			if !strings.Contains(services["nats"].Image, "nats:"+version+"}") {
				t.Errorf("nats is %s, go.mod has %s", services["nats"].Image, version)
			}
			return
		}
	}
	t.Error("go.mod names no nats-server")
}

func charted(t *testing.T, values string) map[string]deployed {
	t.Helper()
	path, err := filepath.Abs(filepath.Join(root, "deploy", "chart", "testdata", values+".values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := chart.Render(t.Context(), "--values", path)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := chart.Objects(text)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]deployed{}
	for _, o := range objects {
		if o.GetKind() != "Deployment" {
			continue
		}
		var d appsv1.Deployment
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(o.Object, &d); err != nil {
			t.Fatal(err)
		}
		c := d.Spec.Template.Spec.Containers[0]
		env := map[string]string{}
		for _, e := range c.Env {
			if e.ValueFrom == nil {
				env[e.Name] = e.Value
			}
		}
		out[d.Labels["app.kubernetes.io/component"]] = deployed{c.Args, env}
	}
	return out
}

// root is the checkout.
var root = filepath.Join("..", "..")

func read(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, name))
	if err != nil {
		t.Fatal(err)
	}
	return b
}
