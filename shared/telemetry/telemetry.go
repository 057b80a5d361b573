// Package telemetry is what a process says about itself: logs, metrics, traces,
// and the HTTP server with /livez, /readyz, /metrics and /debug/pprof. It knows
// nothing of what the process does; /livez in particular depends on nothing.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

// Config is what an operator may set.
type Config struct {
	// LogLevel is debug, info, warn or error. Default: ours.
	LogLevel string `split_words:"true" default:"info"`
	// LogFormat is json or text. Default: ours.
	LogFormat string `split_words:"true" default:"json"`
	// Listen is the address of the HTTP server; port 0 takes a free one, which
	// is logged. Empty: no server. Default: ours.
	Listen string `default:":8080"`
	// Pprof serves /debug/pprof, which shows memory: keep it off where the port
	// is not private. Default: ours.
	Pprof bool `default:"false"`
}

// Validate reports the first setting that cannot work.
func (c Config) Validate() error {
	if _, err := c.level(); err != nil {
		return err
	}
	if c.LogFormat != "json" && c.LogFormat != "text" {
		return fmt.Errorf("log format is %q; it must be json or text", c.LogFormat)
	}
	return nil
}

func (c Config) level() (slog.Level, error) {
	switch strings.ToLower(c.LogLevel) {
	case "debug":
		return slog.LevelDebug, nil
	case "info":
		return slog.LevelInfo, nil
	case "warn":
		return slog.LevelWarn, nil
	case "error":
		return slog.LevelError, nil
	default:
		return 0, fmt.Errorf("log level is %q; it must be debug, info, warn or error", c.LogLevel)
	}
}

// Telemetry holds the means of one process.
type Telemetry struct {
	Log      *slog.Logger
	Registry *prometheus.Registry
	Health   *Health
	// Tracer makes spans; no-op until a provider is put here.
	Tracer trace.TracerProvider
	// Propagator carries trace context: W3C traceparent and baggage.
	Propagator propagation.TextMapPropagator
	// Level may be changed while the process runs.
	Level *slog.LevelVar

	cfg    Config
	base   *slog.Logger // names no role
	mu     sync.Mutex
	gather prometheus.Gatherers
}

// New makes the means of a process that plays role. Logs go to out.
func New(cfg Config, role, version string, out io.Writer) (*Telemetry, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	level, _ := cfg.level() // Validate has looked
	t := &Telemetry{
		Registry:   prometheus.NewRegistry(),
		Health:     &Health{},
		Tracer:     noop.NewTracerProvider(),
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
		Level:      &slog.LevelVar{},
		cfg:        cfg,
	}
	t.Level.Set(level)
	t.base = newLogger(out, cfg.LogFormat, t.Level)
	t.Log = t.LogOf(role)
	t.gather = prometheus.Gatherers{t.Registry}
	t.Registry.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		buildInfo(role, version),
		readyGauge(t.Health),
	)
	return t, nil
}

// LogOf returns the log of one role of the process; Log is that of the role that
// the process was started for.
func (t *Telemetry) LogOf(role string) *slog.Logger { return t.base.With("role", role) }

func newLogger(out io.Writer, format string, level slog.Leveler) *slog.Logger {
	opts := &slog.HandlerOptions{Level: level}
	if format == "text" {
		return slog.New(slog.NewTextHandler(out, opts))
	}
	return slog.New(slog.NewJSONHandler(out, opts))
}

// Gather adds a source of metrics to /metrics, such as the legacyregistry of
// libraries that know no other. A family that both have is served once, from
// the registry of the process.
func (t *Telemetry) Gather(g prometheus.Gatherer) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gather = append(t.gather, g)
}

func buildInfo(role, version string) prometheus.Collector {
	labels := prometheus.Labels{"version": version, "role": role, "goversion": "unknown", "revision": "unknown"}
	if info, ok := debug.ReadBuildInfo(); ok {
		labels["goversion"] = info.GoVersion
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				labels["revision"] = s.Value
			}
		}
	}
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Namespace: "millrace", Name: "build_info", ConstLabels: labels,
		Help: "Always 1; the labels say what runs.",
	})
	g.Set(1)
	return g
}

func readyGauge(h *Health) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Namespace: "millrace", Name: "ready",
		Help: "1 when /readyz answers 200; /readyz names what is missing.",
	}, func() float64 {
		if len(h.Missing()) > 0 {
			return 0
		}
		return 1
	})
}
