package e2e

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// Contract: part 8 of issue 3: killed and started again on its folder, standalone
// goes on: it writes nothing that changes nothing, and loses no key.
func TestStandalone(t *testing.T) {
	ctx, f := begin(t, 4*time.Minute)
	f = f.Alone()
	m := start(ctx, t, f, fleet.Standalone)
	ready(ctx, t, m)
	w := prepare(ctx, t, f, prefixOf(t), 1, 90)
	o := observe(ctx, t, f, w.prefix)
	w.run(ctx, 300)
	o.awaitRest(ctx, t, f, 30*time.Second)
	whole(ctx, t, f)
	rolesAreTold(ctx, t, m)
	before := versions(ctx, t, f)

	m.Kill()
	began := time.Now()
	m = start(ctx, t, f, fleet.Standalone)
	ready(ctx, t, m)
	whole(ctx, t, f)
	t.Logf("killed at rest: whole again after %s", time.Since(began).Round(time.Millisecond))
	if after := versions(ctx, t, f); !maps.Equal(before, after) {
		t.Errorf("%d slices before, %d after, and they differ", len(before), len(after))
	}
	metrics, err := m.Metrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if n := metrics.Sum("millrace_endpoints_writes_total"); n != 0 {
		t.Errorf("it wrote %g times", n)
	}
	if metrics.Sum("millrace_controller_reconciles_total", "role", "endpoints") == 0 {
		t.Error("it reconciled nothing")
	}

	working, stop := context.WithCancel(ctx)
	var worked sync.WaitGroup
	worked.Go(func() { w.run(working, 1<<40) })
	for range 2 {
		pause(ctx, time.Second)
		m.Kill()
		pause(ctx, 500*time.Millisecond)
		m = start(ctx, t, f, fleet.Standalone)
		ready(ctx, t, m)
	}
	stop()
	worked.Wait()
	rest := o.awaitRest(ctx, t, f, 60*time.Second)
	t.Logf("killed twice at work, %d changes in all: at rest after %s", w.changes.Load(), rest.Round(time.Millisecond))
	o.noHoles(t, 15*time.Second)

	// One folder, one process.
	r := f.Exec(ctx, f.Env(fleet.Standalone), fleet.Standalone)
	lines := strings.Split(strings.TrimSpace(r.Complaints), "\n")
	if last := lines[len(lines)-1]; r.Code != 2 || !strings.Contains(last, "MILLRACE_STANDALONE_DIR") || !strings.Contains(last, "another process uses it") {
		t.Errorf("a second one on the folder: exit code %d, %q", r.Code, last)
	}
	began = time.Now()
	leave(t, m)
	t.Logf("stopped after %s", time.Since(began).Round(time.Millisecond))
}

// Without a folder it needs nothing but a kubeconfig.
func TestStandaloneInMemory(t *testing.T) {
	ctx, f := begin(t, 2*time.Minute)
	f = f.Alone()
	m := start(ctx, t, f, fleet.Standalone, "MILLRACE_STANDALONE_DIR=")
	ready(ctx, t, m)
	w := prepare(ctx, t, f, prefixOf(t), 1, 90)
	o := observe(ctx, t, f, w.prefix)
	w.run(ctx, 100)
	o.awaitRest(ctx, t, f, 30*time.Second)
	rolesAreTold(ctx, t, m)
	leave(t, m)
}

// rolesAreTold: what each role counts is told as its own.
func rolesAreTold(ctx context.Context, t *testing.T, m *fleet.Member) {
	t.Helper()
	metrics, err := m.Metrics(ctx)
	if err != nil {
		t.Fatal(err)
	}
	for role, units := range map[string]float64{"endpoints": partitions, "watcher": carried} {
		if n := metrics.Sum("millrace_lease_units_held", "role", role); n != units {
			t.Errorf("%s holds %g units, want %g", role, n, units)
		}
		if n := metrics.Sum("millrace_bus_connected", "role", role); n != 1 {
			t.Errorf("%s has %g connections", role, n)
		}
	}
}
