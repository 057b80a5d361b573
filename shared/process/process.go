// Package process is the frame of a process: it reads the configuration, starts
// telemetry, runs a role until a signal or the role's end, and lets it drain. It
// never exits; it returns the code to exit with.
package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime/debug"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/telemetry"
)

// Version is set by the linker; else it is that of the module.
var Version = ""

// Prefix is that of all our variables.
const Prefix = "millrace"

// Exit codes.
const (
	ExitOK      = 0
	ExitFailure = 1   // a role ended with an error, or could not drain in time
	ExitConfig  = 2   // bad configuration
	ExitSignal  = 130 // a second signal: at once
)

// Settings are what every process reads, whatever its role.
type Settings struct {
	telemetry.Config
	// DrainTimeout is how long a role may take to finish after SIGTERM. Unit: Go
	// duration. Default: ours, below the 30 s that Kubernetes gives a pod.
	DrainTimeout time.Duration `split_words:"true" default:"25s"`
}

// Validate reports the first setting that cannot work.
func (s Settings) Validate() error {
	if s.DrainTimeout < 0 {
		return fmt.Errorf("drain timeout is %s; it must not be negative", s.DrainTimeout)
	}
	return s.Config.Validate()
}

// Env is what a role is given.
type Env struct {
	Role    string
	Version string
	Log     *slog.Logger
	// Registry adds the label role to every series, so that roles that share a
	// process do not clash and a dashboard need not know whether they do. What a
	// process has once belongs to Telemetry.Registry.
	Registry  prometheus.Registerer
	Health    *telemetry.Health
	Telemetry *telemetry.Telemetry
	// Addr is where telemetry listens; empty if it does not.
	Addr string

	known []any
}

// Load reads a role's configuration as the package's Load does, judged against
// the settings that Main was told of, and prints it once without secrets.
func (e *Env) Load(spec any) error {
	if err := Load(Prefix, spec, e.known...); err != nil {
		return err
	}
	return e.print(spec)
}

func (e *Env) print(spec any) error {
	settings, err := SettingsOf(Prefix, spec)
	if err != nil {
		return err
	}
	attrs := make([]slog.Attr, 0, len(settings))
	for _, s := range settings {
		attrs = append(attrs, slog.String(s.Name, s.Shown()))
	}
	e.Log.LogAttrs(context.TODO(), slog.LevelInfo, "configuration", attrs...) //nolint:forbidigo // a log line belongs to no call
	return nil
}

// Main runs a role and returns the code to exit with. known are pointers to the
// configuration structs of all roles: a variable with our prefix that none of
// them reads is refused. The first SIGTERM or SIGINT ends run's context and
// starts the drain, the second makes Main return at once.
func Main(role string, run func(ctx context.Context, env *Env) error, known ...any) int {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	return serve(role, run, known, signals, os.Stderr)
}

// Check reads a role's configuration before anything is started for it, so that
// a mistake is the only thing the process says. spec is a pointer to the struct
// that the role will Load, known as in Main. It returns the code to exit with;
// ExitOK: go on.
func Check(role string, spec any, known ...any) int {
	return check(role, spec, known, os.Stderr)
}

func check(role string, spec any, known []any, out io.Writer) int {
	var settings Settings
	known = append([]any{&settings, spec}, known...)
	for _, s := range []any{&settings, spec} {
		if err := Load(Prefix, s, known...); err != nil {
			return complain(out, role, err)
		}
	}
	return ExitOK
}

func serve(role string, run func(context.Context, *Env) error, known []any, signals <-chan os.Signal, out io.Writer) int {
	var settings Settings
	known = append([]any{&settings}, known...)
	if err := Load(Prefix, &settings, known...); err != nil {
		return complain(out, role, err)
	}
	t, err := telemetry.New(settings.Config, role, version(), out)
	if err != nil {
		return complain(out, role, configError("%w", err))
	}
	server, err := t.Serve()
	if err != nil {
		return complain(out, role, err)
	}
	defer last(server.Close)                                       // a scrape that takes longer is cut
	untrace, err := t.Trace(context.Background(), role, version()) //nolint:forbidigo // the process's
	if err != nil {
		return complain(out, role, configError("%w", err))
	}
	defer last(untrace) // a collector that does not answer keeps nobody
	env := &Env{
		Role: role, Version: version(), Log: t.Log, Registry: labelled(t, role), Health: t.Health,
		Telemetry: t, Addr: server.Addr, known: known,
	}
	t.Log.Info("starting", "version", env.Version)
	if err := env.print(&settings); err != nil {
		return complain(out, role, err)
	}
	return supervise(env, run, settings.DrainTimeout, signals, out)
}

// last does what is left to do when the process ends, for a moment.
func last(do func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) //nolint:forbidigo // nobody's: the process ends
	defer cancel()
	_ = do(ctx)
}

func labelled(t *telemetry.Telemetry, role string) prometheus.Registerer {
	return prometheus.WrapRegistererWith(prometheus.Labels{"role": role}, t.Registry)
}

// supervise runs a role to its end.
func supervise(env *Env, run func(context.Context, *Env) error, drain time.Duration, signals <-chan os.Signal, out io.Writer) int {
	ctx, cancel := context.WithCancel(context.Background()) //nolint:forbidigo // here contexts begin
	defer cancel()
	var draining atomic.Bool
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, env) }()

	late := time.NewTimer(drain)
	late.Stop()
	defer late.Stop()
	for {
		select {
		case err := <-ended:
			return verdict(env, err, draining.Load(), out)
		case <-late.C:
			env.Log.Error("draining took too long", "limit", drain)
			return ExitFailure
		case s := <-signals:
			if draining.Swap(true) {
				env.Log.Warn("second signal, leaving at once", "signal", s.String())
				return ExitSignal
			}
			env.Log.Info("draining", "signal", s.String(), "limit", drain)
			env.Health.Ready("process", func() error { return errors.New("draining") })
			cancel()
			late.Reset(drain)
		}
	}
}

func verdict(env *Env, err error, draining bool, out io.Writer) int {
	switch {
	case errors.Is(err, ErrConfig):
		return complain(out, env.Role, err)
	case err == nil, draining && errors.Is(err, context.Canceled):
		env.Log.Info("stopped")
		return ExitOK
	default:
		env.Log.Error("role ended", "error", err)
		return ExitFailure
	}
}

// complain says in one line why the process cannot start.
func complain(out io.Writer, role string, err error) int {
	_, _ = fmt.Fprintf(out, "millrace %s: %s\n", role, oneLine(err))
	if errors.Is(err, ErrConfig) {
		return ExitConfig
	}
	return ExitFailure
}

// VersionString returns what this binary calls itself.
func VersionString() string { return version() }

func version() string {
	if Version != "" {
		return Version
	}
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" {
		return info.Main.Version
	}
	return "unknown"
}
