// Package arch keeps the walls of the house: which room may import what, and
// what pure code stays away from. The plan is in walls_test.go; a change of it
// is a change of the architecture and needs an ADR.
//
// It reads the files itself. A child process that did it would hide them from
// the test cache, which would then go on reporting an old success.
package arch

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
)

func TestHouse(t *testing.T) {
	sources := house(t)
	for _, s := range sources {
		for _, c := range complaints(s) {
			t.Error(c)
		}
	}
	for _, c := range undocumented(sources) {
		t.Error(c)
	}
}

// Fewer files than this means that the survey lost its way, not that the house
// is in order.
func TestSurveyFindsTheHouse(t *testing.T) {
	var paths []string
	for _, s := range house(t) {
		paths = append(paths, s.path)
	}
	for _, want := range []string{"shared/arch/arch_test.go", "shared/event/event.go", "shared/partition/partition.go"} {
		if !slices.Contains(paths, want) {
			t.Errorf("survey did not see %s", want)
		}
	}
	for _, p := range paths {
		if strings.HasPrefix(p, "deploy/devcluster/") || strings.HasPrefix(p, "deploy/tools/") {
			t.Errorf("survey entered %s, which is of another module", p)
		}
	}
}

func TestArrowsPointDown(t *testing.T) {
	for name, r := range rooms {
		for _, entry := range r.may {
			folder, own := strings.CutPrefix(entry, module)
			if !own || strings.HasSuffix(folder, "/") {
				continue
			}
			_, target, ok := roomOf(folder)
			if !ok {
				t.Errorf("room %s may import %s, which is no room", name, folder)
			}
			if target.floor > r.floor {
				t.Errorf("room %s on floor %d may import %s on floor %d", name, r.floor, folder, target.floor)
			}
		}
	}
}

