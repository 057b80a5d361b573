package telemetry

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"
)

// Server is the HTTP side of a process.
type Server struct {
	// Addr is where it listens; empty if it does not.
	Addr string

	http *http.Server
	done chan struct{}
}

// Serve listens and answers until Close. Without a listen address it does
// nothing.
func (t *Telemetry) Serve() (*Server, error) {
	if t.cfg.Listen == "" {
		return &Server{}, nil
	}
	listener, err := net.Listen("tcp", t.cfg.Listen) //nolint:noctx // it does not wait
	if err != nil {
		return nil, fmt.Errorf("listening on %s: %w", t.cfg.Listen, err)
	}
	s := &Server{
		Addr: listener.Addr().String(),
		http: &http.Server{Handler: t.Handler(), ReadHeaderTimeout: 5 * time.Second},
		done: make(chan struct{}),
	}
	go func() {
		defer close(s.done)
		if err := s.http.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			t.Log.Error("telemetry server ended", "error", err)
		}
	}()
	t.Log.Info("telemetry serves", "address", s.Addr)
	return s, nil
}

// Close stops the server; requests in progress get until ctx ends.
func (s *Server) Close(ctx context.Context) error {
	if s.http == nil {
		return nil
	}
	if err := s.http.Shutdown(ctx); err != nil {
		_ = s.http.Close()
		return fmt.Errorf("stopping the telemetry server: %w", err)
	}
	<-s.done
	return nil
}

// Handler returns everything the server answers.
func (t *Telemetry) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", report(t.Health.Dead))
	mux.HandleFunc("GET /readyz", report(t.Health.Missing))
	mux.Handle("GET /metrics", promhttp.InstrumentMetricHandler(t.Registry,
		promhttp.HandlerFor(gatherer{t}, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError})))
	if t.cfg.Pprof {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	return mux
}

// report answers 200 "ok", or 503 and one reason a line.
func report(reasons func() []string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.Header().Set("Cache-Control", "no-store")
		missing := reasons()
		if len(missing) == 0 {
			_, _ = io.WriteString(w, "ok\n")
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, reason := range missing {
			_, _ = io.WriteString(w, strings.ReplaceAll(reason, "\n", " ")+"\n")
		}
	}
}

// gatherer gathers from all sources; of a family that several have the first
// wins. prometheus.Gatherers would merge them and complain of duplicates (the
// Go collector is in every registry).
type gatherer struct{ t *Telemetry }

func (g gatherer) Gather() ([]*dto.MetricFamily, error) {
	g.t.mu.Lock()
	sources := append(prometheus.Gatherers(nil), g.t.gather...)
	g.t.mu.Unlock()
	var all []*dto.MetricFamily
	var errs []error
	seen := map[string]bool{}
	for _, source := range sources {
		families, err := source.Gather()
		errs = append(errs, err)
		for _, f := range families {
			if !seen[f.GetName()] {
				seen[f.GetName()] = true
				all = append(all, f)
			}
		}
	}
	return all, errors.Join(errs...)
}
