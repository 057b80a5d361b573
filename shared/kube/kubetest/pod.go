package kubetest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/maphash"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// byNode names the index of pods by node.
const byNode = "node"

// podInformer watches pods that have a node, or for a scheduler all of them.
func podInformer(client kubernetes.Interface, all bool) cache.SharedIndexInformer {
	factory := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTransform(dropManagedFields),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			if !all {
				o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
			}
		}))
	return factory.Core().V1().Pods().Informer()
}

// dropManagedFields halves the memory of a large simulation.
func dropManagedFields(obj any) (any, error) {
	if m, ok := obj.(metav1.Object); ok {
		m.SetManagedFields(nil)
	}
	return obj, nil
}

// handlePods turns every event of a pod into work, and forgets what is gone.
func (k *Kubelet) handlePods() error {
	err := k.pods.AddIndexers(cache.Indexers{byNode: func(obj any) ([]string, error) {
		return []string{obj.(*corev1.Pod).Spec.NodeName}, nil
	}})
	if err != nil {
		return fmt.Errorf("indexing pods: %w", err)
	}
	enqueue := func(obj any) {
		if key, err := cache.MetaNamespaceKeyFunc(obj); err == nil { // pods have names
			k.queue.Add(key)
		}
	}
	_, err = k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, obj any) { enqueue(obj) },
		DeleteFunc: func(obj any) {
			if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = gone.Obj
			}
			if pod, ok := obj.(*corev1.Pod); ok {
				k.forget(pod)
			}
		},
	})
	if err != nil {
		return fmt.Errorf("following pods: %w", err)
	}
	return nil
}

