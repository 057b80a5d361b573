package podevictor

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

const (
	// hostAge is how old a read of a node may be as a pod is deleted that is judged
	// by it. Unit: time. Source: architecture section 10.
	hostAge = 100 * time.Millisecond
	// hostShared is for how long a read of a node is shared: what it leaves is for
	// what comes after it. Unit: time. Source: ours.
	hostShared = hostAge / 2
	// hostSlow is how old it may be where the server takes its time ⚠: reads that
	// take longer than hostAge would never be young enough, and nothing be deleted
	// any more. Unit: time. Source: ours.
	hostSlow = time.Second
)

// errOld: the node was looked at too long ago.
var errOld = errors.New("the look at the node is too old")

// errSpared: the last look has shown that the pod is to stay.
var errSpared = errors.New("the pod is to stay")

// host reads a node straight through; nil if there is none. fresh is asked right
// before a pod is deleted for what was seen.
func (r *reconciler) host(ctx context.Context, name string) (n *corev1.Node, fresh func() error, err error) {
	object, asked, err := r.hosts.Get(ctx, event.Key{Name: name})
	limit := max(hostAge, min(hostSlow, 2*time.Since(asked)))
	fresh = func() error {
		if age := time.Since(asked); age > limit {
			return fmt.Errorf("%w: %s", errOld, age)
		}
		return nil
	}
	switch {
	case errors.Is(err, kube.ErrNotFound):
		return nil, fresh, nil
	case err != nil:
		return nil, fresh, err
	}
	raw, ok := object.Raw.(*corev1.Node)
	if !ok {
		return nil, fresh, fmt.Errorf("reading node %s: it is a %T", name, object.Raw)
	}
	return trimNode(raw), fresh, nil
}

// lastLook makes a write wait for everything that it has to wait for, the client's
// limit and the fleet's, before it looks once more at what it goes by ⚠: what was
// seen before would have grown old in the queue.
func lastLook(of kube.WriteOptions, look kube.Allowance) kube.WriteOptions {
	limit := of.Allowance
	of.Allowance = func(ctx context.Context) (valid func() error, err error) {
		within := func() error { return nil }
		if limit != nil {
			if within, err = limit(ctx); err != nil {
				return nil, err
			}
		}
		fresh, err := look(ctx)
		return func() error { return errors.Join(within(), fresh()) }, err
	}
	return of
}
