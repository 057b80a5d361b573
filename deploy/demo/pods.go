package main

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube/kubetest"
)

const (
	evictor = "podevictor"

	// tolerated is for how long the agents tolerate a node that is unreachable, and
	// maintained for how long one pod tolerates maintenance. Unit: time. Source: ours;
	// by default it is five minutes.
	tolerated  = 6 * time.Second
	maintained = 4 * time.Second

	// quarantine is how long a node must be gone before its pods are. Unit: time.
	// Source: ours; 40 s by default.
	quarantine = 3 * time.Second

	// patient is the pod that tolerates all of it for longer than it lasts, and
	// visitor one that tolerates nothing.
	patient, visitor = "patient", "visitor"

	// maintenance is what an operator taints a node with.
	maintenance = "example.com/maintenance"

	// spare is a node that comes and goes, and stray what is left on it.
	spare, stray = "spare", "stray"
)

// evict: the pod that tolerates the silence of its node for a while is deleted when
// the while is over, whoever counts it.
func (s *story) evict(ctx context.Context) error {
	pod := agentOn(s.victim)
	due := s.tainted().Add(tolerated)
	by := s.evictorOf(ctx, pod)
	s.line.say("%s tolerates that for %s, until %s from now; %s for 5 minutes", pod, tolerated, millis(time.Until(due)), patient)
	known, err := s.pending(ctx, pod)
	if err != nil {
		return err
	}
	s.line.fact("millrace evictions knows the deadline", known.Due.Equal(due))
	if err := s.list(ctx); err != nil {
		return err
	}
	limit := soon
	if !s.alone {
		if by, err = s.takeOver(ctx, evictor, by, due.Add(-early)); err != nil {
			return err
		}
		limit = takeover
	}
	gone, err := s.untilPod(ctx, "deleted", pod, deleted)
	if err != nil {
		return err
	}
	s.line.fact(pod+" was not deleted before its deadline", !gone.Before(due))
	s.line.check(pod+" is deleted, beyond its deadline", by, gone.Sub(due), limit)
	s.line.fact("it says why: condition DisruptionTarget, DeletionByTaintManager", s.disrupted(pod, "DeletionByTaintManager"))
	s.line.fact(patient+" stays", s.lives(patient))
	return nil
}

// maintain: an operator empties a node by hand and thinks better of it.
func (s *story) maintain(ctx context.Context) error {
	if err := s.createPod(ctx, visitor, s.victim, nil); err != nil {
		return err
	}
	if _, err := s.untilPod(ctx, "ready", visitor, func(p *corev1.Pod) bool { return p != nil && podReady(p) }); err != nil {
		return err
	}
	by := s.evictorOf(ctx, visitor)
	s.line.say("somebody taints %s %s:NoExecute; %s tolerates that for %s, %s not at all", s.victim, maintenance, patient, maintained, visitor)
	began := time.Now()
	if err := s.taint(ctx, corev1.Taint{Key: maintenance, Effect: corev1.TaintEffectNoExecute}); err != nil {
		return err
	}
	gone, err := s.untilPod(ctx, "deleted", visitor, deleted)
	if err != nil {
		return err
	}
	s.line.check(visitor+" is deleted at once", by, gone.Sub(began), soon)
	if err := s.pause(ctx, began.Add(maintained/2)); err != nil {
		return err
	}
	doomed, err := s.pending(ctx, patient)
	if err != nil {
		return err
	}
	s.line.fact(fmt.Sprintf("millrace evictions: %s waits for %s", patient, doomed.Waiting), doomed.Waiting == "time")
	s.line.say("the taint is taken away again, %s before %s would have to go", maintained/2, patient)
	if err := s.taint(ctx); err != nil {
		return err
	}
	if err := s.pause(ctx, began.Add(maintained+soon)); err != nil {
		return err
	}
	s.line.fact(fmt.Sprintf("%s lives, %s after that", patient, soon), s.lives(patient))
	if doomed, err = s.pending(ctx, patient); err != nil {
		return err
	}
	s.line.fact("millrace evictions does not know it any more", doomed == eviction{})
	told, err := s.told(ctx, patient, "Cancelling deletion")
	if err != nil {
		return err
	}
	s.line.fact("an event says that its deletion was cancelled", told)
	return nil
}

