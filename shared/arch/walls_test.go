package arch

import "strings"

const module = "github.com/millrace-io/millrace/"

// A room is a folder of the house with all that lies below it.
type room struct {
	// floor orders the rooms: an arrow between two rooms never points up.
	floor int
	// may lists what the room imports besides the standard library and itself.
	// A room of the house stands for all its folders; elsewhere an entry is one
	// package, or everything below it when it ends in a slash.
	may []string
	// pure: no I/O, no clock, no goroutine, no luck.
	pure bool
	// anything: the room may import all there is.
	anything bool
}

// Each vendor is at home in one room; these are the parts of it that others may
// name: instruments and spans cross the walls, registries and exporters do not.
var (
	protobuf    = []string{"google.golang.org/protobuf/"}
	instruments = []string{
		"github.com/prometheus/client_golang/prometheus",
		"github.com/prometheus/client_golang/prometheus/promauto",
	}
	tracing = []string{
		"go.opentelemetry.io/otel",
		"go.opentelemetry.io/otel/attribute",
		"go.opentelemetry.io/otel/codes",
		"go.opentelemetry.io/otel/metric",
		"go.opentelemetry.io/otel/propagation",
		"go.opentelemetry.io/otel/trace",
	}
	kubernetes = []string{"k8s.io/", "sigs.k8s.io/"}
	nats       = []string{"github.com/nats-io/"}
	workqueue  = []string{"k8s.io/client-go/util/workqueue"}
	settings   = []string{"github.com/kelseyhightower/envconfig"}
	xsync      = []string{"golang.org/x/sync/"}
)

// The rooms of the lower floors, as import paths.
var (
	words = ours("proto/millrace/v1", "shared/event")
	pure  = ours("shared/partition", "shared/tokenbucket", "shared/backoff", "shared/protocol", "shared/beat")
	below = join(words, pure, protobuf) // what every room from the second floor up may use
	kits  = join(kitsOfEdges, ours("shared/role/roletest"))

	kitsOfEdges = ours("shared/bus/bustest", "shared/kube/kubetest")
)

// rooms is the house. The longest matching folder wins, and a file in none of
// them fails the test: a new folder needs a line here, and thereby a thought.
var rooms = map[string]room{
	"proto/millrace/v1": {floor: 0, may: protobuf},
	"shared/event":      {floor: 0, may: join(ours("proto/millrace/v1"), protobuf), pure: true},

	"shared/partition":   {floor: 1, may: words, pure: true},
	"shared/tokenbucket": {floor: 1, pure: true},
	"shared/backoff":     {floor: 1, pure: true},
	"shared/protocol":    {floor: 1, may: join(words, ours("shared/partition"), protobuf), pure: true},
	"shared/beat":        {floor: 1, may: join(words, ours("shared/partition"), protobuf), pure: true},

	"shared/bus":           {floor: 2, may: join(below, nats, instruments, tracing, xsync)},
	"shared/bus/bustest":   {floor: 2, may: join(below, ours("shared/bus"), nats, instruments, xsync)},
	"shared/kube":          {floor: 2, may: join(below, kubernetes, instruments, tracing, xsync)},
	"shared/kube/kubetest": {floor: 2, may: join(below, ours("shared/kube"), kubernetes, instruments, xsync)},
	"shared/telemetry":     {floor: 2, may: []string{"github.com/prometheus/", "go.opentelemetry.io/"}},

	"shared/clock":      {floor: 2},
	"shared/lease":      {floor: 3, may: join(below, ours("shared/clock"), instruments, tracing, xsync)},
	"shared/silence":    {floor: 3, may: join(below, ours("shared/clock"), instruments, tracing, xsync)},
	"shared/facts":      {floor: 3, may: below},
	"shared/rates":      {floor: 3, may: join(below, ours("shared/clock"), instruments, tracing, xsync)},
	"shared/cache":      {floor: 3, may: join(below, instruments, tracing, xsync)},
	"shared/controller": {floor: 3, may: join(below, ours("shared/lease", "shared/cache"), workqueue, instruments, tracing, xsync)},
	"shared/process":    {floor: 3, may: join(ours("shared/telemetry"), settings, instruments, tracing, xsync)},

	// Wiring that every controller shares: it meets edges and frame, as a service
	// does, and nothing below knows it.
	"shared/role": {floor: 4, may: join(below, ours("shared/bus", "shared/kube", "shared/telemetry",
		"shared/lease", "shared/rates", "shared/cache", "shared/controller", "shared/process"), instruments, tracing, settings, xsync)},
	"shared/role/roletest": {floor: 4, may: join(below, ours("shared/kube", "shared/rates", "shared/cache", "shared/controller"), kubernetes)},
	"services/*":           {floor: 4, may: join(ours("proto/", "shared/"), protobuf, kubernetes, instruments, tracing, settings, xsync)},

	"services/millrace": {floor: 5, anything: true},

	"deploy/fleet": {floor: 6, may: outside},
	// Silence is listened to as a role would, to know what a role is told.
	"deploy/e2e":   {floor: 6, may: join(outside, ours("deploy/fleet", "shared/silence"))},
	"deploy/bench": {floor: 6, may: join(outside, ours("deploy/fleet"))},
	"deploy/chart": {floor: 6, may: join(outside, ours("deploy/fleet"))},
	"deploy/demo":  {floor: 6, may: join(outside, ours("deploy/fleet"))},

	"shared/arch": {floor: 6},
}

