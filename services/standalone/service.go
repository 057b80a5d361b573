// Package standalone runs all of millrace in one process: NATS embedded, the
// watcher, and every controller, each with the code it has alone. It needs
// nothing but a kubeconfig, and is for trying millrace out and for small
// clusters: it refuses to be shared, or to be one of several.
package standalone

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"

	"github.com/millrace-io/millrace/shared/bus/embedded"
	"github.com/millrace-io/millrace/shared/process"
)

// user is whom the embedded NATS lets in; the password is new at every start.
const user = "standalone"

// With returns the role that runs these together. They drain in this order:
// controllers, watcher, NATS.
func With(watcher process.Role, controllers ...process.Role) func(context.Context, *process.Env) error {
	return func(ctx context.Context, env *process.Env) error {
		var cfg Config
		if err := env.Load(&cfg); err != nil {
			return err
		}
		place, err := occupy(cfg.Dir)
		if err != nil {
			return err
		}
		defer place.leave()
		nats, err := embedded.Start(embedded.Options{
			Dir: place.streams(), Name: user, User: user, Password: rand.Text(), Unreserved: true,
		})
		if err != nil {
			return err
		}
		defer nats.Stop()
		if err := place.tell(nats.URL()); err != nil {
			return err
		}
		if err := hand(nats.URL(), place.storage()); err != nil {
			return err
		}
		env.Log.Info("NATS runs inside", "storage", place.storage(), "folder", cfg.Dir)
		return process.Together(ctx, env, controllers, []process.Role{watcher})
	}
}

// hand gives the roles their NATS in the way that an operator would: they read
// their configuration from the environment, and are not to know where they run.
// The children of this process, of which there are none, would inherit it; the
// environment that the system shows of us is the one we were started with.
func hand(url, storage string) error {
	for name, value := range map[string]string{"MILLRACE_NATS_URL": url, "MILLRACE_NATS_STORAGE": storage} {
		if err := os.Setenv(name, value); err != nil {
			return fmt.Errorf("setting %s: %w", name, err)
		}
	}
	return nil
}
