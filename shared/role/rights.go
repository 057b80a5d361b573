package role

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/millrace-io/millrace/shared/kube"
)

const (
	// rightsPause is the least time between two rounds of questions, and how often
	// is asked while a right is missing. Unit: time. Source: ours; an answer 403 may
	// be a policy's, and come with every write.
	rightsPause = 5 * time.Second
	// rightsIdle is how often is asked while none is missing: who writes nothing,
	// as in shadow mode, is never forbidden anything. Unit: time. Source: ours.
	rightsIdle = time.Minute
)

// rights knows which of the rights that a role needs it does not have. It asks the
// API server at the start, after every answer 403, and now and then.
type rights struct {
	needed    []kube.Right
	lacks     func(ctx context.Context, needed []kube.Right) (missing []kube.Right, err error)
	forbidden <-chan struct{}
	log       *slog.Logger
	told      prometheus.Gauge

	mu      sync.Mutex
	known   bool
	missing []kube.Right // as last answered
	err     error        // of the last round
}

// Needs states what the role must be allowed to do: while the API server says that
// some of it is not allowed the member is not ready, and says what. To read what is
// paused is needed by all and added here. It is to be called before Run, once.
func (e *Edges) Needs(needed []kube.Right) {
	pause := e.API.PauseKey()
	all := append(slices.Clone(needed), kube.Right{
		Verb: "get", Resource: string(kube.ConfigMaps), Namespace: pause.Namespace, Name: pause.Name,
	})
	e.rights = newRights(all, e.API.Lacks, e.API.Forbidden(), e.env.Log, e.env.Registry)
	e.env.Health.Ready("rights", e.rights.ready)
}

func newRights(needed []kube.Right, lacks func(context.Context, []kube.Right) ([]kube.Right, error), forbidden <-chan struct{},
	log *slog.Logger, reg prometheus.Registerer,
) *rights {
	return &rights{
		needed: needed, lacks: lacks, forbidden: forbidden, log: log, err: errors.New("not asked yet"),
		told: promauto.With(reg).NewGauge(prometheus.GaugeOpts{
			Namespace: "millrace", Subsystem: "rights", Name: "missing",
			Help: "Rights (verbs on a resource) that the role needs and the API server denies.",
		}),
	}
}

// run asks until ctx ends.
func (r *rights) run(ctx context.Context) {
	for {
		pause := rightsIdle
		if !r.ask(ctx) {
			pause = rightsPause
		}
		if !r.wait(ctx, pause) {
			return
		}
	}
}

// wait returns when it is time to ask again; false: ctx has ended.
func (r *rights) wait(ctx context.Context, pause time.Duration) bool {
	select {
	case <-time.After(rightsPause):
	case <-ctx.Done():
		return false
	}
	select {
	case <-time.After(pause - rightsPause):
	case <-r.forbidden:
	case <-ctx.Done():
		return false
	}
	return true
}

// ask asks once; good: everything is allowed.
func (r *rights) ask(ctx context.Context) (good bool) {
	missing, err := r.lacks(ctx, r.needed)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.err = err; err != nil {
		return false // what was known before still holds
	}
	if !r.known || !slices.Equal(missing, r.missing) {
		if len(missing) > 0 {
			r.log.Warn("a right is missing", "not_allowed_to", words(missing))
		} else if r.known {
			r.log.Info("no right is missing any more")
		}
	}
	r.known, r.missing = true, missing
	r.told.Set(float64(len(missing)))
	return len(missing) == 0
}

func (r *rights) ready() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case !r.known:
		return fmt.Errorf("not known: %w", r.err)
	case len(r.missing) > 0:
		return fmt.Errorf("not allowed to %s", words(r.missing))
	}
	return nil
}

func words(rights []kube.Right) string {
	out := make([]string, len(rights))
	for i, r := range rights {
		out[i] = r.String()
	}
	return strings.Join(out, ", ")
}
