package fleet

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// get reads one page of the member's telemetry.
func (m *Member) get(ctx context.Context, path string) (int, string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, m.URL+path, nil)
	if err != nil {
		return 0, "", fmt.Errorf("asking %s: %w", m.Name, err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, "", fmt.Errorf("asking %s: %w", m.Name, err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, "", fmt.Errorf("asking %s: %w", m.Name, err)
	}
	return resp.StatusCode, string(body), nil
}

// Readyz returns what /readyz says: nothing is missing, or what is.
func (m *Member) Readyz(ctx context.Context) (ready bool, reasons string, err error) {
	code, text, err := m.get(ctx, "/readyz")
	return code == http.StatusOK, text, err
}

// AwaitReady waits until /readyz answers 200.
func (m *Member) AwaitReady(ctx context.Context) error {
	last := "no answer"
	for {
		ready, reasons, err := m.Readyz(ctx)
		if ready {
			return nil
		}
		if err == nil {
			last = reasons
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-m.done:
			return fmt.Errorf("waiting for %s: it ended; see %s", m.Name, m.Log)
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %s", m.Name, ctx.Err(), last)
		}
	}
}

// Metrics are the samples of one scrape: counters, gauges, and of histograms
// _count and _sum.
type Metrics map[string][]Sample

// Sample is one series.
type Sample struct {
	Labels map[string]string
	Value  float64
}

// Metrics scrapes the member.
func (m *Member) Metrics(ctx context.Context) (Metrics, error) {
	_, text, err := m.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("reading metrics of %s: %w", m.Name, err)
	}
	out := make(Metrics)
	for name, f := range families {
		for _, metric := range f.GetMetric() {
			labels := make(map[string]string, len(metric.GetLabel()))
			for _, l := range metric.GetLabel() {
				labels[l.GetName()] = l.GetValue()
			}
			add := func(suffix string, v float64) {
				out[name+suffix] = append(out[name+suffix], Sample{labels, v})
			}
			switch {
			case metric.GetCounter() != nil:
				add("", metric.GetCounter().GetValue())
			case metric.GetGauge() != nil:
				add("", metric.GetGauge().GetValue())
			case metric.GetUntyped() != nil:
				add("", metric.GetUntyped().GetValue())
			case metric.GetHistogram() != nil:
				add("_count", float64(metric.GetHistogram().GetSampleCount()))
				add("_sum", metric.GetHistogram().GetSampleSum())
			}
		}
	}
	return out, nil
}

// Sum adds up the series of a name whose labels include want, given as pairs.
func (m Metrics) Sum(name string, want ...string) (sum float64) {
next:
	for _, s := range m[name] {
		for i := 0; i+1 < len(want); i += 2 {
			if s.Labels[want[i]] != want[i+1] {
				continue next
			}
		}
		sum += s.Value
	}
	return sum
}