// orphan: a node is deleted with a pod on it that nobody will ever end.
func (s *story) orphan(ctx context.Context) error {
	kubelet, err := kubetest.LaunchKubelet(ctx, s.f.Cluster.Admin(), kubetest.KubeletConfig{
		Nodes: []string{spare}, FirstNode: len(s.nodes), Zones: []string{"a"}, Beat: beat,
	})
	if err != nil {
		return err
	}
	defer kubelet.Stop()
	if err := s.createPod(ctx, stray, spare, nil); err != nil {
		return err
	}
	if _, err := s.untilPod(ctx, "ready", stray, func(p *corev1.Pod) bool { return p != nil && podReady(p) }); err != nil {
		return err
	}
	by := s.evictorOf(ctx, stray)
	s.line.say("node %s is switched off and deleted, with %s on it; it must be gone for %s", spare, stray, quarantine)
	kubelet.Stop()
	began := time.Now()
	if err := s.api.CoreV1().Nodes().Delete(ctx, spare, metav1.DeleteOptions{}); err != nil {
		return fmt.Errorf("deleting node %s: %w", spare, err)
	}
	failed, err := s.untilPod(ctx, "failed", stray, func(p *corev1.Pod) bool {
		return p == nil || p.Status.Phase == corev1.PodFailed
	})
	if err != nil {
		return err
	}
	s.line.fact("it said why: phase Failed, condition DisruptionTarget, DeletionByPodGC", s.disrupted(stray, "DeletionByPodGC"))
	gone, err := s.untilPod(ctx, "gone", stray, func(p *corev1.Pod) bool { return p == nil })
	if err != nil {
		return err
	}
	s.line.fact(stray+" was left alone until then", failed.Sub(began) >= quarantine)
	s.line.check(stray+" is gone, beyond the quarantine", by, gone.Sub(began)-quarantine, soon)
	return nil
}

// createPod makes a pod on a node.
func (s *story) createPod(ctx context.Context, name, node string, labels map[string]string, tolerations ...corev1.Toleration) error {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: node, Tolerations: tolerations, Containers: []corev1.Container{{Name: "main", Image: "example"}},
		},
	}
	if _, err := s.api.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("creating pod %s: %w", name, err)
	}
	return nil
}

// tolerating is a toleration for some time of what a taint says that must be left.
func tolerating(key string, d time.Duration) corev1.Toleration {
	return corev1.Toleration{
		Key: key, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(d / time.Second)),
	}
}

// taint patches the taints of the node that was silent.
func (s *story) taint(ctx context.Context, taints ...corev1.Taint) error {
	body := "null"
	if len(taints) > 0 {
		body = fmt.Sprintf(`[{"key":%q,"effect":%q}]`, taints[0].Key, taints[0].Effect) // without a time, as kubectl does
	}
	_, err := s.api.CoreV1().Nodes().Patch(ctx, s.victim, types.MergePatchType, []byte(`{"spec":{"taints":`+body+`}}`), metav1.PatchOptions{})
	if err != nil {
		return fmt.Errorf("tainting node %s: %w", s.victim, err)
	}
	return nil
}

// tainted returns since when the silent node has been unreachable, as it says itself.
func (s *story) tainted() time.Time {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	for _, t := range s.seen.nodes[s.victim].Spec.Taints {
		if t.Effect == corev1.TaintEffectNoExecute && t.TimeAdded != nil {
			return t.TimeAdded.Time
		}
	}
	return time.Time{}
}

// evictorOf returns the replica that holds a pod.
func (s *story) evictorOf(ctx context.Context, pod string) string {
	return s.holding(ctx, evictor, event.Key{Namespace: namespace, Name: pod})
}

// eviction is what `millrace evictions` says of a pod; empty: nothing.
type eviction struct {
	Key, Waiting string
	Due          time.Time
}

func (s *story) pending(ctx context.Context, pod string) (eviction, error) {
	text, err := s.f.Run(ctx, "evictions", "-o", "json")
	if err != nil {
		return eviction{}, err
	}
	var all struct{ Items []eviction }
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		return eviction{}, fmt.Errorf("reading evictions: %w", err)
	}
	for _, e := range all.Items {
		if e.Key == namespace+"/"+pod {
			return e, nil
		}
	}
	return eviction{}, nil
}

// list prints what people are shown.
func (s *story) list(ctx context.Context) error {
	text, err := s.f.Run(ctx, "evictions")
	if err != nil {
		return err
	}
	for line := range strings.Lines(text) {
		s.line.say("  %s", strings.TrimRight(line, "\n"))
	}
	return nil
}

// untilPod waits for a pod to be so; nil is one that is gone.
func (s *story) untilPod(ctx context.Context, what, name string, so func(*corev1.Pod) bool) (time.Time, error) {
	at, err := s.seen.until(ctx, func() bool { return so(s.seen.pods[name]) })
	if err != nil {
		return at, fmt.Errorf("waiting for pod %s to be %s: %w", name, what, err)
	}
	return at, nil
}

// deleted: it is gone, or asked to go.
func deleted(p *corev1.Pod) bool { return p == nil || p.DeletionTimestamp != nil }

func (s *story) lives(name string) bool {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	return !deleted(s.seen.pods[name])
}

// disrupted reports whether a pod said at its end that it had to go, and why.
func (s *story) disrupted(name, reason string) bool {
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	p := s.seen.last[name]
	return p != nil && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue && c.Reason == reason
	})
}

// told reports whether there is an event about a pod.
func (s *story) told(ctx context.Context, pod, text string) (bool, error) {
	events, err := s.api.CoreV1().Events(namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + pod})
	if err != nil {
		return false, fmt.Errorf("reading events: %w", err)
	}
	return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, text) }), nil
}

// pause lets time pass.
func (s *story) pause(ctx context.Context, until time.Time) error {
	select {
	case <-time.After(time.Until(until)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
