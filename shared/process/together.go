package process

import (
	"context"
	"errors"
	"fmt"
	"sync"
)

// Role is one of several roles that share a process.
type Role struct {
	// Name is the one it has alone; logs, metrics and /readyz name it.
	Name string
	Run  func(ctx context.Context, env *Env) error
}

// errEnded: alone, a role that ends takes its process along; so it does here.
var errEnded = errors.New("it ended by itself")

// Together runs roles in one process, each with the code, the configuration and
// an Env as it has alone, until ctx ends or one of them does. Then it lets them
// drain, stage by stage in the order given: a stage is told to stop once every
// role of the stages before it has ended. It returns what went wrong, nil when
// nothing did.
func Together(ctx context.Context, env *Env, stages ...[]Role) error {
	t := &together{one: make(chan struct{})}
	running := make([]stage, len(stages))
	for i, roles := range stages {
		running[i] = t.start(context.WithoutCancel(ctx), env, roles)
	}
	select {
	case <-ctx.Done():
	case <-t.one:
	}
	for i := range running {
		running[i].cancel()
		running[i].roles.Wait()
	}
	return errors.Join(t.errs...) // nobody writes it any more
}

// together is several roles at work.
type together struct {
	mu   sync.Mutex
	errs []error
	one  chan struct{} // closed when the first role has ended unasked
	once sync.Once
}

// stage is the roles that are told to stop at the same time.
type stage struct {
	cancel context.CancelFunc
	roles  *sync.WaitGroup
}

func (t *together) start(ctx context.Context, env *Env, roles []Role) stage {
	ctx, cancel := context.WithCancel(ctx)
	s := stage{cancel: cancel, roles: &sync.WaitGroup{}}
	for _, r := range roles {
		s.roles.Go(func() {
			err := r.Run(ctx, env.of(r.Name))
			asked := ctx.Err() != nil
			switch {
			case asked && (err == nil || errors.Is(err, context.Canceled)):
				return
			case err == nil:
				err = errEnded
			}
			t.failed(fmt.Errorf("running %s: %w", r.Name, err))
		})
	}
	return s
}

func (t *together) failed(err error) {
	t.mu.Lock()
	t.errs = append(t.errs, err)
	t.mu.Unlock()
	t.once.Do(func() { close(t.one) })
}

// of is what one role of several is given.
func (e *Env) of(role string) *Env {
	own := *e
	own.Role = role
	own.Log = e.Telemetry.LogOf(role)
	own.Registry = labelled(e.Telemetry, role)
	own.Health = e.Health.Within(role)
	return &own
}
