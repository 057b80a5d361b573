package watcher

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/partition"
)

// node is a node with a Ready condition that was reported at a second.
func node(name string, version uint64, second int64) kube.Object {
	return kube.Object{
		Key: event.Key{Name: name}, UID: "uid-" + name, Version: version, Observed: time.Now(),
		Raw: &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: fmt.Sprint(version)},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
				{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: metav1.Unix(second, 0)},
			}},
		},
	}
}

// leaseOf is a node's Lease, renewed at a second.
func leaseOf(name string, second int64) kube.Object {
	at := metav1.NewMicroTime(time.Unix(second, 0))
	return kube.Object{
		Key: event.Key{Namespace: leaseNamespace, Name: name}, Version: 1,
		Raw: &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{RenewTime: &at}},
	}
}

// beatRig is a rig of the kind nodes.
func newBeatRig(t *testing.T) *rig {
	r := newRig(t)
	reg := prometheus.NewRegistry()
	k := kindOf{
		kind: kube.Nodes, tombstones: tombstoneLife, metrics: newMetrics(reg).of(kube.Nodes),
		status: &kindStatus{kind: kube.Nodes, held: true}, beats: newBeats(reg),
	}
	k.beats.status.take()
	began := time.Now()
	defer func() { r.owner.beats.boot = func() time.Duration { return time.Hour + time.Since(began) } }()
	r.owner = newOwner(k, r.grant, r.bus, r.api, slog.New(slog.DiscardHandler), func(error) {})
	return r
}

// begun starts it with two nodes.
func (r *rig) begun() {
	r.start()
	r.api.set(func() { r.api.alive = true })
	r.api.events.Replaced(101, []kube.Object{node("a", 100, 1), node("b", 101, 1)})
	r.api.leases.Replaced(101, []kube.Object{leaseOf("a", 1), leaseOf("b", 1)})
}

// beats are what the last digests of all partitions say, and the highest counter.
func (r *rig) beats() (ages map[string]time.Duration, highest uint64) {
	r.bus.mu.Lock()
	defer r.bus.mu.Unlock()
	ages = map[string]time.Duration{}
	for slice, body := range r.bus.digests {
		d, err := beat.Decode(body)
		if err != nil || d.Epoch != r.grant.Epoch() {
			r.t.Errorf("digest of %d: epoch %d, %v", slice, d.Epoch, err)
		}
		highest = max(highest, d.Counter)
		for _, b := range d.Beats {
			ages[b.Node] = b.Age.Round(time.Second)
		}
	}
	return ages, highest
}

func (r *rig) wantAges(what string, want map[string]time.Duration) {
	r.t.Helper()
	got, _ := r.beats()
	if diff := cmp.Diff(want, got); diff != "" {
		r.t.Errorf("%s: %s", what, diff)
	}
}

func TestDigestsOfEveryPartitionOnceASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBeatRig(t)
		r.begun()
		r.after(2500 * time.Millisecond)
		if len(r.bus.digests) != testPartitions {
			t.Fatalf("%d of %d partitions have a digest, the empty ones too", len(r.bus.digests), testPartitions)
		}
		r.wantAges("at first", map[string]time.Duration{"a": 2 * time.Second, "b": 2 * time.Second})
		r.api.set(func() { r.api.proof = time.Now() }) // the last word of the API server
		r.after(2 * time.Second)
		_, last := r.beats()
		r.after(20 * time.Second)
		r.wantAges("while the API server hangs", map[string]time.Duration{"a": 2 * time.Second, "b": 2 * time.Second})
		if _, counter := r.beats(); counter != last {
			t.Errorf("%d digests more without a proof", counter-last)
		}
		if err := r.owner.beats.status.ready(time.Now()); err == nil {
			t.Error("ready while the API server hangs")
		}
		r.api.leases.Changed(leaseOf("b", 2), false)
		r.api.set(func() { r.api.proof = time.Time{} })
		r.after(2500 * time.Millisecond)
		r.wantAges("afterwards", map[string]time.Duration{"a": 6 * time.Second, "b": 2 * time.Second})
		if err := r.owner.beats.status.ready(time.Now()); err != nil {
			t.Errorf("not ready: %v", err)
		}
		r.stop()
	})
}

