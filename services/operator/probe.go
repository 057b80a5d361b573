package operator

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/millrace-io/millrace/shared/kube"
	"github.com/millrace-io/millrace/shared/process"
)

// probeWait bounds a probe. Unit: time. Source: below the 5 s that our compose
// file gives it, so that it says why itself.
const probeWait = 3 * time.Second

// probeConfig is what commands read that ask the API server.
type probeConfig struct {
	Kube kube.Config `envconfig:"KUBE"`
}

// Probe asks the millrace process beside it (readyz, or livez), or the API
// server (kube), whether all is well, for health checks in images that hold
// nothing but this binary. It needs no NATS. The exit code is the answer.
func Probe(args []string, complaints io.Writer, known ...any) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM) //nolint:forbidigo // a command is where contexts begin
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, probeWait)
	defer cancel()
	what := "readyz"
	if len(args) > 0 {
		what = args[0]
	}
	var err error
	switch {
	case len(args) > 1:
		err = fmt.Errorf("%q is not expected", args[1])
	case what == "livez", what == "readyz":
		err = process.Probe(ctx, what, known...)
	case what == "kube":
		err = probeKube(ctx, known)
	default:
		err = fmt.Errorf("%q cannot be probed; it must be readyz, livez or kube", what)
	}
	if err != nil {
		fmt.Fprintf(complaints, "millrace probe: %v\n", err)
		return process.ExitFailure
	}
	return process.ExitOK
}

func probeKube(ctx context.Context, known []any) error {
	var cfg probeConfig
	if err := process.Load(process.Prefix, &cfg, known...); err != nil {
		return err
	}
	api, err := kube.Connect(cfg.Kube, "millrace-probe", nil, nil)
	if err != nil {
		return err
	}
	return api.Ping(ctx)
}
