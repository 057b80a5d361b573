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

// Work is what a job does on the member that holds it, until ctx ends: because the
// job is handed over, or is lost, or may be, or because a mode of the role has
// changed; then it is called anew unless the job is off. j is what it asks before
// each side effect, as a Reconciler asks its Partition, and what a Track takes; two
// holders at once must be harmless all the same. nil: done, until another member
// takes over or a mode changes; an error: once more, after a while. What repeats
// itself is j.Every.
type Work = func(ctx context.Context, j *controller.Job) error

// job is a piece of work that is not cut into partitions.
type job struct {
	controller.JobDefinition
	work Work
}

// Job makes one member of the role at a time do work, for what counts or orders the
// whole cluster: the holder of a lease of its own, and only while what holds for the
// job is active, or shadow, in which Guard lets nothing be written. It is to be called
// before Run, which serves it.
func (e *Edges) Job(def controller.JobDefinition, work Work) {
	e.jobs = append(e.jobs, job{def, work})
}

// serveJobs takes part in all jobs until ctx ends; wait returns once each has been
// handed over.
func (e *Edges) serveJobs(ctx context.Context, c *controller.Controller) (wait func()) {
	if len(e.jobs) == 0 {
		return func() {}
	}
	held := promauto.With(e.env.Registry).NewGaugeVec(prometheus.GaugeOpts{
		Namespace: "millrace", Subsystem: "job", Name: "held",
		Help: "1 on the member that does the job.",
	}, []string{"job"})
	var serving sync.WaitGroup
	for _, j := range e.jobs {
		holding := held.WithLabelValues(j.Name)
		l := e.Group(j.Name, []string{"job"})
		serving.Go(func() {
			_ = l.Run(ctx, func(ctx context.Context, g *lease.Grant) error { // it returns nil
				holding.Set(1)
				defer holding.Set(0)
				h := holder{job: j, c: c, grant: g, log: e.env.Log.With("job", j.Name)}
				return h.hold(ctx)
			})
		})
	}
	return serving.Wait
}

// holder is one member's turn at a job.
type holder struct {
	job
	c     *controller.Controller
	grant *lease.Grant
	log   *slog.Logger
	held  *controller.Job
}

// hold works until the job is to be handed over or is lost, whenever it is not off.
func (h *holder) hold(ctx context.Context) error {
	h.held = h.c.NewJob(ctx, h.JobDefinition, h.grant)
	defer h.held.Close()
	unfollow := func() {}
	defer func() { unfollow() }()
	for following := false; ; {
		changed := h.c.ModesChanged()
		if mode := h.held.Mode(h.Part); mode == controller.ModeActive || mode == controller.ModeShadow {
			if !following {
				following, unfollow = true, h.follow(ctx)
			}
			if over, err := h.try(ctx, changed); err != nil || over {
				return err
			}
			continue
		}
		if following { // off: nothing is read
			unfollow()
			following, unfollow = false, func() {}
		}
		select {
		case <-changed:
		case <-h.grant.Draining():
			return nil
		case <-ctx.Done():
			return nil
		}
	}
}

// follow keeps the job's inputs filled until stop is called.
func (h *holder) follow(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		h.held.Follow(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// try works until a mode changes. over: the job is to be handed over, or is lost.
func (h *holder) try(ctx context.Context, changed <-chan struct{}) (over bool, err error) {
	h.held.Begin()
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	ended := make(chan error, 1)
	go func() { ended <- h.work(working, h.held) }()
	select {
	case <-changed:
	case <-h.grant.Draining():
		over = true
	case <-ctx.Done():
		over = true
	case err := <-ended:
		if err != nil {
			return false, err
		}
		select { // done; it stays ours, so that nobody does it again
		case <-changed:
			return false, nil
		case <-h.grant.Draining():
		case <-ctx.Done():
		}
		return true, nil
	}
	cancel()
	if err := <-ended; err != nil && ctx.Err() == nil {
		h.log.Debug("job was ended", "err", err)
	}
	return over, nil
}
