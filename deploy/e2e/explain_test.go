package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/deploy/fleet"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

// explanation is what `millrace explain -o json` prints, as far as these tests
// read it.
type explanation struct {
	LiveProblem string
	Live        struct{ Version uint64 }
	Bus         struct{ Version uint64 }
	Holders     []struct {
		Role, Host string
		Cached     uint64
		Keys       []struct{ Key, State, WaitsFor string }
	}
	Decisions []struct {
		Object, Key, Verb, Rule, Host, Outcome string
		Base, Version                          uint64
		Cause                                  struct {
			Kind, Key, Op string
			Version       uint64
		}
		Ages struct{ WatchSeconds, BusSeconds, QueueSeconds, WriteSeconds float64 }
	}
}

func explain(t *testing.T, f *fleet.Fleet, args ...string) (x explanation) {
	t.Helper()
	out, err := f.Run(t.Context(), append([]string{"explain", "-o", "json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(out), &x); err != nil {
		t.Fatalf("reading an explanation: %v: %s", err, out)
	}
	return x
}

// A slice's last write is traced back to the change of a pod that asked for it:
// which one, who wrote, and how long each hop took.
func TestExplainNamesTheCauseOfASlicesLastWrite(t *testing.T) {
	ctx, f := begin(t, 3*time.Minute)
	startReady(ctx, t, f, 3)
	owners := followOwners(ctx, t, f, "endpoints")
	w := prepare(ctx, t, f, prefixOf(t), 1, 0)
	client, ns := adminClient(f), w.spaces[0].name
	if _, err := client.CoreV1().Services(ns).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec:       corev1.ServiceSpec{Selector: map[string]string{"app": "web"}, Ports: []corev1.ServicePort{{Port: 80}}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := client.CoreV1().Pods(ns).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-0", Labels: map[string]string{"app": "web"}},
		Spec:       corev1.PodSpec{NodeName: nodeName(0), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	whole(ctx, t, f)
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, PodIP: "10.1.2.3", PodIPs: []corev1.PodIP{{IP: "10.1.2.3"}},
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}},
	}
	if pod, err = client.CoreV1().Pods(ns).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	var slice *discoveryv1.EndpointSlice
	eventually(ctx, t, 30*time.Second, "the slice names the pod", func() (bool, string) {
		list, err := client.DiscoveryV1().EndpointSlices(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		for i := range list.Items {
			if len(list.Items[i].Endpoints) == 1 {
				slice = &list.Items[i]
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d slices", len(list.Items))
	})

	// Holders are waited for only briefly: on a busy machine one more question helps.
	var x explanation
	explained := func(what string, ok func() bool, args ...string) {
		t.Helper()
		eventually(ctx, t, 20*time.Second, what, func() (bool, string) {
			x = explain(t, f, args...)
			return len(x.Holders) == 1 && ok(), fmt.Sprintf("%+v", x)
		})
	}
	explained("the write is on record", func() bool {
		n := len(x.Decisions)
		return n > 0 && fmt.Sprint(x.Decisions[n-1].Version) == slice.ResourceVersion
	}, "eps", ns+"/"+slice.Name)
	last := x.Decisions[len(x.Decisions)-1]
	if last.Cause.Kind != "pods" || last.Cause.Key != ns+"/web-0" || last.Cause.Op != "put" || fmt.Sprint(last.Cause.Version) != pod.ResourceVersion {
		t.Errorf("cause is %+v, want the put of pod %s/web-0 at version %s", last.Cause, ns, pod.ResourceVersion)
	}
	if last.Rule != "slices" || last.Key != "services "+ns+"/web" || last.Outcome != "taken" || last.Object != ns+"/"+slice.Name {
		t.Errorf("the last write is %+v", last)
	}
	holder := owners.host(fmt.Sprint(partition.OfNamespace(event.Key{Namespace: ns, Name: "web"}, partitions)))
	if last.Host != holder || x.Holders[0].Host != holder {
		t.Errorf("written by %s, held by %s; the lease says %s", last.Host, x.Holders[0].Host, holder)
	}
	for hop, s := range map[string]float64{"bus": last.Ages.BusSeconds, "queue": last.Ages.QueueSeconds, "write": last.Ages.WriteSeconds} {
		if s < 0 || s > 10 {
			t.Errorf("the %s hop took %g s", hop, s)
		}
	}
	if x.LiveProblem != "" || fmt.Sprint(x.Live.Version) != slice.ResourceVersion {
		t.Errorf("live is version %d (%s), want %s", x.Live.Version, x.LiveProblem, slice.ResourceVersion)
	}
	explained("bus and cache show the write", func() bool {
		return x.Bus.Version == x.Live.Version && x.Holders[0].Cached == x.Live.Version
	}, "endpointslices.discovery.k8s.io", ns+"/"+slice.Name)
	explained("its service is at rest", func() bool {
		return len(x.Holders[0].Keys) == 1 && x.Holders[0].Keys[0].State == "at_rest"
	}, "service", ns+"/web", "-n", "1")
	if len(x.Decisions) != 1 || fmt.Sprint(x.Decisions[0].Version) != slice.ResourceVersion {
		t.Errorf("the last write of the service is %+v", x.Decisions)
	}
	explained("the pod shows which service it concerns", func() bool {
		return len(x.Holders[0].Keys) == 1 && x.Holders[0].Keys[0].Key == "services "+ns+"/web"
	}, "pod", ns+"/web-0")

	text, err := f.Run(ctx, "explain", "eps", ns+"/"+slice.Name)
	if err != nil {
		t.Fatal(err)
	}
	t.Log("\n" + text)

	t.Log("without a kubeconfig it says so and goes on")
	env := f.Env("admin")
	for i, pair := range env {
		if strings.HasPrefix(pair, "KUBECONFIG=") {
			env[i] = "KUBECONFIG="
		}
	}
	r := f.Exec(ctx, env, "explain", "eps", ns+"/"+slice.Name)
	if r.Code != 0 || !strings.Contains(r.Out, "the API server was not asked") || !strings.Contains(r.Out, "last write") {
		t.Errorf("exit %d: %s %s", r.Code, r.Out, r.Complaints)
	}
}
