package e2e

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// One trace tells the whole way of one change: watch, publication, the wait for
// its turn, reconcile and write, in two processes, each hop the child of the one
// before, and its waits in between.
func TestATraceHoldsEveryHop(t *testing.T) {
	ctx, f := begin(t, 3*time.Minute)
	c := collect(t)
	startReady(ctx, t, f, 2, c.environment()...)
	w := prepare(ctx, t, f, prefixOf(t), 1, 60)
	o := observe(ctx, t, f, w.prefix)
	o.awaitRest(ctx, t, f, 30*time.Second)

	s := w.spaces[0]
	var chain []span
	eventually(ctx, t, 60*time.Second, "a trace of a flip", func() (bool, string) {
		p, err := w.api.CoreV1().Pods(s.name).Get(ctx, "anchor-0", metav1.GetOptions{})
		if err == nil {
			err = s.report(ctx, p, "Running", !podReady(p))
		}
		if err != nil {
			return false, err.Error()
		}
		o.awaitRest(ctx, t, f, 30*time.Second)
		chain = c.find("pods", s.name+"/anchor-0", "/namespaces/"+s.name+"/endpointslices")
		return chain != nil, "none that ends in the write of a slice"
	})
	names := make([]string, len(chain))
	for i, s := range chain {
		names[i] = s.name
		t.Logf("%-10s %-20s from %8s for %s", s.name, s.service, s.began.Sub(chain[0].began).Round(time.Microsecond), s.ended.Sub(s.began).Round(time.Microsecond))
	}
	if got, want := strings.Join(names, " "), "watch publish consume reconcile write"; got != want {
		t.Fatalf("the trace is %q, want %q", got, want)
	}
	watch, publish, consume, reconcile, write := chain[0], chain[1], chain[2], chain[3], chain[4]
	if watch.service != "millrace-watcher" || reconcile.service != "millrace-endpoints" {
		t.Errorf("the change was watched by %q and reconciled by %q", watch.service, reconcile.service)
	}
	if !consume.ended.Equal(reconcile.began) {
		t.Errorf("the wait for its turn ended at %s, the reconcile began at %s", consume.ended, reconcile.began)
	}
	for _, order := range [][2]time.Time{
		{watch.began, publish.began}, {publish.began, consume.began}, {consume.began, reconcile.began},
		{reconcile.began, write.began}, {write.began, write.ended}, {write.ended, reconcile.ended},
	} {
		if order[1].Before(order[0]) {
			t.Errorf("the hops are out of order: %s is before %s", order[1], order[0])
		}
	}
	for _, name := range []string{"millrace.member", "millrace.epoch", "millrace.key", "millrace.role"} {
		if reconcile.attributes[name] == "" {
			t.Errorf("the reconcile does not say its %s", name)
		}
	}
}