// Whoever stands between us and the API server may answer pings for one that
// hangs: the watches prove to live, and nobody can beat.
func TestNobodyAgesWhileTheAPIServerDoesNotAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBeatRig(t)
		r.begun()
		r.after(2500 * time.Millisecond)
		r.wantAges("at first", map[string]time.Duration{"a": 2 * time.Second, "b": 2 * time.Second})
		mute := make(chan struct{})
		r.api.set(func() { r.api.mute = mute })
		r.after(2 * time.Second)
		ages, last := r.beats()
		if ages["a"] > 4*time.Second {
			t.Errorf("a has aged to %s", ages["a"])
		}
		r.after(20 * time.Second)
		if now, counter := r.beats(); counter != last {
			t.Errorf("%d digests more without an answer: %v", counter-last, now)
		}
		if err := r.owner.beats.status.ready(time.Now()); err == nil {
			t.Error("ready while the API server does not answer")
		}
		r.api.set(func() { r.api.mute = nil })
		close(mute) // the old question is answered now, and says nothing of now
		r.after(2500 * time.Millisecond)
		if ages, _ := r.beats(); ages["a"] > 9*time.Second {
			t.Errorf("a has aged to %s by an outage of 20 s", ages["a"])
		}
		r.stop()
	})
}

func TestNoDigestWithoutAWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBeatRig(t)
		r.start()
		r.api.events.Replaced(101, []kube.Object{node("a", 100, 1)})
		r.after(5 * time.Second)
		if len(r.bus.digests) != 0 {
			t.Error("a digest before the Leases were listed")
		}
		if err := r.owner.beats.status.ready(time.Now()); err == nil {
			t.Error("ready without a digest")
		}
		r.api.leases.Replaced(101, nil)
		r.after(5 * time.Second)
		if len(r.bus.digests) != 0 {
			t.Error("a digest while the watch is dead")
		}
		r.stop()
	})
}

// A node that reports its status every five minutes changes nothing that travels.
func TestAHeartbeatIsNotPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBeatRig(t)
		r.begun()
		r.after(1500 * time.Millisecond)
		before := len(r.bus.sent) - len(r.bus.marks())
		for i := range int64(10) {
			r.api.events.Changed(node("a", 200+uint64(i), 2+i), false)
		}
		r.after(1500 * time.Millisecond)
		if n := len(r.bus.sent) - len(r.bus.marks()) - before; n != 0 {
			t.Errorf("%d messages of heartbeats", n)
		}
		if d, err := beat.Decode(r.bus.digests[slotOf("a")]); err != nil || d.Beats[0].Heartbeat != 11 {
			t.Errorf("the digest shows %+v, %v; want the last heartbeat", d.Beats, err)
		}
		r.stop()
	})
}

func TestBeatsComeFromBothWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBeatRig(t)
		r.begun()
		r.after(1500 * time.Millisecond)
		r.api.leases.Changed(leaseOf("a", 7), false)
		r.api.leases.Changed(leaseOf("b", 7), true)
		r.api.events.Changed(node("b", 300, 9), false)
		r.after(1500 * time.Millisecond)
		want := map[string]beat.Beat{
			"a": {Node: "a", UID: "uid-a", Renewed: 7_000_000, Heartbeat: 1},
			"b": {Node: "b", UID: "uid-b", Heartbeat: 9},
		}
		for name, w := range want {
			d, err := beat.Decode(r.bus.digests[slotOf(name)])
			if err != nil || len(d.Beats) != 1 || !d.Beats[0].Same(w) {
				t.Errorf("%s: %+v, %v; want %+v", name, d.Beats, err, w)
			}
		}
		r.api.events.Changed(node("b", 301, 9), true)
		r.after(1500 * time.Millisecond)
		r.wantAges("after a deletion", map[string]time.Duration{"a": 3 * time.Second})
		r.stop()
	})
}

// A digest is made only under a valid grant, and the counter grows over runs.
func TestDigestsNeedTheGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newBeatRig(t)
		r.owner.beats.base = 40
		r.begun()
		r.after(1500 * time.Millisecond)
		if _, counter := r.beats(); counter <= 40 {
			t.Errorf("counter %d, after 40 of an earlier run", counter)
		}
		r.grant.lose(errLost)
		r.after(100 * time.Millisecond)
		_, last := r.beats()
		r.after(3 * time.Second)
		if _, counter := r.beats(); counter != last {
			t.Error("digests go on without the grant")
		}
		r.cancel()
		_ = r.wait()
		if c := r.owner.beats.counter(); c < last {
			t.Errorf("the run ends at counter %d, %d was sent", c, last)
		}
	})
}

func slotOf(name string) int { return partition.OfKey(event.Key{Name: name}, testPartitions) }
