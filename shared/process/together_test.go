package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// diary is the order in which roles did things.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (d *diary) note(line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.lines = append(d.lines, line)
}

// obedient is a role that stops when it is told to.
func (d *diary) obedient(name string, started *sync.WaitGroup) Role {
	started.Add(1)
	return Role{name, func(ctx context.Context, _ *Env) error {
		started.Done()
		<-ctx.Done()
		d.note(name + " drains")
		return ctx.Err()
	}}
}

// run serves roles as one process until all of them have started, sends it a
// signal if asked to, and returns the exit code and what was said.
func run(t *testing.T, started *sync.WaitGroup, signal bool, stages ...[]Role) (code int, said string) {
	t.Helper()
	t.Setenv("MILLRACE_LISTEN", "")
	signals := make(chan os.Signal, 1)
	var out output
	code = serve("standalone", func(ctx context.Context, env *Env) error {
		if signal {
			go func() {
				started.Wait()
				signals <- syscall.SIGTERM
			}()
		}
		return Together(ctx, env, stages...)
	}, nil, signals, &out)
	return code, out.String()
}

// Contract: issue 3, part 8: one signal, controllers first, then the watcher.
func TestTogetherDrainsInOrder(t *testing.T) {
	var d diary
	var started sync.WaitGroup
	controllers := []Role{d.obedient("a", &started), d.obedient("b", &started)}
	watcher := []Role{d.obedient("watcher", &started)}
	if code, said := run(t, &started, true, controllers, watcher); code != ExitOK {
		t.Errorf("exit code %d; it said\n%s", code, said)
	}
	slices.Sort(d.lines[:2])
	if want := []string{"a drains", "b drains", "watcher drains"}; !slices.Equal(d.lines, want) {
		t.Errorf("%q, want %q", d.lines, want)
	}
}

func TestTogetherEndsWithTheFirstThatEnds(t *testing.T) {
	tests := map[string]struct {
		err  error
		want int
		says string
	}{
		"with an error":             {errors.New("no luck"), ExitFailure, "running sick: no luck"},
		"without one":               {nil, ExitFailure, "running sick: it ended by itself"},
		"with a bad configuration":  {configError("x is y"), ExitConfig, "millrace standalone: running sick: bad configuration: x is y\n"},
		"as if it had been stopped": {context.Canceled, ExitFailure, "running sick: context canceled"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var d diary
			var started sync.WaitGroup
			sick := Role{"sick", func(context.Context, *Env) error { started.Wait(); return tt.err }}
			code, said := run(t, &started, false, []Role{sick, d.obedient("well", &started)}, []Role{d.obedient("watcher", &started)})
			if code != tt.want || !strings.Contains(said, tt.says) {
				t.Errorf("exit code %d, want %d and %q; it said\n%s", code, tt.want, tt.says, said)
			}
			if want := []string{"well drains", "watcher drains"}; !slices.Equal(d.lines, want) {
				t.Errorf("the others: %q, want %q", d.lines, want)
			}
		})
	}
}

func TestTogetherTellsADrainThatFails(t *testing.T) {
	var started sync.WaitGroup
	started.Add(1)
	sick := Role{"sick", func(ctx context.Context, _ *Env) error {
		started.Done()
		<-ctx.Done()
		return errors.New("half done")
	}}
	if code, said := run(t, &started, true, []Role{sick}); code != ExitFailure || !strings.Contains(said, "running sick: half done") {
		t.Errorf("exit code %d; it said\n%s", code, said)
	}
}

// Contract: issue 3, part 8: one /metrics on which no two series clash, one
// /readyz, and logs that name the role.
func TestTogetherKeepsRolesApart(t *testing.T) {
	t.Setenv("MILLRACE_LISTEN", "127.0.0.1:0")
	var ready sync.WaitGroup
	ready.Add(2) // both roles, before anybody waits
	var out output
	asked := make(chan struct{})
	role := func(name string, missing error) Role {
		return Role{name, func(ctx context.Context, env *Env) error {
			promauto.With(env.Registry).NewCounter(prometheus.CounterOpts{Name: "writes_total", Help: "x"}).Inc()
			env.Health.Ready("bus", func() error { return missing })
			env.Log.Info("hello")
			ready.Done()
			<-ctx.Done()
			return nil
		}}
	}
	signals := make(chan os.Signal, 1)
	code := serve("standalone", func(ctx context.Context, env *Env) error {
		go func() {
			defer close(asked)
			defer func() { signals <- syscall.SIGTERM }()
			ready.Wait()
			defer http.DefaultClient.CloseIdleConnections()
			if got := get(t, env, "/readyz"); got != "503 endpoints: bus: NATS is away\n" {
				t.Errorf("/readyz: %q", got)
			}
			if got := get(t, env, "/livez"); got != "200 ok\n" {
				t.Errorf("/livez: %q", got)
			}
			metrics := get(t, env, "/metrics")
			for _, want := range []string{`writes_total{role="watcher"} 1`, `writes_total{role="endpoints"} 1`, "go_goroutines "} {
				if !strings.Contains(metrics, "\n"+want) {
					t.Errorf("no %s in /metrics", want)
				}
			}
		}()
		return Together(ctx, env, []Role{role("endpoints", errors.New("NATS is away"))}, []Role{role("watcher", nil)})
	}, nil, signals, &out)
	<-asked
	if code != ExitOK {
		t.Errorf("exit code %d: %s", code, out.String())
	}
	for _, name := range []string{"watcher", "endpoints"} {
		if want := fmt.Sprintf(`"msg":"hello","role":%q`, name); !strings.Contains(out.String(), want) {
			t.Errorf("no %s in\n%s", want, out.String())
		}
	}
}

func get(t *testing.T, env *Env, path string) string {
	t.Helper()
	resp, err := http.Get("http://" + env.Addr + path)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, body)
}
