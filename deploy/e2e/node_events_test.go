package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Contract: events of contract 1, section 8, and "once per node UID over all
// replicas and restarts" of issue 4.
func TestNodeEvents(t *testing.T) {
	ctx, f := begin(t, 4*time.Minute)
	w := nodesIn(ctx, t, f, nodeSetup{
		nodes: 6, zones: []string{"a", "b"}, beat: beatEvery, grace: 4 * time.Second, replicas: 3, env: unlimited,
	})
	uids := map[string]types.UID{}
	for _, name := range w.names {
		uids[name] = w.log.node(name).UID
	}
	registered := func(what string) {
		t.Helper()
		for _, name := range w.names {
			w.awaitEvents(ctx, t, name, uids[name], "RegisteredNode", 1)
		}
		t.Logf("%s: each of %d nodes is registered once", what, len(w.names))
	}
	registered("at first")

	w.kill(append(slices.Clone(w.members), w.watchers...)...)
	w.addWatcher(ctx)
	for range 3 {
		w.addMember(ctx)
	}
	w.settled(ctx)
	pause(ctx, 2*time.Second) // whoever would say it again has seen all by then
	registered("after restarts of all")

	silent, gone := w.names[0], w.names[1]
	w.silence(silent)
	w.await(ctx, t, 30*time.Second, "one is Unknown", []string{silent}, unknownNow)
	w.awaitEvents(ctx, t, silent, uids[silent], "NodeNotReady", 1)
	w.awaitEvents(ctx, t, gone, uids[gone], "NodeNotReady", 0)

	labels := w.log.node(gone).Labels
	w.must(w.api.CoreV1().Nodes().Delete(ctx, gone, metav1.DeleteOptions{}))
	w.awaitEvents(ctx, t, gone, uids[gone], "RemovingNode", 1)
	made, err := w.api.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: gone, Labels: labels}}, metav1.CreateOptions{})
	w.must(err)
	w.awaitEvents(ctx, t, gone, made.UID, "RegisteredNode", 1)
	pause(ctx, time.Second)
	w.awaitEvents(ctx, t, gone, uids[gone], "RegisteredNode", 1)
	w.awaitEvents(ctx, t, gone, uids[gone], "RemovingNode", 1)
	w.awaitEvents(ctx, t, gone, made.UID, "RemovingNode", 0)
	w.awaitEvents(ctx, t, silent, uids[silent], "NodeNotReady", 1)
	w.log.judge(t)
}

// awaitEvents waits until a node's events of that reason are so many, and fails at
// once when they are more.
func (w *nodeWorld) awaitEvents(ctx context.Context, t *testing.T, name string, uid types.UID, reason string, want int) {
	t.Helper()
	eventually(ctx, t, 20*time.Second, fmt.Sprintf("%d %s of %s", want, reason, name), func() (bool, string) {
		list, err := w.api.CoreV1().Events("").List(ctx, metav1.ListOptions{
			FieldSelector: fmt.Sprintf("involvedObject.kind=Node,involvedObject.name=%s,reason=%s", name, reason),
		})
		if err != nil {
			return false, err.Error()
		}
		got := 0
		for i := range list.Items {
			e := &list.Items[i]
			if e.InvolvedObject.UID != uid {
				continue
			}
			if got += max(1, int(e.Count)); e.Type != corev1.EventTypeNormal || e.Source.Component != "node-controller" {
				t.Errorf("%s event of %s: type %s, from %q", reason, name, e.Type, e.Source.Component)
			}
		}
		if got > want {
			t.Fatalf("%d %s events of %s with UID %s, want %d", got, reason, name, uid, want)
		}
		return got == want, fmt.Sprint(got)
	})
}
