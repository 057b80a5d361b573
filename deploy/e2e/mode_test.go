package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace-io/millrace/deploy/fleet"
)

func setMode(ctx context.Context, t *testing.T, f *fleet.Fleet, mode string) {
	t.Helper()
	out, err := f.Run(ctx, "mode", "endpoints", mode)
	if err != nil || !strings.Contains(out, "members follow") {
		t.Fatalf("setting mode %s: %v: %s", mode, err, out)
	}
}

func writesOf(ctx context.Context, t *testing.T, members []*fleet.Member) (n float64) {
	t.Helper()
	for _, m := range members {
		metrics, err := m.Metrics(ctx)
		if err != nil {
			t.Fatal(err)
		}
		n += metrics.Sum("millrace_endpoints_writes_total")
	}
	return n
}

// Modes at run time, on real parts: shadow writes nothing and says what it would
// have written; off holds nothing; switching to and fro while everything changes
// loses no key.
func TestModesAtRunTime(t *testing.T) {
	ctx, f := begin(t, 6*time.Minute)
	_, members := startReady(ctx, t, f, 3)
	t.Cleanup(func() { _, _ = f.Run(context.WithoutCancel(ctx), "mode", "endpoints", "default") })
	w := prepare(ctx, t, f, prefixOf(t), 3, 100)
	o := observe(ctx, t, f, w.prefix)

	t.Log("active, shadow, off, active: while the work goes on")
	done := make(chan struct{})
	go func() { defer close(done); w.run(ctx, 800) }()
	for i, mode := range []string{"shadow", "active", "shadow", "off", "active"} {
		setMode(ctx, t, f, mode)
		if i < 4 {
			time.Sleep(700 * time.Millisecond) // the processes are real, and so is their time
		}
	}
	<-done
	o.awaitRest(ctx, t, f, 60*time.Second)
	whole(ctx, t, f)

	t.Log("shadow: nothing is written, and the report names what differs")
	setMode(ctx, t, f, "shadow")
	before := writesOf(ctx, t, members)
	w.run(ctx, 200)
	whole(ctx, t, f)
	if after := writesOf(ctx, t, members); after != before {
		t.Errorf("%g writes in shadow mode", after-before)
	}
	var report struct {
		Shadowing, Members int
		Differing          uint64
		Keys               []struct{ Key string }
	}
	out, err := f.Run(ctx, "shadow", "endpoints", "-o", "json")
	if err == nil {
		err = json.Unmarshal([]byte(out), &report)
	}
	if err != nil || report.Shadowing != 3 || report.Members != 3 || report.Differing == 0 || len(report.Keys) == 0 {
		t.Errorf("report is %+v, %v", report, err)
	}

	t.Log("off: nobody holds anything, and says so")
	setMode(ctx, t, f, "off")
	eventually(ctx, t, 20*time.Second, "everything was handed over", func() (bool, string) {
		s, err := f.Status(ctx)
		if err != nil {
			return false, err.Error()
		}
		for _, r := range s.Roles {
			if r.Role == "endpoints" {
				return r.Held == 0 && len(r.Members) == 3, fmt.Sprintf("%d held by %d", r.Held, len(r.Members))
			}
		}
		return false, "no such role"
	})
	ready(ctx, t, members...)

	t.Log("active: what was held back is done")
	setMode(ctx, t, f, "active")
	o.awaitRest(ctx, t, f, 60*time.Second)
	whole(ctx, t, f)
}
