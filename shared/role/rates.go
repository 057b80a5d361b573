package role

import (
	"context"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/rates"
)

// scopeWrite is the bucket of all writes of a role.
const scopeWrite = "write"

// WriteOptions are what all writes of a role share: its field manager, and the
// limit under which all its replicas write. The guard and what is told of a write
// are those of one reconcile: see Track.
func (e *Edges) WriteOptions(cfg controller.Config) kube.WriteOptions {
	o := kube.WriteOptions{Manager: "millrace-" + e.name}
	if rate, burst, limited := cfg.WriteLimit(); limited {
		o.Allowance = allowance(e.rates.Bucket(scopeWrite, rate, burst))
	}
	return o
}

// allowance waits for a token, but not longer than the partition is ours.
func allowance(b *rates.Bucket) kube.Allowance {
	return func(ctx context.Context) (valid func() error, err error) {
		ctx, cancel := controller.UntilDraining(ctx)
		defer cancel()
		token, err := b.Take(ctx)
		if err != nil {
			return nil, err
		}
		return token.Valid, nil
	}
}

// Rates are the token buckets that this role shares with its other replicas, for
// what is limited besides writes.
func (e *Edges) Rates() *rates.Rates { return e.rates }

// serveRates hands out tokens until stop is called: what is in hand when ctx
// ends may need some.
func (e *Edges) serveRates(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	done := make(chan struct{})
	go func() {
		defer close(done)
		e.rates.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}