// A checker that never complains passes every house, so each kind of wrong is
// built here once.
func TestComplaints(t *testing.T) {
	tests := map[string]struct {
		path, src string
		want      []string
	}{
		"a pure room of the standard library is in order": {
			path: "shared/backoff/backoff.go",
			src:  `import ("math"; "time"); var _ = math.Pi; func f(now time.Time) time.Time { return now.Add(time.Second) }`,
		},
		"the frame may not know a vendor": {
			path: "shared/lease/lease.go",
			src:  `import _ "github.com/nats-io/nats.go"`,
			want: []string{"shared/lease/lease.go:2 imports github.com/nats-io/nats.go, which room shared/lease may not"},
		},
		"the frame may not know an edge": {
			path: "shared/controller/controller.go",
			src:  `import _ "github.com/millrace-io/millrace/shared/bus"`,
			want: []string{"shared/controller/controller.go:2 imports github.com/millrace-io/millrace/shared/bus, which room shared/controller may not"},
		},
		"of client-go the frame takes the work queue alone": {
			path: "shared/controller/queue.go",
			src:  `import (_ "k8s.io/client-go/util/workqueue"; _ "k8s.io/client-go/rest")`,
			want: []string{"shared/controller/queue.go:2 imports k8s.io/client-go/rest, which room shared/controller may not"},
		},
		"a vendor is at home in one room": {
			path: "shared/kube/kube.go",
			src:  `import (_ "k8s.io/client-go/rest"; _ "github.com/nats-io/nats.go")`,
			want: []string{"shared/kube/kube.go:2 imports github.com/nats-io/nats.go, which room shared/kube may not"},
		},
		"instruments cross the walls, exporters do not": {
			path: "shared/cache/metrics.go",
			src: `import (_ "github.com/prometheus/client_golang/prometheus"
				_ "github.com/prometheus/client_golang/prometheus/promhttp")`,
			want: []string{"shared/cache/metrics.go:3 imports github.com/prometheus/client_golang/prometheus/promhttp, which room shared/cache may not"},
		},
		"shared never imports a service": {
			path: "shared/cache/cache.go",
			src:  `import _ "github.com/millrace-io/millrace/services/watcher"`,
			want: []string{"shared/cache/cache.go:2 imports github.com/millrace-io/millrace/services/watcher, which room shared/cache may not"},
		},
		"services meet on the API server only": {
			path: "services/quota/service.go",
			src:  `import _ "github.com/millrace-io/millrace/services/endpoints"`,
			want: []string{"services/quota/service.go:2 imports github.com/millrace-io/millrace/services/endpoints, which room services/quota may not"},
		},
		"services meet on the API server only, in tests too": {
			path: "services/quota/service_test.go",
			src:  `import _ "github.com/millrace-io/millrace/services/endpoints/internal/slices"`,
			want: []string{"services/quota/service_test.go:2 imports github.com/millrace-io/millrace/services/endpoints/internal/slices, which room services/quota may not"},
		},
		"a service may use its own subfolders, all of shared, and Kubernetes": {
			path: "services/endpoints/service.go",
			src: `import (_ "github.com/millrace-io/millrace/services/endpoints/internal/slices"
				_ "github.com/millrace-io/millrace/shared/bus"
				_ "k8s.io/endpointslice")`,
		},
		"the binary may import everything": {
			path: "services/millrace/main.go",
			src:  `import (_ "github.com/nats-io/nats-server/v2/server"; _ "github.com/millrace-io/millrace/services/watcher")`,
		},
		"a room stands for all its folders": {
			path: "shared/bus/bustest/bustest.go",
			src:  `import _ "github.com/millrace-io/millrace/shared/bus/embedded"`,
		},
		"a test kit is for tests": {
			path: "services/endpoints/service.go",
			src:  `import _ "github.com/millrace-io/millrace/shared/kube/kubetest"`,
			want: []string{"services/endpoints/service.go:2 imports github.com/millrace-io/millrace/shared/kube/kubetest, which is for tests"},
		},
		"a test kit is for tests, even beside the edge it belongs to": {
			path: "shared/bus/bus.go",
			src:  `import _ "github.com/millrace-io/millrace/shared/bus/bustest"`,
			want: []string{"shared/bus/bus.go:2 imports github.com/millrace-io/millrace/shared/bus/bustest, which is for tests"},
		},
		"a test may use a test kit": {
			path: "services/endpoints/service_test.go",
			src:  `import _ "github.com/millrace-io/millrace/shared/kube/kubetest"`,
		},
		"a pure room is tested by pure means": {
			path: "shared/protocol/replay_test.go",
			src:  `import (_ "github.com/google/go-cmp/cmp"; _ "github.com/millrace-io/millrace/shared/bus/bustest")`,
			want: []string{"shared/protocol/replay_test.go:2 imports github.com/millrace-io/millrace/shared/bus/bustest, which room shared/protocol may not"},
		},
		"a suite drives binaries and never links a service": {
			path: "deploy/e2e/faults_test.go",
			src: `import (_ "github.com/millrace-io/millrace/shared/kube/kubetest"
				_ "github.com/millrace-io/millrace/services/endpoints")`,
			want: []string{"deploy/e2e/faults_test.go:3 imports github.com/millrace-io/millrace/services/endpoints, which room deploy/e2e may not"},
		},
		"a pure room has no clock": {
			path: "shared/tokenbucket/bucket.go",
			src:  `import when "time"; var start = when.Now()`,
			want: []string{"shared/tokenbucket/bucket.go:2 uses when.Now, which pure code may not"},
		},
		"a pure room starts no goroutine": {
			path: "shared/protocol/publisher.go",
			src:  "func f() {\n\tgo f()\n}",
			want: []string{"shared/protocol/publisher.go:3 starts a goroutine, which pure code may not"},
		},
		"a pure room knows neither files nor network": {
			path: "shared/partition/partition.go",
			src:  `import (_ "os"; _ "net/http")`,
			want: []string{
				"shared/partition/partition.go:2 imports os, which pure code may not",
				"shared/partition/partition.go:2 imports net/http, which pure code may not",
			},
		},
		"a pure room draws lots only from a seed": {
			path: "shared/backoff/backoff.go",
			src:  "import \"math/rand/v2\"\nvar _ = rand.New(rand.NewPCG(1, 2)).IntN(3)\nvar _ = rand.IntN(3)",
			want: []string{"shared/backoff/backoff.go:4 uses rand.IntN, which pure code may not"},
		},
		"tests of a pure room may tell the time": {
			path: "shared/backoff/backoff_test.go",
			src:  `import "time"; var start = time.Now()`,
		},
		"judgement may name Kubernetes types": {
			path: "services/nodelifecycle/decide.go",
			src:  `import (_ "k8s.io/api/core/v1"; _ "k8s.io/component-helpers/node/topology")`,
		},
		"judgement may not reach the API server": {
			path: "services/nodelifecycle/decide_taint.go",
			src:  `import _ "k8s.io/client-go/kubernetes"`,
			want: []string{"services/nodelifecycle/decide_taint.go:2 imports k8s.io/client-go/kubernetes, which a file of judgement may not"},
		},
		"judgement may not tell the time, in a subfolder either": {
			path: "services/watcher/internal/pods/project.go",
			src:  `import "time"; var _ = time.Since(time.Time{})`,
			want: []string{"services/watcher/internal/pods/project.go:2 uses time.Since, which pure code may not"},
		},
		"there is one program": {
			path: "services/watcher/cmd/main.go",
			src:  "func main() {}",
			want: []string{"services/watcher/cmd/main.go is a program: services/millrace is the only one"},
		},
		"a new folder needs a room": {
			path: "shared/util/util.go",
			want: []string{"shared/util/util.go is in no room: add its folder to rooms, with what it may import"},
		},
		"nothing lies at the root": {
			path: "doc.go",
			want: []string{"doc.go is in no room: add its folder to rooms, with what it may import"},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			pkg := "package p\n"
			if strings.Contains(tt.src, "func main()") {
				pkg = "package main\n"
			}
			sources := mustSurvey(t, fstest.MapFS{tt.path: {Data: []byte(pkg + tt.src)}})
			if len(sources) != 1 {
				t.Fatalf("survey found %d files, want 1", len(sources))
			}
			if diff := cmp.Diff(tt.want, complaints(sources[0])); diff != "" {
				t.Errorf("complaints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestUndocumented(t *testing.T) {
	sources := mustSurvey(t, fstest.MapFS{
		"shared/a/a.go":       {Data: []byte("// Package a says so.\npackage a")},
		"shared/a/more.go":    {Data: []byte("package a")},
		"shared/b/b.go":       {Data: []byte("package b")},
		"shared/b/b_test.go":  {Data: []byte("package b_test")},
		"shared/c/c.pb.go":    {Data: []byte("// Code generated by hand. DO NOT EDIT.\n\npackage c")},
		"shared/d/d_test.go":  {Data: []byte("// Package d is a test alone.\npackage d")},
		"shared/e/testdata/e": {Data: []byte("not Go")},
	})
	want := []string{"shared/b (b) has no package comment: say what it is for, and what it refuses to do"}
	if diff := cmp.Diff(want, undocumented(sources)); diff != "" {
		t.Errorf("undocumented (-want +got):\n%s", diff)
	}
}

func TestSurveySkips(t *testing.T) {
	broken := &fstest.MapFile{Data: []byte("this is not Go")}
	sources := mustSurvey(t, fstest.MapFS{
		"deploy/tools/go.mod":         {Data: []byte("module x")},
		"deploy/tools/tool.go":        broken,
		"shared/cache/testdata/x.go":  broken,
		".cache/x.go":                 broken,
		"shared/cache/_drafts/x.go":   broken,
		"shared/cache/cache.go":       {Data: []byte("package cache")},
		"shared/cache/README.md":      {Data: []byte("# cache")},
		"go.mod":                      {Data: []byte("module y")},
		"shared/cache/linux_amd64.go": {Data: []byte("//go:build plan9\n\npackage cache")},
	})
	var got []string
	for _, s := range sources {
		got = append(got, s.path)
	}
	want := []string{"shared/cache/cache.go", "shared/cache/linux_amd64.go"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("surveyed files (-want +got):\n%s", diff)
	}
}

func house(t *testing.T) []source {
	t.Helper()
	return mustSurvey(t, os.DirFS(filepath.Join("..", "..")))
}

func mustSurvey(t *testing.T, fsys fs.FS) []source {
	t.Helper()
	sources, err := survey(fsys)
	if err != nil {
		t.Fatal(err)
	}
	return sources
}
