package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

const (
	deletionByTaint = "DeletionByTaintManager"
	deletionByGC    = "DeletionByPodGC"
	evictionByAPI   = "EvictionByEvictionAPI" // the API server's own word for it

	// staleBy is how old what the role judges by may be: an accepted race.
	// Source: issue 5.
	staleBy = 300 * time.Millisecond
)

// never is a deadline that does not come.
var never = time.Unix(1<<40, 0)

// judge looks at every deletion that it has not looked at and that is not the
// test's. Whatever a test is about, these are wrong: a pod deleted before its
// deadline, or by a taint that had been gone for longer than staleBy; one
// collected as an orphan of a node that was there, or was away for less than the
// quarantine; one deleted for no reason that its conditions or its node tell.
func (l *evictLog) judge(t *testing.T) {
	t.Helper()
	pauseForWatches()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.broken != nil {
		t.Error(l.broken)
	}
	counts, wrong := map[string]int{}, 0
	for _, p := range l.order {
		before, at := p.deletion()
		if at == nil || l.judged[p.uid] || l.test[p.uid] {
			continue
		}
		l.judged[p.uid] = true
		rule, complaint := l.judgeOne(p, before, at)
		if counts[rule]++; complaint == "" {
			continue
		}
		if wrong++; wrong <= 20 {
			t.Errorf("pod %s/%s (%s), deleted at revision %d, %s: %s", p.ns, p.name, p.uid, at.revision, at.at.Format("15:04:05.000"), complaint)
		}
	}
	t.Logf("deletions so far: %v, %d wrong", counts, wrong)
}

// judgeOne says by which rule a pod was deleted, and what is wrong with that.
// l.mu is held.
func (l *evictLog) judgeOne(p *life, before, at *lifeRevision) (rule, complaint string) {
	node := before.pod.Spec.NodeName
	switch reason := disruption(before.pod); {
	case reason == deletionByTaint || reason == evictionByAPI:
		earliest := never
		for _, n := range l.nodeAround(node, at.revision, at.at.Add(-staleBy)) {
			if d := l.deadline(before.pod, n); d.Before(earliest) {
				earliest = d
			}
		}
		switch {
		case earliest.Equal(never):
			return "taint-eviction", "no taint on its node is against it"
		case at.at.Before(earliest.Add(-50 * time.Millisecond)): // two clocks of one machine are one
			return "taint-eviction", fmt.Sprintf("%s before its deadline", earliest.Sub(at.at))
		}
		return "taint-eviction", ""
	case reason == deletionByGC:
		if before.pod.Status.Phase != corev1.PodFailed {
			return "orphaned", "phase " + string(before.pod.Status.Phase)
		}
		return "orphaned", l.orphaned(node, at)
	case terminal(before.pod) && node != "" && l.orphaned(node, at) == "":
		return "orphaned, terminal", ""
	case terminal(before.pod):
		return "terminated", ""
	default:
		return "none", "no reason: " + describePod(before.pod)
	}
}

func terminal(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}

// disruption is the reason of the pod's condition.
func disruption(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return c.Reason
		}
	}
	return ""
}

func describePod(p *corev1.Pod) string {
	return fmt.Sprintf("phase %q, node %q, conditions %v", p.Status.Phase, p.Spec.NodeName, p.Status.Conditions)
}

// orphaned complains unless a node has been away for its quarantine.
func (l *evictLog) orphaned(node string, at *lifeRevision) string {
	since := l.bound[node]
	for _, r := range l.nodes[node] {
		if r.revision > at.revision {
			break
		}
		switch {
		case !r.deleted:
			since = time.Time{}
		case r.at.After(l.bound[node]):
			since = r.at
		default:
			since = l.bound[node]
		}
	}
	if since.IsZero() {
		return "its node is there"
	}
	if away := at.at.Sub(since); away < l.quarantine-staleBy {
		return fmt.Sprintf("its node was away for %s only", away)
	}
	return ""
}

// nodeAround are the revisions that a node had between a time and a revision.
func (l *evictLog) nodeAround(name string, revision uint64, since time.Time) (out []int) {
	all := l.nodes[name]
	for i, r := range all {
		if r.revision > revision || r.deleted {
			continue
		}
		if replaced := i+1 < len(all) && all[i+1].revision < revision && all[i+1].at.Before(since); !replaced {
			out = append(out, i)
		}
	}
	return out
}