func (k *Kubelet) forget(pod *corev1.Pod) {
	if n, ok := k.nodes[pod.Spec.NodeName]; ok {
		n.pods.give(pod.UID)
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	delete(k.ready, pod.UID)
	delete(k.doom, pod.UID)
}

func (k *Kubelet) podsOn(node string) []string {
	keys, err := k.pods.GetIndexer().IndexKeys(byNode, node)
	if err != nil {
		panic(err) // the index is made before the first pod is seen
	}
	return keys
}

// work takes pods off the queue until it is shut down.
func (k *Kubelet) work(ctx context.Context) {
	for {
		key, over := k.queue.Get()
		if over {
			return
		}
		switch again, err := k.syncPod(ctx, key); {
		case err == nil || errors.Is(err, errSilent): // Resume looks at it again
			k.queue.Forget(key)
			if again > 0 {
				k.queue.AddAfter(key, again)
			}
		default:
			k.queue.AddRateLimited(key)
		}
		k.queue.Done(key)
	}
}

// syncPod does for one pod what its kubelet would, and says when to look again;
// 0 means at its next event.
func (k *Kubelet) syncPod(ctx context.Context, key string) (again time.Duration, err error) {
	obj, ok, err := k.pods.GetStore().GetByKey(key)
	if err != nil || !ok {
		return 0, err
	}
	pod := obj.(*corev1.Pod)
	if pod.Spec.NodeName == "" {
		return k.bind(ctx, pod)
	}
	n, ok := k.nodes[pod.Spec.NodeName]
	switch {
	case !ok:
		return 0, nil
	case pod.DeletionTimestamp != nil:
		return k.endPod(ctx, n, pod)
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return 0, nil
	case pod.Status.Phase == corev1.PodRunning && pod.Status.PodIP != "" && isReady(pod) == k.wantReady(pod.UID):
		n.pods.keep(pod.UID, pod.Status.PodIP)
		return 0, nil
	}
	return 0, k.reportPod(ctx, n, pod)
}

// bind gives a pod the next node that is not silent.
func (k *Kubelet) bind(ctx context.Context, pod *corev1.Pod) (again time.Duration, err error) {
	if !k.cfg.Bind || pod.DeletionTimestamp != nil {
		return 0, nil
	}
	for range k.order {
		k.mu.Lock()
		n := k.order[k.turn%len(k.order)]
		k.turn++
		k.mu.Unlock()
		binding := &corev1.Binding{
			ObjectMeta: metav1.ObjectMeta{Name: pod.Name, Namespace: pod.Namespace, UID: pod.UID},
			Target:     corev1.ObjectReference{Kind: "Node", Name: n.name},
		}
		err := n.write(ctx, func(ctx context.Context) error {
			return k.client.CoreV1().Pods(pod.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
		})
		switch {
		case errors.Is(err, errSilent):
			continue
		case err == nil, apierrors.IsConflict(err), apierrors.IsNotFound(err): // bound, bound by another, gone
			return 0, nil
		}
		return 0, fmt.Errorf("binding pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return time.Second, nil // every node is silent
}

// endPod removes a pod that is being deleted, once it has had time to end.
func (k *Kubelet) endPod(ctx context.Context, n *node, pod *corev1.Pod) (again time.Duration, err error) {
	k.mu.Lock()
	due, ok := k.doom[pod.UID]
	if !ok {
		due = time.Now().Add(k.cfg.Termination)
		k.doom[pod.UID] = due
	}
	k.mu.Unlock()
	if wait := time.Until(due); wait > 0 {
		return wait, nil
	}
	now := metav1.NewDeleteOptions(0)
	now.Preconditions = &metav1.Preconditions{UID: &pod.UID}
	err = n.write(ctx, func(ctx context.Context) error {
		return k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, *now)
	})
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsConflict(err) { // a conflict is another pod of that name
		return 0, nil
	}
	return 0, fmt.Errorf("ending pod %s/%s: %w", pod.Namespace, pod.Name, err)
}

// reportPod writes the pod's status as its node sees it.
func (k *Kubelet) reportPod(ctx context.Context, n *node, pod *corev1.Pod) error {
	// One report of a pod at a time, each with the newest wish: without this an
	// older one of a worker could land after SetReady's.
	stripe := &k.stripes[maphash.String(k.seed, string(pod.UID))%uint64(len(k.stripes))]
	stripe.Lock()
	defer stripe.Unlock()

	addr := pod.Status.PodIP
	switch {
	case addr != "":
	case pod.Spec.HostNetwork:
		addr = n.addr
	default:
		var err error
		if addr, err = n.pods.take(pod.UID); err != nil {
			return err
		}
	}
	patch, err := json.Marshal(map[string]any{
		// A precondition: another pod of the same name is not to inherit this.
		"metadata": map[string]any{"uid": pod.UID},
		"status":   podStatus(pod, n.addr, addr, k.wantReady(pod.UID)),
	})
	if err != nil {
		return fmt.Errorf("encoding the status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	err = n.write(ctx, func(ctx context.Context) error {
		_, err := k.client.CoreV1().Pods(pod.Namespace).
			Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
		return err
	})
	if err != nil {
		return fmt.Errorf("writing the status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

func (k *Kubelet) wantReady(uid types.UID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if ready, ok := k.ready[uid]; ok {
		return ready
	}
	return !k.cfg.Unready
}

func isReady(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podStatus is a running pod's. It is merged over what is there: conditions of
// others stay.
func podStatus(pod *corev1.Pod, hostIP, podIP string, ready bool) corev1.PodStatus {
	now := metav1.Now()
	condition := func(kind corev1.PodConditionType, yes bool) corev1.PodCondition {
		c := corev1.PodCondition{Type: kind, Status: status(yes), LastTransitionTime: now}
		for _, old := range pod.Status.Conditions {
			if old.Type == kind && old.Status == c.Status {
				c.LastTransitionTime = old.LastTransitionTime
			}
		}
		return c
	}
	start := pod.Status.StartTime
	if start == nil {
		start = &now
	}
	s := corev1.PodStatus{
		Phase:     corev1.PodRunning,
		StartTime: start,
		HostIP:    hostIP,
		HostIPs:   []corev1.HostIP{{IP: hostIP}},
		PodIP:     podIP,
		PodIPs:    []corev1.PodIP{{IP: podIP}},
		Conditions: []corev1.PodCondition{
			condition(corev1.PodScheduled, true),
			condition(corev1.PodInitialized, true),
			condition(corev1.ContainersReady, ready),
			condition(corev1.PodReady, ready),
		},
	}
	for _, c := range pod.Spec.Containers {
		s.ContainerStatuses = append(s.ContainerStatuses, corev1.ContainerStatus{
			Name:    c.Name,
			Image:   c.Image,
			Ready:   ready,
			Started: new(true),
			State:   corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: *start}},
		})
	}
	return s
}
