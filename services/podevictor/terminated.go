package podevictor

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
	sharedrole "github.com/millrace-io/millrace/shared/role"
)

// jobTerminated names the job that counts the pods that have ended, of the whole
// cluster.
const jobTerminated = "terminated"

// terminated is that job.
func (s *podEvictor) terminated() controller.JobDefinition {
	return controller.JobDefinition{
		Name: jobTerminated, Part: partGarbage,
		Inputs: []cache.Input{{Kind: pods, Projection: projection, Decode: decodeFinished}},
	}
}

// decodeFinished keeps only pods that have ended, and of those what orders them.
func decodeFinished(m event.Message) (any, error) {
	pod, err := kube.FromMessage[corev1.Pod](m)
	if err != nil {
		return nil, err
	}
	if !finished(pod) {
		return struct{}{}, nil
	}
	out := trimPod(pod)
	out.Spec, out.Status.Conditions = corev1.PodSpec{}, nil
	return out, nil
}

// countTerminated deletes every so often what is more than may be kept. Two members
// that do it for a moment delete no more than one: each deletion names a pod in its
// state, and both count the same.
func (s *podEvictor) countTerminated(workers int) sharedrole.Work {
	return func(ctx context.Context, j *controller.Job) error {
		return j.Every(ctx, s.policy.GCPeriod, func(ctx context.Context) error { return s.passTerminated(ctx, j, workers) })
	}
}

func (s *podEvictor) passTerminated(ctx context.Context, j *controller.Job, workers int) error {
	var over []*corev1.Pod
	if err := j.Look(ctx, func(r controller.Reader) {
		for _, object := range r.List(pods, "") {
			if pod, ok := object.(*corev1.Pod); ok {
				over = append(over, pod)
			}
		}
	}); err != nil {
		return err
	}
	return s.discardAll(ctx, j, excess(over, s.policy.TerminatedPodGCThreshold), workers)
}

// counting is what deleting needs of the job; *controller.Job is one.
type counting interface {
	sharedrole.Parted
	Now() (time.Time, error)
}

// discardAll deletes pods that have ended, several at a time.
func (s *podEvictor) discardAll(ctx context.Context, j counting, over []*corev1.Pod, workers int) error {
	p := pass{podEvictor: s, j: j, todo: make(chan *corev1.Pod)}
	var working sync.WaitGroup
	for range min(workers, len(over)) {
		working.Go(func() { p.work(ctx) })
	}
	p.hand(ctx, over)
	working.Wait()
	return p.err
}

// pass is one look at all pods that have ended, and what is done about it.
type pass struct {
	*podEvictor
	j    counting
	todo chan *corev1.Pod

	mu  sync.Mutex
	err error // the last one
	old bool  // what was looked at is too old: count again
}

// hand gives the pods to those who work, as long as what was looked at counts.
func (p *pass) hand(ctx context.Context, pods []*corev1.Pod) {
	defer close(p.todo)
	for _, pod := range pods {
		p.mu.Lock()
		old := p.old
		p.mu.Unlock()
		if old {
			return
		}
		select {
		case p.todo <- pod:
		case <-ctx.Done():
			return
		}
	}
}

func (p *pass) work(ctx context.Context) {
	for pod := range p.todo {
		err := p.discard(ctx, pod)
		p.mu.Lock()
		switch {
		case err == nil, errors.Is(err, controller.ErrShadow), classify(err) == controller.Gone, classify(err) == controller.Conflict:
			// the next pass sees it as it is then
		case errors.Is(err, controller.ErrStale), errors.Is(err, controller.ErrNotSynced):
			p.err, p.old = err, true
		case !p.old:
			p.err = err
		}
		p.mu.Unlock()
	}
}

// discard deletes one pod that has ended, on a live look at it.
func (p *pass) discard(ctx context.Context, was *corev1.Pod) error {
	key := event.Key{Namespace: was.Namespace, Name: was.Name}
	part := sharedrole.OfPart(p.j, partGarbage)
	if err := sharedrole.Allowed(ctx, part, key, controller.Evicting); err != nil {
		return err
	}
	object, err := p.api.GetOne(ctx, pods, key)
	if err != nil {
		return err
	}
	pod, ok := object.Raw.(*corev1.Pod)
	if !ok || pod.UID != was.UID || !finished(pod) || asked(pod) {
		return nil // another one, or it waits for its finalizers
	}
	ref := object.Ref(pods)
	track := &sharedrole.Track{
		Partition: part, Key: key, Rule: ruleTerminated, Danger: controller.Evicting,
		Detail: func() string {
			return fmt.Sprintf("%s: %d are kept", reasonsFor[ruleTerminated], p.policy.TerminatedPodGCThreshold)
		},
		Inputs: func() []controller.Ref { return []controller.Ref{controller.Ref(object.Ref(pods))} },
	}
	writer := p.api.Writer(track.Options(p.writes))
	if !ended(pod) {
		now, err := p.j.Now()
		if err != nil {
			return err
		}
		ref, err = writer.PatchStatus(ctx, ref, map[string]any{"status": failed(pod, ruleTerminated, now)})
		if err != nil {
			return track.Err(err)
		}
	}
	err = writer.Delete(ctx, ref, new(int64))
	p.metrics.forced(key.Namespace, ruleTerminated, track.Err(err))
	if err := track.Err(err); err != nil {
		return err
	}
	p.log.Info("pod is collected", "pod", key, "uid", pod.UID, "rule", ruleTerminated)
	return nil
}
