package podevictor

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/role/roletest"
)

func podOn(name, node string) *corev1.Pod {
	p := podOf(func(p *corev1.Pod) { p.Name, p.UID, p.Spec.NodeName = name, types.UID("uid-of-"+name), node })
	return p
}

// deaf makes a role without anything that it would write to.
func deaf(t *testing.T) *podEvictor {
	t.Helper()
	api, err := kube.ConnectTo(&rest.Config{Host: "http://nobody.invalid"}, kube.Config{QPS: -1}, "millrace-podevictor", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	s := newPodEvictor(defaults(), api, kube.WriteOptions{}, nil)
	s.sightings = newSightings(roletest.NewFacts(nil))
	s.line = newLine(t.Context(), s.policy, nil, workers)
	return s
}

// What wakes whom: contract 2, A1. A heartbeat wakes nobody; a taint that evicts, the
// readiness that out-of-service goes by, and a node that comes or goes wake the pods
// on it.
func TestWhatAChangeConcerns(t *testing.T) {
	t.Parallel()
	pods := []roletest.Object{podOn("p1", "n"), podOn("p2", "n"), podOn("p3", "other"), podOn("p4", "")}
	with := func(change func(n *corev1.Node), taints ...corev1.Taint) *corev1.Node {
		n := nodeOf("n", taints...)
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "True"}}
		if change != nil {
			change(n)
		}
		return n
	}
	sick := func(n *corev1.Node) { n.Status.Conditions[0].Status = "Unknown" }
	off := corev1.Taint{Key: corev1.TaintNodeOutOfService, Effect: "NoSchedule"}
	tests := map[string]struct {
		before []roletest.Object
		change roletest.Object
		want   string
	}{
		"a node that comes: the pods on it":             {pods, nodeOf("n"), "ns/p1 ns/p2"},
		"a taint that evicts: the pods on it":           {append(pods, nodeOf("n")), nodeOf("n", untimed("a")), "ns/p1 ns/p2"},
		"the same, and it is gone":                      {append(pods, nodeOf("n", untimed("a"))), nodeOf("n"), "ns/p1 ns/p2"},
		"another value":                                 {append(pods, nodeOf("n", untimed("a"))), nodeOf("n", corev1.Taint{Key: "a", Value: "v", Effect: "NoExecute"}), "ns/p1 ns/p2"},
		"another time":                                  {append(pods, nodeOf("n", bad("a", then))), nodeOf("n", bad("a", at(second))), "ns/p1 ns/p2"},
		"another order":                                 {append(pods, nodeOf("n", untimed("a"), untimed("b"))), nodeOf("n", untimed("b"), untimed("a")), "ns/p1 ns/p2"},
		"a taint that evicts nobody: nobody":            {append(pods, nodeOf("n")), nodeOf("n", corev1.Taint{Key: "a", Effect: "NoSchedule"}), ""},
		"out of service with another effect":            {append(pods, with(sick)), with(sick, off), "ns/p1 ns/p2"},
		"not ready, and nothing follows: nobody":        {append(pods, with(nil)), with(sick), ""},
		"not ready, and it is out of service":           {append(pods, with(nil, off)), with(sick, off), "ns/p1 ns/p2"},
		"a heartbeat of a tainted node: nobody":         {append(pods, with(nil, untimed("a"))), with(func(n *corev1.Node) { n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(at(second)) }, untimed("a")), ""},
		"a pod: itself":                                 {append(pods, nodeOf("n")), podOn("p1", "n"), "ns/p1"},
		"a pod that is on no node: itself, for its end": {nil, podOn("p4", ""), "ns/p4"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := roletest.NewWorld(1, partitionInputs(), wideInputs())
			s := deaf(t)
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

// A node that goes wakes the pods that name it, and so does one made anew.
func TestANodeThatGoes(t *testing.T) {
	t.Parallel()
	w := roletest.NewWorld(1, partitionInputs(), wideInputs())
	s := deaf(t)
	part := w.Partition(0)
	again := nodeOf("n")
	again.UID = "another"
	w.Put(t, podOn("p", "n"), nodeOf("n"))
	part.Changes()
	for i, change := range []func(){
		func() { w.Drop(t, nodeOf("n")) }, func() { w.Put(t, nodeOf("n")) }, func() { w.Put(t, again) },
	} {
		change()
		var got []event.Key
		for _, c := range part.Changes() { // another one is the end of the first and a new one
			got = append(got, s.keys(part, c)...)
		}
		if got = slices.Compact(got); roletest.ListKeys(got) != "ns/p" {
			t.Errorf("change %d woke %q", i, roletest.ListKeys(got))
		}
	}
}

// Every pod falls into the hands of one partition, whatever node it is on; and a node
// wakes in each those that are there.
func TestEveryPodHasOnePartition(t *testing.T) {
	t.Parallel()
	const partitions = 4
	w := roletest.NewWorld(partitions, partitionInputs(), wideInputs())
	s := deaf(t)
	var want []event.Key
	for i := range 40 {
		p := podOn(fmt.Sprint("p", i), "n")
		want = append(want, event.Key{Namespace: p.Namespace, Name: p.Name})
		w.Put(t, p)
	}
	for i := range partitions {
		w.Partition(i).Changes()
	}
	w.Put(t, nodeOf("n", untimed("a")))
	var all, woken []event.Key
	for i := range partitions {
		part := w.Partition(i)
		for _, key := range s.all(part) {
			if partition.OfKey(key, partitions) != i {
				t.Errorf("partition %d names %s, which is not its own", i, key)
			}
			all = append(all, key)
		}
		for _, c := range part.Changes() {
			woken = append(woken, s.keys(part, c)...)
		}
	}
	if roletest.ListKeys(all) != roletest.ListKeys(want) || roletest.ListKeys(woken) != roletest.ListKeys(want) {
		t.Errorf("all %q, woken %q, want %q", roletest.ListKeys(all), roletest.ListKeys(woken), roletest.ListKeys(want))
	}
}

// All keys are also those of which something is remembered and that are gone.
func TestAllNamesWhatIsGone(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.node("n", untimed("a"))
	r.pod("p", "n", tol("a", 100))
	r.run("p")
	r.Drop(t, r.livePod("p"))
	if got := roletest.ListKeys(r.role.all(r.p)); got != r.ns+"/p" {
		t.Errorf("all keys are %q", got)
	}
}

// What is kept of a pod is what decisions read: they are the same on the whole object.
func TestTrimPod(t *testing.T) {
	t.Parallel()
	p := podOf(tol("a", 10), phase(corev1.PodFailed), finalized)
	p.Generation, p.DeletionTimestamp, p.DeletionGracePeriodSeconds = 3, new(metaTime(then)), new(int64(0))
	p.Spec.Containers = []corev1.Container{{Name: "c"}}
	p.Status.Reason = "Evicted"
	p.Status.Conditions = []corev1.PodCondition{
		{Type: corev1.PodScheduled, Status: "True", LastTransitionTime: metaTime(at(5 * second))},
		{Type: corev1.PodReady, Status: "True"}, {Type: corev1.DisruptionTarget, Status: "True", Reason: reasonTaint, Message: messageTaint},
	}
	kept := trimPod(p)
	terms := []term{since("a", 0)}
	if judged(judge(p, terms, false)) != judged(judge(kept, terms, false)) || ended(p) != ended(kept) ||
		garbage(p, nil) != garbage(kept, nil) || disruption(kept, reasonTaint, messageTaint, then) != nil || kept.Generation != 3 {
		t.Errorf("kept %+v", kept)
	}
	if len(kept.Spec.Containers) > 0 || len(kept.Status.Conditions) != 2 {
		t.Error("more is kept than is read")
	}
}

// A node is tainted and 500 pods are bound to it, in any order in which that becomes
// known: whoever is looked at last for each change is found to be evicted. 100
// shuffles.
func TestABurstInAnyOrder(t *testing.T) {
	t.Parallel()
	const many, shuffles = 500, 100
	s := deaf(t)
	ctx, cancel := context.WithCancel(t.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() { s.sightings.run(ctx) })
	defer tasks.Wait()
	defer cancel()
	roletest.Eventually(t, "the facts are known", s.sightings.complete)
	for seed := range uint64(shuffles) {
		rng := rand.New(rand.NewPCG(seed, 5))
		w := roletest.NewWorld(1, partitionInputs(), wideInputs())
		part := w.Partition(0)
		rec := s.forPartition(part)
		doomed := map[event.Key]bool{}
		part.OnChange = func(c cache.Change) {
			for _, key := range s.keys(part, c) {
				pod, n, err := rec.look(key)
				if err != nil || pod == nil || n == nil {
					continue
				}
				terms, err := s.sightings.terms(ctx, n, then)
				if err != nil {
					t.Fatal(err)
				}
				doomed[key] = judge(pod, terms, false).evict
			}
		}
		first, tainted := nodeOf("n"), nodeOf("n", bad("a", then))
		first.ResourceVersion, tainted.ResourceVersion = "1", "2"
		news := []roletest.Object{tainted}
		for i := range many {
			news = append(news, podOn(fmt.Sprint("p", i), "n"))
			if i%2 == 0 { // known before it was bound
				w.Put(t, podOn(fmt.Sprint("p", i), ""))
			}
		}
		if seed%2 == 0 {
			w.Put(t, first)
		}
		rng.Shuffle(len(news), func(i, j int) { news[i], news[j] = news[j], news[i] })
		w.Put(t, news...)
		evicted := 0
		for _, is := range doomed {
			if is {
				evicted++
			}
		}
		if evicted != many {
			t.Fatalf("shuffle %d: %d of %d are evicted", seed, evicted, many)
		}
		if err := rec.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
