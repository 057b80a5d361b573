package podevictor

import (
	"fmt"
	"os"
	"testing"
	"time"

	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

func TestMain(m *testing.M) {
	code := kubetest.Main(m)
	if code == 0 {
		// Connections to the API server, which has stopped by now, end by themselves.
		if err := goleak.Find(goleak.IgnoreAnyFunction("net/http.(*Transport).dialConn")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.Exit(code)
}

const (
	notReady    = corev1.TaintNodeNotReady
	unreachable = corev1.TaintNodeUnreachable
)

// then is a moment, in whole seconds as the API keeps them.
var then = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// at is a while after then.
func at(d time.Duration) time.Time { return then.Add(d) }

// bad is a NoExecute taint; of a value where there is one.
func bad(key string, added time.Time) corev1.Taint {
	t := metav1.NewTime(added)
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute, TimeAdded: &t}
}

// untimed is a NoExecute taint as kubectl sets it.
func untimed(key string) corev1.Taint {
	return corev1.Taint{Key: key, Effect: corev1.TaintEffectNoExecute}
}

type podOption func(p *corev1.Pod)

// tol tolerates a NoExecute taint for ever, or for so many seconds.
func tol(key string, seconds ...int64) podOption {
	return func(p *corev1.Pod) {
		t := corev1.Toleration{Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute}
		if len(seconds) > 0 {
			t.TolerationSeconds = &seconds[0]
		}
		p.Spec.Tolerations = append(p.Spec.Tolerations, t)
	}
}

// phase is what a kubelet says of a pod.
func phase(is corev1.PodPhase) podOption { return func(p *corev1.Pod) { p.Status.Phase = is } }

// held is a pod that a finalizer keeps.
func finalized(p *corev1.Pod) { p.Finalizers = []string{"example.com/held"} }

// patient is a pod whose tolerations are none of admission's.
func podOf(options ...podOption) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", UID: "uid-of-p", CreationTimestamp: metav1.NewTime(then)},
		Spec:       corev1.PodSpec{NodeName: "n"},
	}
	for _, o := range options {
		o(p)
	}
	return p
}

func nodeOf(name string, taints ...corev1.Taint) *corev1.Node {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "uid-of-n"}}
	n.Spec.Taints = taints
	return n
}

// defaults are the defaults of README.md.
func defaults() policy {
	return policy{
		TaintEvictionMode: "active", GarbageCollectionMode: "active", EvictionMode: "delete",
		TerminatedPodGCThreshold: 12500, OrphanQuarantine: 40 * time.Second, GCPeriod: 20 * time.Second,
	}
}
