// Package bustest runs real NATS servers for tests: in this process, or as a
// child process that can be killed, alone or as a cluster, each on a free port
// and restartable on the same port and store. A proxy cuts and freezes
// connections.
package bustest

import (
	"context"
	"errors"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/embedded"
)

// Server is a NATS server for one test.
type Server struct {
	t       testing.TB
	options embedded.Options
	running *embedded.Server
	url     string
}

// Option changes a server before it starts.
type Option func(*embedded.Options)

// Dir keeps the store in dir instead of a temporary directory.
func Dir(dir string) Option { return func(o *embedded.Options) { o.Dir = dir } }

// Configure changes the server's own options.
func Configure(fn func(*server.Options)) Option {
	return func(o *embedded.Options) { o.Configure = fn }
}

// Start runs a server in this process until the test ends.
func Start(t testing.TB, options ...Option) *Server {
	t.Helper()
	s := &Server{t: t, options: embedded.Options{Dir: t.TempDir()}}
	for _, o := range options {
		o(&s.options)
	}
	s.Restart()
	t.Cleanup(s.Stop)
	return s
}

// Launch runs a server outside of a test, for demos: everything in dir.
func Launch(dir string) (*embedded.Server, error) {
	return embedded.Start(embedded.Options{Dir: dir})
}

// URL is where clients connect; it stays the same over restarts.
func (s *Server) URL() string { return s.url }

// Native is the server itself, for what only it can tell; nil while stopped.
func (s *Server) Native() *server.Server {
	if s.running == nil {
		return nil
	}
	return s.running.Native()
}

// Config is a configuration that connects to the server.
func (s *Server) Config() bus.Config { return ConfigFor(s.url) }

// ConfigFor is a configuration for tests that connects to url: 8 partitions, and
// small streams, because the server sets their size aside.
func ConfigFor(url string) bus.Config {
	return bus.Config{
		URL:               url,
		Cluster:           "test",
		Partitions:        8,
		Storage:           "file",
		MaxBytes:          512 << 20,
		DecisionsMaxAge:   time.Hour,
		DecisionsMaxBytes: 16 << 20,

		DecisionsPerObject: 4,
	}
}

// Stop ends the server as SIGTERM does; a stopped one is left alone.
func (s *Server) Stop() {
	if s.running != nil {
		s.running.Stop()
		s.running = nil
	}
}

// Restart stops the server if it runs, and starts it on the same port and store.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	running, err := embedded.Start(s.options)
	if err != nil {
		s.t.Fatal(err)
	}
	s.running, s.url = running, running.URL()
	s.options.Port = portOf(s.t, s.url)
}

// Wipe stops the server, deletes its store and starts it again.
func (s *Server) Wipe() {
	s.t.Helper()
	s.Stop()
	wipe(s.t, s.options.Dir)
	s.Restart()
}

// Cluster runs n servers in this process as one NATS cluster until the test
// ends.
func Cluster(t testing.TB, n int) []*Server {
	t.Helper()
	ports := freePorts(t, n)
	routes := make([]string, n)
	for i, port := range ports {
		routes[i] = "nats://" + net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	}
	servers := make([]*Server, n)
	for i := range servers {
		servers[i] = Start(t, func(o *embedded.Options) {
			o.Name, o.ClusterName = "s"+strconv.Itoa(i), "bustest"
			o.ClusterPort, o.Routes = ports[i], routes
		})
	}
	await(t, "a leader of the cluster", func() bool {
		for _, s := range servers {
			if s.Native().JetStreamIsLeader() && len(s.Native().JetStreamClusterPeers()) == n {
				return true
			}
		}
		return false
	})
	return servers
}

// Connect opens a bus of its own to cfg, connected and with every stream in
// place, and closes it when the test ends.
func Connect(t testing.TB, cfg bus.Config, name string) *bus.Bus {
	t.Helper()
	b, err := bus.Connect(context.Background(), cfg, name, nil, prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.Close)
	AwaitConnected(t, b)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := b.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	return b
}

// AwaitConnected waits until b is connected.
func AwaitConnected(t testing.TB, b *bus.Bus) {
	t.Helper()
	awaitState(t, b, true)
}

// AwaitDisconnected waits until b knows that the server is away.
func AwaitDisconnected(t testing.TB, b *bus.Bus) {
	t.Helper()
	awaitState(t, b, false)
}

func awaitState(t testing.TB, b *bus.Bus, connected bool) {
	t.Helper()
	changes, cancel := b.Changes()
	defer cancel()
	limit := time.After(20 * time.Second)
	for b.State().Connected != connected {
		select {
		case <-changes:
		case <-limit:
			t.Fatalf("connected is not %t after 20 s", connected)
		}
	}
}

// await asks until done says yes: for what a server tells nobody about.
func await(t testing.TB, what string, done func() bool) {
	t.Helper()
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	limit := time.After(20 * time.Second)
	for !done() {
		select {
		case <-ticker.C:
		case <-limit:
			t.Fatalf("waited 20 s for %s", what)
		}
	}
}

// wipe empties dir and leaves it.
func wipe(t testing.TB, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	for _, e := range entries {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
	}
	if err != nil {
		t.Fatal(err)
	}
}

func portOf(t testing.TB, address string) int {
	t.Helper()
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(u.Port())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// freePorts finds n ports that are free now; another process might take one
// before it is used, which only a cluster, whose routes must be known before,
// puts up with.
func freePorts(t testing.TB, n int) []int {
	t.Helper()
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }() //nolint:gocritic // all stay open until all are found, so that they differ
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports
}