// deadline is when a pod is to go for the taints that its node has at its i-th
// revision. Source: architecture section 9, contract A6.
func (l *evictLog) deadline(p *corev1.Pod, i int) time.Time {
	earliest, name := never, p.Spec.NodeName
	for _, taint := range l.nodes[name][i].node.Spec.Taints {
		if taint.Effect != corev1.TaintEffectNoExecute {
			continue
		}
		if d := l.deadlineFor(p, name, i, taint); d.Before(earliest) {
			earliest = d
		}
	}
	return earliest
}

func (l *evictLog) deadlineFor(p *corev1.Pod, node string, i int, taint corev1.Taint) time.Time {
	first := slices.IndexFunc(p.Spec.Tolerations, func(t corev1.Toleration) bool { return tolerates(t, taint) })
	if first < 0 {
		return time.Time{}
	}
	seconds := p.Spec.Tolerations[first].TolerationSeconds
	switch {
	case seconds == nil:
		return never
	case *seconds <= 0:
		return time.Time{}
	}
	start := l.start(node, i, taint)
	for _, other := range []time.Time{p.CreationTimestamp.Time, scheduled(p)} {
		if other.After(start) {
			start = other
		}
	}
	return start.Add(time.Duration(*seconds) * time.Second)
}

func scheduled(p *corev1.Pod) time.Time {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}

// tolerates: one toleration against one taint. Source: contract A6.
func tolerates(t corev1.Toleration, taint corev1.Taint) bool {
	if t.Effect != "" && t.Effect != taint.Effect || t.Key != "" && t.Key != taint.Key {
		return false
	}
	switch t.Operator {
	case corev1.TolerationOpExists:
		return true
	case "", corev1.TolerationOpEqual:
		return t.Value == taint.Value
	}
	return false
}

// start is since when a node has borne a taint without a break; not-ready and
// unreachable are one. Of a taint that tells no time it is when it was seen, and
// the role may have seen it a moment earlier.
func (l *evictLog) start(node string, i int, taint corev1.Taint) time.Time {
	start := never
	if taint.TimeAdded != nil && !ofDead(taint) {
		return taint.TimeAdded.Time
	}
	for ; i >= 0; i-- {
		r := l.nodes[node][i]
		found := false
		for _, was := range r.node.Spec.Taints {
			if r.deleted || !sameTaint(was, taint) {
				continue
			}
			found = true
			at := r.at.Add(-staleBy)
			if was.TimeAdded != nil {
				at = was.TimeAdded.Time
			}
			if at.Before(start) {
				start = at
			}
		}
		if !found {
			break
		}
	}
	return start
}

func sameTaint(a, b corev1.Taint) bool {
	return a.Effect == b.Effect && (a.Key == b.Key && a.Value == b.Value || ofDead(a) && ofDead(b))
}

func ofDead(t corev1.Taint) bool {
	return t.Key == corev1.TaintNodeNotReady || t.Key == corev1.TaintNodeUnreachable
}

// kept complains of pods of a namespace that should have gone long ago.
func (l *evictLog) kept(t *testing.T, ns string, slack time.Duration) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.order {
		if _, at := p.deletion(); p.ns != ns || at != nil {
			continue
		}
		revisions := l.nodes[p.last().pod.Spec.NodeName]
		if len(revisions) == 0 || revisions[len(revisions)-1].deleted {
			continue
		}
		due := l.deadline(p.last().pod, len(revisions)-1)
		if since := revisions[len(revisions)-1].at; since.After(due) {
			due = since
		}
		if over := time.Since(due); over > slack {
			t.Errorf("pod %s/%s is there %s after its deadline", p.ns, p.name, over.Round(time.Millisecond))
		}
	}
}

// lateness is by how much later than its deadline each pod of a namespace was
// deleted that its node's last taints were against.
func (l *evictLog) lateness(ns string) (late []time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range l.order {
		before, at := p.deletion()
		if p.ns != ns || at == nil || disruption(before.pod) != deletionByTaint {
			continue
		}
		if n := l.nodeAround(before.pod.Spec.NodeName, at.revision, at.at); len(n) > 0 {
			late = append(late, at.at.Sub(l.deadline(before.pod, n[len(n)-1])))
		}
	}
	slices.Sort(late)
	return late
}