// outside is how one sees millrace from outside: as running binaries, through
// the API server, the bus and the metrics.
var outside = join(below, kitsOfEdges, kubernetes, nats, xsync,
	[]string{"github.com/prometheus/common/expfmt", "github.com/prometheus/common/model", "github.com/prometheus/client_model/go", "go.opentelemetry.io/proto/otlp/"})

// Tests may use more than the code beside them, so that an edge can be shown to
// satisfy the interface a frame names; but a pure room is tested by pure means,
// and a service never by way of another one.
var (
	testTools   = []string{"github.com/google/go-cmp/", "go.uber.org/goleak", "pgregory.net/rapid"}
	testsOfPure = join(testTools, below)
	testsOfRest = join(testTools, ours("proto/", "shared/"), protobuf, kubernetes, nats, settings, xsync,
		[]string{"github.com/prometheus/", "go.opentelemetry.io/"})
)

// Files of these names hold judgement. Wherever they lie they are as pure as
// the first floor, and may name besides it only published Kubernetes types and
// helpers that touch nothing.
var (
	judgementFiles   = []string{"decide*.go", "project*.go", "zone*.go"}
	judgementImports = join(below, []string{
		"k8s.io/api/",
		"k8s.io/apimachinery/",
		"k8s.io/apiserver/pkg/quota/v1",
		"k8s.io/component-helpers/",
		"k8s.io/utils/ptr",
	})
)

// The ways out of a pure room. Whoever needs one of these takes the result as
// an argument instead.
var (
	impureImports = []string{
		"C", "crypto/rand", "database/sql", "embed", "io/ioutil", "log", "log/", "math/rand", "net", "net/",
		"os", "os/", "plugin", "runtime", "runtime/", "syscall", "unsafe",
	}
	clock = []string{"After", "AfterFunc", "NewTicker", "NewTimer", "Now", "Since", "Sleep", "Tick", "Until"}
	// seeded are the names of math/rand/v2 that draw on no hidden source.
	seeded = []string{"ChaCha8", "New", "NewChaCha8", "NewPCG", "NewZipf", "PCG", "Rand", "Source", "Zipf"}
)

// ours turns folders of the house into import paths.
func ours(folders ...string) []string {
	paths := make([]string, len(folders))
	for i, f := range folders {
		paths[i] = module + f
	}
	return paths
}

func join(lists ...[]string) []string {
	var all []string
	for _, l := range lists {
		all = append(all, l...)
	}
	return all
}

// roomOf returns the room a slash-separated file or folder lies in, with the
// star of a pattern filled in: every service is a room of its own.
func roomOf(path string) (name string, r room, ok bool) {
	parts := strings.Split(path, "/")
	for n := len(parts); n > 0; n-- {
		name = strings.Join(parts[:n], "/")
		if r, ok = rooms[name]; ok {
			return name, r, true
		}
		if n > 1 {
			if r, ok = rooms[strings.Join(parts[:n-1], "/")+"/*"]; ok {
				return name, r, true
			}
		}
	}
	return "", room{}, false
}

// covers reports whether one of entries allows imp.
func covers(entries []string, imp string) bool {
	for _, e := range entries {
		if imp == e || strings.HasSuffix(e, "/") && strings.HasPrefix(imp, e) {
			return true
		}
	}
	return false
}
