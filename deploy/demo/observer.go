package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// observer watches the slices of a namespace as any client would.
type observer struct {
	stop context.CancelFunc

	mu      sync.Mutex
	slices  map[string]*discoveryv1.EndpointSlice
	changed chan struct{} // closed at the next change
	written int           // versions of slices seen
	missed  []string      // what a steady pod was missing from
	steady  map[string]string
}

func observe(ctx context.Context, api kubernetes.Interface, namespace string) (*observer, error) {
	ctx, stop := context.WithCancel(ctx)
	o := &observer{
		stop: stop, slices: make(map[string]*discoveryv1.EndpointSlice),
		changed: make(chan struct{}), steady: make(map[string]string),
	}
	factory := informers.NewSharedInformerFactoryWithOptions(api, 0, informers.WithNamespace(namespace))
	informer := factory.Discovery().V1().EndpointSlices().Informer()
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { o.seen(obj, false) },
		UpdateFunc: func(_, obj any) { o.seen(obj, false) },
		DeleteFunc: func(obj any) { o.seen(obj, true) },
	})
	if err != nil {
		stop()
		return nil, fmt.Errorf("watching slices: %w", err)
	}
	factory.Start(ctx.Done())
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		stop()
		return nil, fmt.Errorf("watching slices: %w", context.Cause(ctx))
	}
	return o, nil
}

func (o *observer) seen(obj any, gone bool) {
	if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = unknown.Obj
	}
	slice, ok := obj.(*discoveryv1.EndpointSlice)
	if !ok {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.written++
	if gone {
		delete(o.slices, slice.Name)
	} else {
		o.slices[slice.Name] = slice
	}
	for pod, service := range o.steady {
		if !o.ready(service)[pod] {
			o.missed = append(o.missed, fmt.Sprintf("%s at version %s", pod, slice.ResourceVersion))
		}
	}
	close(o.changed)
	o.changed = make(chan struct{})
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
	for {
		o.mu.Lock()
		have, changed := o.ready(service), o.changed
		o.mu.Unlock()
		if same(have, want) {
			return time.Now(), nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return time.Time{}, fmt.Errorf("waiting for %v behind service %s, have %v: %w", want, service, have, ctx.Err())
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
