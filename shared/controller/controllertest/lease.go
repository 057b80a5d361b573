package controllertest

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
)

// Lease grants partitions by hand. It is a controller.Lease[*Grant].
type Lease struct {
	claims chan *Grant
	epoch  atomic.Uint64
}

// NewLease returns a lease that has granted nothing.
func NewLease() *Lease { return &Lease{claims: make(chan *Grant)} }

// Grant is one partition granted.
type Grant struct {
	index    int
	epoch    uint64
	invalid  atomic.Bool
	draining chan struct{}
	once     sync.Once
	ctx      context.Context
	cancel   context.CancelFunc
	begun    chan struct{} // ctx is set
	done     chan struct{}
}

// Index implements controller.Grant, as all that follow.
func (g *Grant) Index() int { return g.index }

// Epoch returns the epoch.
func (g *Grant) Epoch() uint64 { return g.epoch }

// Member returns the member's id.
func (g *Grant) Member() string { return "m1" }

// Draining is closed by Drain.
func (g *Grant) Draining() <-chan struct{} { return g.draining }

// Valid returns nil unless SetValid or Lose said otherwise.
func (g *Grant) Valid() error {
	if g.invalid.Load() {
		return errors.New("lease may have run out")
	}
	return nil
}

// SetValid makes the grant valid or not, without a word to the holder.
func (g *Grant) SetValid(valid bool) { g.invalid.Store(!valid) }

// Drain asks for the partition back and waits until it is given.
func (g *Grant) Drain() {
	g.once.Do(func() { close(g.draining) })
	<-g.done
}

// Lose takes the partition away and waits until the holder has let go.
func (g *Grant) Lose() {
	g.invalid.Store(true)
	g.cancel()
	<-g.done
}

// Claim grants a partition to whoever runs.
func (l *Lease) Claim(index int) *Grant {
	g := &Grant{index: index, epoch: l.epoch.Add(1), draining: make(chan struct{}), begun: make(chan struct{}), done: make(chan struct{})}
	l.claims <- g
	<-g.begun
	return g
}

func (g *Grant) begin(ctx context.Context) {
	g.ctx, g.cancel = context.WithCancel(ctx)
	close(g.begun)
}

// Idle implements controller.Lease.
func (l *Lease) Idle(ctx context.Context) { <-ctx.Done() }

// Run implements controller.Lease.
func (l *Lease) Run(ctx context.Context, hold func(ctx context.Context, g *Grant) error) error {
	var holds sync.WaitGroup
	var grants []*Grant
	for {
		select {
		case <-ctx.Done():
			for _, g := range grants {
				g.Drain()
			}
			holds.Wait()
			return nil
		case g := <-l.claims:
			grants = append(grants, g)
			g.begin(context.WithoutCancel(ctx))
			holds.Go(func() {
				defer close(g.done)
				defer g.cancel()
				_ = hold(g.ctx, g)
			})
		}
	}
}
