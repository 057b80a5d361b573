package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// The taints of the role, by what a kubelet or the role itself has said of Ready.
var taintOf = map[corev1.ConditionStatus]string{
	corev1.ConditionFalse:   corev1.TaintNodeNotReady,
	corev1.ConditionUnknown: corev1.TaintNodeUnreachable,
}

func ours(taint corev1.Taint) bool {
	return (taint.Key == corev1.TaintNodeNotReady || taint.Key == corev1.TaintNodeUnreachable) &&
		(taint.Effect == corev1.TaintEffectNoSchedule || taint.Effect == corev1.TaintEffectNoExecute)
}

func readyOf(n *corev1.Node) corev1.ConditionStatus {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status
		}
	}
	return ""
}

func unknownNow(n *corev1.Node) bool { return readyOf(n) == corev1.ConditionUnknown }

// healthyNow: it says so, and bears nothing of ours.
func healthyNow(n *corev1.Node) bool {
	return readyOf(n) == corev1.ConditionTrue && !slices.ContainsFunc(n.Spec.Taints, ours)
}

func has(key string, effect corev1.TaintEffect) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return taintIn(n, key, effect) != nil }
}

var (
	unreachableNoSchedule = has(corev1.TaintNodeUnreachable, corev1.TaintEffectNoSchedule)
	unreachableNoExecute  = has(corev1.TaintNodeUnreachable, corev1.TaintEffectNoExecute)
	notReadyNoExecute     = has(corev1.TaintNodeNotReady, corev1.TaintEffectNoExecute)
	notReadyNoSchedule    = has(corev1.TaintNodeNotReady, corev1.TaintEffectNoSchedule)
)

func anyNoExecute(n *corev1.Node) bool { return unreachableNoExecute(n) || notReadyNoExecute(n) }

func not(is func(*corev1.Node) bool) func(*corev1.Node) bool {
	return func(n *corev1.Node) bool { return !is(n) }
}

func taintIn(n *corev1.Node, key string, effect corev1.TaintEffect) *corev1.Taint {
	for i := range n.Spec.Taints {
		if n.Spec.Taints[i].Key == key && n.Spec.Taints[i].Effect == effect {
			return &n.Spec.Taints[i]
		}
	}
	return nil
}

// judge looks at every revision of a node that it has not looked at. Whatever a
// test is about, these are wrong: Unknown while the node beats; a taint that does
// not follow from the condition beside it; two NoExecute taints of ours; a time
// of a taint that changes.
func (l *nodeLog) judge(t *testing.T) {
	t.Helper()
	pauseForWatches()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		t.Error(l.broken)
	}
	for name, revisions := range l.nodes {
		for ; l.judged[name] < len(revisions); l.judged[name]++ {
			i := l.judged[name]
			if r := revisions[i]; r.listed || r.deleted {
				continue
			}
			var before *corev1.Node
			if i > 0 && !revisions[i-1].deleted && revisions[i-1].node.UID == revisions[i].node.UID {
				before = revisions[i-1].node
			}
			for _, wrong := range append(l.silence(revisions[i], before), taints(revisions[i].node, before)...) {
				t.Errorf("node %s at revision %d, %s: %s", name, revisions[i].revision, revisions[i].at.Format("15:04:05.000"), wrong)
			}
		}
	}
}

// pauseForWatches: a Lease that was written before a node comes by another watch,
// and may come later.
func pauseForWatches() { time.Sleep(500 * time.Millisecond) }

// silence complains of a node that has become Unknown and had not been silent for
// its grace: since its last renewal before that revision, without the time in
// which nobody could hear it. l.mu is held.
func (l *nodeLog) silence(r nodeRevision, before *corev1.Node) []string {
	if before == nil || readyOf(before) == corev1.ConditionUnknown || readyOf(r.node) != corev1.ConditionUnknown {
		return nil
	}
	grace := l.grace
	if readyOf(before) == "" {
		grace = l.startup
	}
	last := l.born(r.node.Name, r.node.UID)
	for _, b := range l.beats[r.node.Name] {
		if b.revision < r.revision && b.renewed.After(last) {
			last = b.renewed
		}
	}
	silent := r.at.Sub(last)
	for _, s := range l.away {
		silent -= s.overlap(last, r.at)
	}
	if silent < grace {
		return []string{fmt.Sprintf("Unknown %s after its last beat; its grace is %s", silent.Round(time.Millisecond), grace)}
	}
	return nil
}

// born is when a node was first seen under its UID; zero if it was there before.
func (l *nodeLog) born(name string, uid types.UID) (at time.Time) {
	for _, r := range l.nodes[name] {
		if r.node.UID == uid {
			if r.listed {
				return at
			}
			return r.at
		}
	}
	return at
}

// taints complains of taints of ours that are wrong at this revision.
func taints(n, before *corev1.Node) (wrong []string) {
	if before == nil { // the API server makes nodes with a taint: admission plugin TaintNodesByCondition
		before = &corev1.Node{Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: corev1.TaintNodeNotReady, Effect: corev1.TaintEffectNoSchedule}}}}
	}
	for i := range n.Spec.Taints {
		now := &n.Spec.Taints[i]
		if !ours(*now) {
			continue
		}
		was := taintIn(before, now.Key, now.Effect)
		if was == nil && taintOf[readyOf(n)] != now.Key {
			wrong = append(wrong, fmt.Sprintf("new taint %s:%s beside Ready=%s", now.Key, now.Effect, readyOf(n)))
		}
		if was == nil && now.Effect == corev1.TaintEffectNoExecute {
			was = otherNoExecute(before, now.Key) // swapped
		}
		if was != nil && !was.TimeAdded.Equal(now.TimeAdded) {
			wrong = append(wrong, fmt.Sprintf("the time of %s:%s was %s and is %s", now.Key, now.Effect, was.TimeAdded, now.TimeAdded))
		}
	}
	if unreachableNoExecute(n) && notReadyNoExecute(n) {
		wrong = append(wrong, "both NoExecute taints")
	}
	return wrong
}

func otherNoExecute(n *corev1.Node, key string) *corev1.Taint {
	for _, other := range taintOf {
		if other != key {
			if taint := taintIn(n, other, corev1.TaintEffectNoExecute); taint != nil {
				return taint
			}
		}
	}
	return nil
}
