package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// observer watches the slices and pods of a namespace, and all nodes, as any client
// would.
type observer struct {
	stop context.CancelFunc

	mu      sync.Mutex
	slices  map[string]*discoveryv1.EndpointSlice
	pods    map[string]*corev1.Pod
	last    map[string]*corev1.Pod // those that are gone too
	nodes   map[string]*corev1.Node
	changed chan struct{} // closed at the next change
	written int           // versions of slices seen
	missed  []string      // what a steady pod was missing from
	steady  map[string]string
	harmed  []string // versions at which a healthy node was told to be another
	healthy map[string]bool
}

func observe(ctx context.Context, api kubernetes.Interface, namespace string) (*observer, error) {
	ctx, stop := context.WithCancel(ctx)
	o := &observer{
		stop: stop, slices: make(map[string]*discoveryv1.EndpointSlice),
		pods: make(map[string]*corev1.Pod), last: make(map[string]*corev1.Pod), nodes: make(map[string]*corev1.Node),
		changed: make(chan struct{}), steady: make(map[string]string), healthy: make(map[string]bool),
	}
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(namespace))
	watched := []cache.SharedIndexInformer{
		factory.Discovery().V1().EndpointSlices().Informer(),
		factory.Core().V1().Pods().Informer(),
		factory.Core().V1().Nodes().Informer(),
	}
	synced := make([]cache.InformerSynced, len(watched))
	for i, informer := range watched {
		synced[i] = informer.HasSynced
		_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { o.seen(obj, false) },
			UpdateFunc: func(_, obj any) { o.seen(obj, false) },
			DeleteFunc: func(obj any) { o.seen(obj, true) },
		})
		if err != nil {
			stop()
			return nil, fmt.Errorf("watching: %w", err)
		}
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		stop()
		return nil, fmt.Errorf("watching: %w", context.Cause(ctx))
	}
	return o, nil
}

func (o *observer) seen(obj any, gone bool) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	switch obj := obj.(type) {
	case *discoveryv1.EndpointSlice:
		put(o.slices, obj.Name, obj, gone)
		o.seenSlice(obj)
	case *corev1.Pod:
		put(o.pods, obj.Name, obj, gone)
		o.last[obj.Name] = obj
	case *corev1.Node:
		put(o.nodes, obj.Name, obj, gone)
		if o.healthy[obj.Name] && (gone || !isReady(obj) || len(obj.Spec.Taints) > 0) {
			o.harmed = append(o.harmed, fmt.Sprintf("%s at version %s", obj.Name, obj.ResourceVersion))
		}
	}
	close(o.changed)
	o.changed = make(chan struct{})
}

func put[T any](all map[string]T, name string, obj T, gone bool) {
	if gone {
		delete(all, name)
	} else {
		all[name] = obj
	}
}

// seenSlice looks for steady pods at one more version. o.mu is held.
func (o *observer) seenSlice(slice *discoveryv1.EndpointSlice) {
	o.written++
	for pod, service := range o.steady {
		if !o.ready(service)[pod] {
			o.missed = append(o.missed, fmt.Sprintf("%s at version %s", pod, slice.ResourceVersion))
		}
	}
}

// ready returns the pods that the service's slices call ready. o.mu is held.
func (o *observer) ready(service string) map[string]bool {
	pods := make(map[string]bool)
	for _, s := range o.slices {
		if s.Labels[discoveryv1.LabelServiceName] != service {
			continue
		}
		for _, e := range s.Endpoints {
			if e.TargetRef != nil && e.Conditions.Ready != nil && *e.Conditions.Ready {
				pods[e.TargetRef.Name] = true
			}
		}
	}
	return pods
}

// count returns how many versions of slices have been seen.
func (o *observer) count() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.written
}

// expectSteady notes a pod that from now on must be ready at every version.
func (o *observer) expectSteady(pod, service string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.steady[pod] = service
}

// missing returns the versions at which a steady pod was not there.
func (o *observer) missing() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.missed
}

// await waits until the service's ready pods are exactly those wanted and
// returns when that was seen.
func (o *observer) await(ctx context.Context, service string, want ...string) (time.Time, error) {
	at, err := o.until(ctx, func() bool { return same(o.ready(service), want) })
	if err != nil {
		o.mu.Lock()
		defer o.mu.Unlock()
		return at, fmt.Errorf("waiting for %v behind service %s, have %v: %w", want, service, o.ready(service), err)
	}
	return at, nil
}

// until waits for something to be so, and returns when that was seen. so is called
// with o.mu held.
func (o *observer) until(ctx context.Context, so func() bool) (time.Time, error) {
	for {
		o.mu.Lock()
		held, changed := so(), o.changed
		o.mu.Unlock()
		if held {
			return time.Now(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, ctx.Err()
		}
	}
}

func same(have map[string]bool, want []string) bool {
	if len(have) != len(want) {
		return false
	}
	for _, pod := range want {
		if !have[pod] {
			return false
		}
	}
	return true
}
