package e2e

import (
	"context"
	"maps"
	"testing"
	"time"
)

// Contract: I6, and more than "two holders" of issue 2. Two whole installations
// on the same API server, so that every partition has two holders who know
// nothing of each other: the end is right, and then they leave each other alone.
//
// Two holders on one stream see a pod before the slice that somebody wrote for
// it. Two streams have no common order: one installation may see the other's
// slice before the pod that it tells of. Each lets its inputs catch up before it
// writes over a slice of another's, which leaves a hole only where one watcher is
// behind the other by more than a bookmark takes: at most one and one in a
// thousand changes, mended at once. Long form: SECONDS=30.
func TestTwoHolders(t *testing.T) {
	lasts := time.Duration(number(t, "SECONDS", 8)) * time.Second
	ctx, f := beginStrict(t, 3*time.Minute+2*lasts)
	_, ours := startReady(ctx, t, f, 2)
	_, theirs := startReady(ctx, t, f, 2, "MILLRACE_NATS_CLUSTER=other")
	w := prepare(ctx, t, f, prefixOf(t), 1, 60)
	o := observe(ctx, t, f, w.prefix)

	working, stop := context.WithTimeout(ctx, lasts)
	defer stop()
	w.run(working, 1<<40)
	rest := o.awaitRest(ctx, t, f, 30*time.Second)

	// Nothing changes any more, so nothing may be written: three seconds of
	// silence within twenty.
	quiet, before := time.Now(), versions(ctx, t, f)
	began := quiet
	for time.Since(quiet) < 3*time.Second {
		time.Sleep(250 * time.Millisecond)
		if now := versions(ctx, t, f); !maps.Equal(now, before) {
			quiet, before = time.Now(), now
		}
		if time.Since(began) > 20*time.Second {
			t.Fatal("they still write, 20s after the last change")
		}
	}
	o.awaitRest(ctx, t, f, time.Second)

	holes, late := o.holes(inputsMayBe)
	for _, h := range holes {
		t.Log(h)
		if h.to.IsZero() || h.to.Sub(h.from) > time.Second {
			t.Errorf("not mended within a second: %s", h)
		}
	}
	if most := 1 + int(w.changes.Load())/1000; len(holes) > most {
		t.Errorf("%d holes, want at most %d", len(holes), most)
	}

	written, changes := o.written(), int(w.changes.Load())
	if written > 4*changes {
		t.Errorf("%d slices written for %d changes", written, changes)
	}
	var shares []float64
	for _, m := range append(ours, theirs...) {
		metrics, err := m.Metrics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		shares = append(shares, metrics.Sum("millrace_endpoints_writes_total"))
	}
	if shares[0]+shares[1] == 0 || shares[2]+shares[3] == 0 {
		t.Errorf("one of the two has written nothing: %v", shares)
	}
	t.Logf("%d changes, %d slices written (by process: %v), %d holes, %d late echoes; at rest after %s, silent %s later",
		changes, written, shares, len(holes), late, rest.Round(time.Millisecond), quiet.Sub(began).Round(time.Millisecond))
}
