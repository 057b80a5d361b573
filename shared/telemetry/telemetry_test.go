package telemetry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var valid = Config{LogLevel: "info", LogFormat: "json", Listen: "127.0.0.1:0"}

func newTelemetry(t *testing.T, cfg Config, out io.Writer) *Telemetry {
	t.Helper()
	tel, err := New(cfg, "test", "v1.2.3", out)
	if err != nil {
		t.Fatal(err)
	}
	return tel
}

func get(t *testing.T, h http.Handler, path string) (int, string) {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestReadyz(t *testing.T) {
	tests := map[string]struct {
		checks map[string]error
		code   int
		body   string
	}{
		"nothing named yet is starting":    {nil, 503, "process: starting\n"},
		"everything there":                 {map[string]error{"bus": nil, "api": nil}, 200, "ok\n"},
		"what is missing is named, sorted": {map[string]error{"watch nodes": errors.New("no list yet"), "bus": errors.New("not\nconnected"), "api": nil}, 503, "bus: not connected\nwatch nodes: no list yet\n"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			tel := newTelemetry(t, valid, io.Discard)
			for name, err := range tt.checks {
				tel.Health.Ready(name, func() error { return err })
			}
			code, body := get(t, tel.Handler(), "/readyz")
			if code != tt.code || body != tt.body {
				t.Errorf("%d %q, want %d %q", code, body, tt.code, tt.body)
			}
			if code, _ := get(t, tel.Handler(), "/livez"); code != 200 {
				t.Errorf("/livez says %d; it must not depend on readiness", code)
			}
		})
	}
}

func TestHealthRemoves(t *testing.T) {
	var h Health
	h.Ready("a", func() error { return nil })
	remove := h.Ready("b", func() error { return errors.New("old") })
	h.Ready("b", func() error { return errors.New("new") })
	remove() // the old one's; it must not take the new one away
	if got := h.Missing(); len(got) != 1 || got[0] != "b: new" {
		t.Errorf("Missing() = %q", got)
	}
}

// Contract: issue 3, part 8: one /readyz that names the role of what is missing.
func TestPartsAreNamed(t *testing.T) {
	tel := newTelemetry(t, valid, io.Discard)
	watcher, endpoints := tel.Health.Within("watcher"), tel.Health.Within("endpoints")
	missing := errors.New("NATS is away")
	watcher.Ready("bus", func() error { return missing })
	if code, body := get(t, tel.Handler(), "/readyz"); code != 503 || body != "endpoints: process: starting\nwatcher: bus: NATS is away\n" {
		t.Errorf("%d %q", code, body)
	}
	if got := watcher.Missing(); len(got) != 1 || got[0] != "bus: NATS is away" {
		t.Errorf("the part itself says %q", got)
	}
	missing = nil
	endpoints.Ready("bus", func() error { return nil })
	if code, body := get(t, tel.Handler(), "/readyz"); code != 200 || body != "ok\n" {
		t.Errorf("%d %q", code, body)
	}
	tel.Health.Within("endpoints").Live("loop", func() error { return errors.New("stuck") })
	if code, body := get(t, tel.Handler(), "/livez"); code != 503 || body != "endpoints: loop: stuck\n" {
		t.Errorf("%d %q", code, body)
	}
}

func TestLivez(t *testing.T) {
	tel := newTelemetry(t, valid, io.Discard)
	remove := tel.Health.Live("loop", func() error { return errors.New("stuck") })
	if code, body := get(t, tel.Handler(), "/livez"); code != 503 || body != "loop: stuck\n" {
		t.Errorf("%d %q", code, body)
	}
	remove()
	if code, _ := get(t, tel.Handler(), "/livez"); code != 200 {
		t.Errorf("%d after it was removed", code)
	}
}

func TestMetrics(t *testing.T) {
	tel := newTelemetry(t, valid, io.Discard)
	extra := prometheus.NewRegistry()
	extra.MustRegister(collectors.NewGoCollector())                                                     // as legacyregistry does
	foreign := prometheus.NewCounter(prometheus.CounterOpts{Name: "endpoint_slice_controller_changes"}) //nolint:promlinter // upstream's name
	extra.MustRegister(foreign)
	foreign.Inc()
	tel.Gather(extra)
	code, body := get(t, tel.Handler(), "/metrics")
	if code != 200 {
		t.Fatalf("%d %s", code, body)
	}
	for _, want := range []string{
		`millrace_build_info{goversion="go`, `role="test"`, `version="v1.2.3"`, "millrace_ready 0",
		"go_goroutines ", "process_resident_memory_bytes ", "endpoint_slice_controller_changes 1", "promhttp_metric_handler_requests_total",
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %q in /metrics", want)
		}
	}
	if n := strings.Count(body, "\ngo_goroutines "); n != 1 {
		t.Errorf("go_goroutines appears %d times", n)
	}
}

func TestPprofOnlyWhenEnabled(t *testing.T) {
	if code, _ := get(t, newTelemetry(t, valid, io.Discard).Handler(), "/debug/pprof/"); code != 404 {
		t.Errorf("%d by default", code)
	}
	cfg := valid
	cfg.Pprof = true
	if code, _ := get(t, newTelemetry(t, cfg, io.Discard).Handler(), "/debug/pprof/"); code != 200 {
		t.Errorf("%d when enabled", code)
	}
}

func TestServe(t *testing.T) {
	var out bytes.Buffer
	tel := newTelemetry(t, valid, &out)
	s, err := tel.Serve()
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.Get("http://" + s.Addr + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	if err := s.Close(context.Background()); err != nil {
		t.Error(err)
	}
	if !strings.Contains(out.String(), s.Addr) {
		t.Errorf("the address was not logged: %s", out.String())
	}
	taken := valid
	taken.Listen = "256.256.256.256:1"
	if _, err := newTelemetry(t, taken, io.Discard).Serve(); err == nil {
		t.Error("an impossible address was accepted")
	}
}

func TestLog(t *testing.T) {
	var out bytes.Buffer
	tel := newTelemetry(t, valid, &out)
	tel.Log.Debug("quiet")
	tel.Level.Set(-4)
	tel.Log.Debug("heard", "n", 1)
	var line map[string]any
	if err := json.Unmarshal(out.Bytes(), &line); err != nil {
		t.Fatalf("%v in %q", err, out.String())
	}
	if line["msg"] != "heard" || line["role"] != "test" || line["n"] != 1.0 {
		t.Errorf("%v", line)
	}
	text := valid
	text.LogFormat = "text"
	out.Reset()
	newTelemetry(t, text, &out).Log.Info("hello")
	if !strings.Contains(out.String(), "msg=hello role=test") {
		t.Errorf("%q", out.String())
	}
	for _, bad := range []Config{{LogLevel: "loud", LogFormat: "json"}, {LogLevel: "info", LogFormat: "xml"}} {
		if _, err := New(bad, "test", "", io.Discard); err == nil {
			t.Errorf("%+v was accepted", bad)
		}
	}
}

func TestPropagator(t *testing.T) {
	tel := newTelemetry(t, valid, io.Discard)
	in := propagation.MapCarrier{"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"}
	out := propagation.MapCarrier{}
	tel.Propagator.Inject(tel.Propagator.Extract(context.Background(), in), out)
	if out["traceparent"] != in["traceparent"] {
		t.Errorf("%v", out)
	}
	_, span := tel.Tracer.Tracer("x").Start(context.Background(), "y")
	if span.SpanContext().IsValid() || span == trace.Span(nil) {
		t.Error("the default tracer records")
	}
}
