package e2e

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace-io/millrace/deploy/fleet"
)

// Contract: I7. Replaying the whole stream, by new processes and by those that
// run, writes nothing.
func TestNothingWrittenTwice(t *testing.T) {
	ctx, f := begin(t, 4*time.Minute)
	_, members := startReady(ctx, t, f, 3)
	w := prepare(ctx, t, f, prefixOf(t), 1, 120)
	o := observe(ctx, t, f, w.prefix)
	w.run(ctx, 400)
	o.awaitRest(ctx, t, f, 30*time.Second)
	whole(ctx, t, f)
	before := versions(ctx, t, f)

	same := func(what string, members []*fleet.Member) {
		t.Helper()
		whole(ctx, t, f)
		after := versions(ctx, t, f)
		if !maps.Equal(before, after) {
			t.Errorf("%s: %d slices before, %d after, and they differ", what, len(before), len(after))
		}
		reconciles := 0.0
		for _, m := range members {
			metrics, err := m.Metrics(ctx)
			if err != nil {
				t.Fatal(err)
			}
			if n := metrics.Sum("millrace_endpoints_writes_total"); n != 0 {
				t.Errorf("%s: %s wrote %g times", what, m.Name, n)
			}
			reconciles += metrics.Sum("millrace_controller_reconciles_total")
		}
		if reconciles == 0 {
			t.Errorf("%s: nobody reconciled anything", what)
		}
		t.Logf("%s: %g reconciles, %d slices, no write", what, reconciles, len(after))
	}
	anew := func() (fresh []*fleet.Member) {
		for range 3 {
			fresh = append(fresh, start(ctx, t, f, "endpoints"))
		}
		ready(ctx, t, fresh...)
		return fresh
	}

	for _, m := range members {
		leave(t, m)
	}
	members = anew()
	same("all replicas restarted", members)

	for _, m := range members {
		m.Kill()
	}
	members = anew()
	same("all replicas killed", members)

	breakFeeds(ctx, t, f)
	eventually(ctx, t, 30*time.Second, "every partition replayed", func() (bool, string) {
		replays := 0.0
		for _, m := range members {
			metrics, err := m.Metrics(ctx)
			if err != nil {
				return false, err.Error()
			}
			replays += metrics.Sum("millrace_controller_replays_total", "reason", "gap")
		}
		return replays >= partitions, fmt.Sprintf("%g have", replays)
	})
	same("all feeds broken", members)
}

// versions are the resourceVersions of all slices.
func versions(ctx context.Context, t *testing.T, f *fleet.Fleet) map[string]string {
	t.Helper()
	w, err := live(ctx, adminClient(f), "")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for key, s := range w.slices {
		out[key] = s.ResourceVersion
	}
	return out
}

// breakFeeds deletes every feed of the role under the members' feet. The durable
// positions, which carry the same stem, stay.
func breakFeeds(ctx context.Context, t *testing.T, f *fleet.Fleet) {
	t.Helper()
	withJetStream(t, f, func(js jetstream.JetStream) { breakConsumers(ctx, t, js) })
}

func breakConsumers(ctx context.Context, t *testing.T, js jetstream.JetStream) {
	t.Helper()
	stream, err := js.Stream(ctx, "K8S_default")
	if err != nil {
		t.Fatal(err)
	}
	broken := 0
	list := stream.ListConsumers(ctx)
	for info := range list.Info() {
		if info.Config.Durable != "" || !strings.HasPrefix(info.Name, "endpoints-") {
			continue
		}
		if err := stream.DeleteConsumer(ctx, info.Name); err != nil {
			t.Fatal(err)
		}
		broken++
	}
	if list.Err() != nil || broken < partitions {
		t.Fatalf("%d feeds broken, want at least %d: %v", broken, partitions, list.Err())
	}
}
