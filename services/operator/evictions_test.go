package operator

import (
	"context"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/controller/controllertest"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/process"
	"github.com/millrace-io/millrace/shared/protocol"
)

// evicting runs a member of a role that has something to do.
func evicting(t *testing.T, b *bus.Bus, role, host string, todo ...controller.Pending) {
	t.Helper()
	def := controller.Definition{
		Role: role, Host: host, By: protocol.ByKey, Inputs: []cache.Input{{Kind: "pods", Projection: 1}},
		Keys:    func(*controller.Partition, cache.Change) []event.Key { return nil },
		All:     func(*controller.Partition) []event.Key { return nil },
		New:     func(*controller.Partition) controller.Reconciler { return nil },
		Pending: func() []controller.Pending { return append([]controller.Pending(nil), todo...) },
	}
	c, err := controller.New(controller.Default(), def, b, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- controller.Serve(ctx, c, controllertest.NewLease()) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func pod(name, node, waiting string, in time.Duration) controller.Pending {
	return controller.Pending{
		Object: controller.Ref{Kind: "pods", Key: event.ParseKey("shop/" + name), UID: "u-" + name}, Node: node,
		Why: "taint example.com/x=y:NoExecute, tolerated 300s", Due: time.Now().Add(in), Waiting: waiting,
	}
}

// Everything that members have still to do stands in one list, soonest first; who
// may only read may ask for it.
func TestEvictionsAreListed(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := guardedServer(t)
	all := as(t, s, "all")
	if err := all.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	if code, out, complaints := ran(t, s, "operator", "evictions"); code != process.ExitOK || !strings.Contains(out, "no member answers") {
		t.Errorf("with no member: exit code %d: %s%s", code, out, complaints)
	}
	evicting(t, all, "podevictor", "podevictor-1", pod("late", "node-1", "time", time.Hour), pod("over", "node-2", "rate", -90*time.Second))
	evicting(t, all, "podevictor", "podevictor-2", pod("soon", "node-1", "retry: refused by policy", time.Minute))
	evicting(t, all, "endpoints", "endpoints-1")
	awaitMembers(ctx, t, all, 3)

	out := wantRun(t, s, "evictions")
	t.Log("\n" + out)
	for _, want := range []string{
		`POD +NODE +WHY +DUE +WAITING FOR +MEMBER`,
		`shop/over +node-2 +taint example.com/x=y:NoExecute, tolerated 300s +overdue by 1m3\d.*s +rate +podevictor-1\n` +
			`shop/soon +node-1 +.* +in 5\d.*s +retry: refused by policy +podevictor-2\n` +
			`shop/late +node-1 +.* +in 59m.*s +time +podevictor-1\n`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("it lacks %s", want)
		}
	}
	if out := wantRun(t, s, "evictions", "-node", "node-1", "-n", "1"); !strings.Contains(out, "shop/soon") ||
		strings.Contains(out, "shop/over") || !strings.Contains(out, "and 1 more that are due later") {
		t.Errorf("the first of node-1:\n%s", out)
	}
	if out := wantRun(t, s, "evictions", "-role", "endpoints"); out != "nothing is pending; 1 members answered\n" {
		t.Errorf("of endpoints: %s", out)
	}
	var found Evictions
	if err := json.Unmarshal([]byte(wantRun(t, s, "evictions", "-o", "json", "-role", "podevictor")), &found); err != nil {
		t.Fatal(err)
	}
	if len(found.Items) != 3 || found.Members != 2 || found.Total != 3 || found.LeftOut != 0 || found.Items[0].UID != "u-over" ||
		*found.Items[0].DueInSeconds > -89 || found.Items[1].Host != "podevictor-2" {
		t.Errorf("as JSON it is %+v", found)
	}
	for _, bad := range []string{"-role nobody", "-n 0", "-o yaml", "-zone a", "shop/soon"} {
		code, out, complaints := ran(t, s, "operator", append([]string{"evictions"}, strings.Fields(bad)...)...)
		if code != process.ExitConfig || strings.Count(complaints, "\n") != 1 {
			t.Errorf("%s: exit code %d: %s%s", bad, code, out, complaints)
		}
	}
}

func awaitMembers(ctx context.Context, t *testing.T, b *bus.Bus, want int) {
	t.Helper()
	for {
		found, err := pendingOf(ctx, b, wanted{most: 1})
		if err != nil {
			t.Fatal(err)
		}
		if found.Members == want {
			return
		}
	}
}

// A long list keeps its order and counts what it leaves out.
func TestTheSoonestEvictionsAreShown(t *testing.T) {
	x := &Evictions{Total: 1000}
	for i := range 200 {
		left := float64((i * 7919) % 200)
		x.Items = append(x.Items, Eviction{Key: fmt.Sprint(i), DueInSeconds: &left, Due: new(time.Time)})
	}
	x.Items = append(x.Items, Eviction{Key: "unknown"})
	x.finish(50)
	if len(x.Items) != 50 || x.LeftOut != 950 || *x.Items[0].DueInSeconds != 0 || *x.Items[49].DueInSeconds != 49 {
		t.Errorf("%d items, %d left out, from %v", len(x.Items), x.LeftOut, x.Items[0])
	}
}
