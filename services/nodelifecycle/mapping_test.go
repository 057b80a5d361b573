package nodelifecycle

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

func podOn(name, nodeName string) *corev1.Pod {
	p := podSays("Ready", "True")
	p.Name, p.UID, p.Spec.NodeName = name, "uid-of-"+p.UID, nodeName
	return p
}

// What wakes whom. A pod is only looked at while its node has fallen silent: job D
// of contract 1 (section 4.7) falls out of it, because a pod newly bound is a change
// of that pod.
func TestWhatAChangeConcerns(t *testing.T) {
	t.Parallel()
	pods := []roletest.Object{podOn("p1", "n"), podOn("p2", "n"), podOn("p3", "other"), podOn("p4", "")}
	tests := map[string]struct {
		also   bool // MarkPodsOfNotReadyNodes
		before []roletest.Object
		change roletest.Object
		want   string
	}{
		"a ready node: itself":                                     {before: pods, change: node("n", ready), want: "n"},
		"a node without conditions: itself":                        {before: pods, change: node("n"), want: "n"},
		"a silent node: itself and the pods on it":                 {before: pods, change: node("n", unheard), want: "n ns/p1 ns/p2"},
		"a node whose kubelet says not ready: itself (4.5)":        {before: pods, change: node("n", sick), want: "n"},
		"the same, and pods are to be marked there too":            {also: true, before: pods, change: node("n", sick), want: "n ns/p1 ns/p2"},
		"processPod: node not known: nothing":                      {change: podOn("p1", "n")},
		"processPod: node ready: nothing":                          {before: []roletest.Object{node("n", ready)}, change: podOn("p1", "n")},
		"processPod: node has said nothing: nothing":               {before: []roletest.Object{node("n")}, change: podOn("p1", "n")},
		"processPod: node silent: the pod":                         {before: []roletest.Object{node("n", unheard)}, change: podOn("p1", "n"), want: "ns/p1"},
		"processPod: node not ready: nothing, where upstream does": {before: []roletest.Object{node("n", sick)}, change: podOn("p1", "n")},
		"the same, and pods are to be marked there too, also":      {also: true, before: []roletest.Object{node("n", sick)}, change: podOn("p1", "n"), want: "ns/p1"},
		"a pod that is on no node: nothing":                        {before: []roletest.Object{node("n", unheard)}, change: podOn("p1", "")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := defaults()
			p.MarkPodsOfNotReadyNodes = tt.also
			w := newWorld(1)
			s := &nodeLifecycle{policy: p, partitions: 1, census: &registrar{}}
			part := w.Partition(0)
			w.Put(t, tt.before...)
			part.Changes()
			w.Put(t, tt.change)
			var got []event.Key
			for _, c := range part.Changes() {
				got = append(got, s.keys(part, c)...)
			}
			if roletest.ListKeys(got) != tt.want {
				t.Errorf("woke %q, want %q", roletest.ListKeys(got), tt.want)
			}
		})
	}
}

// A node that is gone wakes its key, so that it is forgotten; so does a pod's
// nothing.
func TestWhatADeletionConcerns(t *testing.T) {
	t.Parallel()
	w := newWorld(1)
	s := &nodeLifecycle{policy: defaults(), partitions: 1, census: &registrar{}}
	part := w.Partition(0)
	n, p := node("n", unheard), podOn("p", "n")
	w.Put(t, n, p)
	part.Changes()
	w.Drop(t, p, n)
	var got []event.Key
	for _, c := range part.Changes() {
		got = append(got, s.keys(part, c)...)
	}
	if roletest.ListKeys(got) != "n" {
		t.Errorf("woke %q, want n", roletest.ListKeys(got))
	}
}

// Every key falls into the hands of exactly one partition: the nodes by their
// names, the pods by theirs, whatever node they are on.
func TestEveryKeyHasOnePartition(t *testing.T) {
	t.Parallel()
	const partitions = 4
	w := newWorld(partitions)
	s := &nodeLifecycle{policy: defaults(), partitions: partitions, census: &registrar{}}
	var want []event.Key
	for i := range 40 {
		n := node(fmt.Sprint("n", i), unheard)
		p := podOn(fmt.Sprint("p", i), fmt.Sprint("n", (i*7)%40))
		want = append(want, event.Key{Name: n.Name}, event.Key{Namespace: p.Namespace, Name: p.Name})
		w.Put(t, n, p)
	}
	var all, changed []event.Key
	for i := range partitions {
		part := w.Partition(i)
		for _, key := range s.all(part) {
			if partition.OfKey(key, partitions) != i {
				t.Errorf("partition %d names %s, which is not its own", i, key)
			}
			all = append(all, key)
		}
		for j := range 40 {
			c := cache.Change{Kind: nodes, Key: event.Key{Name: fmt.Sprint("n", j)}, New: node(fmt.Sprint("n", j), unheard)}
			changed = append(changed, s.keys(part, c)...)
		}
	}
	if roletest.ListKeys(all) != roletest.ListKeys(want) {
		t.Errorf("all keys are %q, want %q", roletest.ListKeys(all), roletest.ListKeys(want))
	}
	if roletest.ListKeys(changed) != roletest.ListKeys(want) {
		t.Errorf("changes of all nodes wake %q, want %q", roletest.ListKeys(changed), roletest.ListKeys(want))
	}
}

// After a claim there is nothing to do at pods of nodes that are well.
func TestAllLeavesOutPodsOfHealthyNodes(t *testing.T) {
	t.Parallel()
	w := newWorld(1)
	s := &nodeLifecycle{policy: defaults(), partitions: 1, census: &registrar{}}
	w.Put(t, node("a", ready), node("b", unheard), node("c", sick), podOn("pa", "a"), podOn("pb", "b"), podOn("pc", "c"))
	if got := roletest.ListKeys(s.all(w.Partition(0))); got != "a b c ns/pb" {
		t.Errorf("all keys are %q", got)
	}
}

// What is kept of a node is what decisions read: those on the whole object and on
// what the cache keeps are the same.
func TestWhatTheCacheKeepsDecidesTheSame(t *testing.T) {
	t.Parallel()
	n := node("n", sick, says(corev1.NodeDiskPressure, "True"), says(corev1.NodeNetworkUnavailable, "True"), unschedulable,
		in("a"), labelled(labelExclude, "", corev1.LabelOSStable, "linux", "example.com/x", "y"), bears(unreachable, noExec), bears("example.com/x", noSched))
	n.Annotations = map[string]string{"a": "b"}
	n.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
	kept := trimNode(n)
	if kept.Annotations != nil || kept.ManagedFields != nil || kept.Labels["example.com/x"] != "" {
		t.Errorf("it keeps %v", kept.ObjectMeta)
	}
	a, b := planned(n, false, later), planned(kept, false, later)
	if said(a.taints) != said(b.taints) || fmt.Sprint(a.labels) != fmt.Sprint(b.labels) || a.rule != b.rule {
		t.Errorf("planned %v, want %v", b, a)
	}
	if wantedNoExecute(n) != wantedNoExecute(kept) || said(executed(n, later)) != said(executed(kept, later)) {
		t.Error("another NoExecute")
	}
	if x, y := count([]*corev1.Node{n}), count([]*corev1.Node{kept}); fmt.Sprint(x) != fmt.Sprint(y) {
		t.Errorf("counted %v, want %v", y, x)
	}
}
