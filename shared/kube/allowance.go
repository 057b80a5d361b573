package kube

import (
	"context"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/flowcontrol"
)

// Allowance waits until one more write may be made, at most until ctx ends. What
// it returns is asked at the wire, because an allowance does not last.
type Allowance func(ctx context.Context) (valid func() error, err error)

// sending returns the context to send one write with, after the guard has been
// asked: it has waited for the allowance, bounds the rest by Timeout, and asks
// guard and allowance at the wire. shadow: nothing is to be sent.
func (o WriteOptions) sending(ctx context.Context, shadow bool) (context.Context, context.CancelFunc, bool, error) {
	guard := o.Guard
	if o.Allowance != nil && !shadow {
		var valid func() error
		var err error
		if ctx, valid, err = o.allowed(ctx); err != nil {
			return nil, nil, false, refused(err)
		}
		if shadow, err = o.ask(ctx); err != nil {
			return nil, nil, false, err
		}
		guard = func(ctx context.Context) error {
			if o.Guard != nil {
				if err := o.Guard(ctx); err != nil {
					return err
				}
			}
			return valid() // last: it is the one that runs out by the millisecond
		}
	}
	ctx, cancel := context.WithTimeout(WithGuard(ctx, guard), o.Timeout)
	return ctx, cancel, shadow, nil
}

// allowed waits for the allowance, and before that for the client's own limiter ⚠:
// an allowance would not live through a queue there, and each that dies has cost
// the queue a turn.
func (o WriteOptions) allowed(ctx context.Context) (context.Context, func() error, error) {
	if o.limiter != nil {
		if err := o.limiter.Wait(ctx); err != nil {
			return nil, nil, err
		}
		ctx = context.WithValue(ctx, turnKey{}, true)
	}
	valid, err := o.Allowance(ctx)
	return ctx, valid, err
}

// turnKey marks a request that has waited for the client's limiter already.
type turnKey struct{}

func hasTurn(ctx context.Context) bool { return ctx.Value(turnKey{}) != nil }

// limiterOf is the client's own limiter; nil where there is none.
func limiterOf(client kubernetes.Interface) flowcontrol.RateLimiter {
	if limiter, ok := client.DiscoveryV1().RESTClient().GetRateLimiter().(tracedLimiter); ok {
		return limiter
	}
	return nil
}
