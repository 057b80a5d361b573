package role

import (
	"context"
	"log/slog"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/lease"
)

// Work is what a job does on the member that holds it, until ctx ends: because
// the job is handed over, or because it is lost, or may be. Before each side
// effect g is asked Valid, as for a partition; two holders at once must be
// harmless. nil: done, until another member takes over; an error: once more,
// after a while.
type Work = func(ctx context.Context, g *lease.Grant) error

// job is a piece of work that is not cut into partitions.
type job struct {
	name string
	work Work
}

// modeOf tells in which mode the role is, and what is closed when that changes.
type modeOf = func() (mode string, changed <-chan struct{})

// Job makes one member of the role at a time do work, for what counts or orders
// the whole cluster: the holder of a lease of its own, and only while the role is
// active. It is to be called before
// Run, which serves it; name is the job's for good.
func (e *Edges) Job(name string, work Work) {
	e.jobs = append(e.jobs, job{name, work})
}

// serveJobs takes part in all jobs until ctx ends; wait returns once each has been
// handed over.
func (e *Edges) serveJobs(ctx context.Context, mode modeOf) (wait func()) {
	if len(e.jobs) == 0 {
		return func() {}
	}
	held := promauto.With(e.env.Registry).NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "job", Name: "held",
		Help: "1 on the member that does the job.",
	}, []string{"job"})
	var serving sync.WaitGroup
	for _, j := range e.jobs {
		holding := held.WithLabelValues(j.name)
		l := e.Group(j.name, []string{"job"})
		serving.Go(func() {
			_ = l.Run(ctx, func(ctx context.Context, g *lease.Grant) error { // it returns nil
				holding.Set(1)
				defer holding.Set(0)
				return j.hold(ctx, g, mode, e.env.Log.With("job", j.name))
			})
		})
	}
	return serving.Wait
}

// hold works until the job is to be handed over or is lost, whenever the role is
// active.
func (j job) hold(ctx context.Context, g *lease.Grant, mode modeOf, log *slog.Logger) error {
	for {
		now, changed := mode()
		if now == controller.ModeActive {
			switch over, err := j.try(ctx, g, mode, log); {
			case err != nil, over:
				return err
			}
			continue
		}
		select {
		case <-changed:
		case <-g.Draining():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// try works while the role is active. over: the job is to be handed over, or is
// lost.
func (j job) try(ctx context.Context, g *lease.Grant, mode modeOf, log *slog.Logger) (over bool, err error) {
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- j.work(working, g) }()
	for !over {
		now, changed := mode()
		if now != controller.ModeActive {
			break
		}
		select {
		case <-changed:
		case <-g.Draining():
			over = true
		case <-ctx.Done():
			over = true
		case err := <-ended:
			if err != nil {
				return false, err
			}
			select { // done; it stays ours, so that nobody does it again
			case <-g.Draining():
			case <-ctx.Done():
			}
			return true, nil
		}
	}
	cancel()
	if err := <-ended; err != nil && ctx.Err() == nil {
		log.Debug("job was ended", "err", err)
	}
	return over, nil
}
