package rates

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/millrace-io/millrace/shared/event"
)

// Why a caller got no token, or one that was worth nothing.
const (
	refusedCanceled = "canceled" // it gave up waiting
	refusedVoid     = "void"     // it came too late with it
)

// metrics are the instruments of all buckets of a member.
type metrics struct {
	tokens   *prometheus.CounterVec
	voided   *prometheus.CounterVec
	waited   *prometheus.HistogramVec
	refusals *prometheus.CounterVec
	writes   *prometheus.CounterVec
	seconds  *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Namespace: "millrace", Subsystem: "rates", Name: name, Help: help}, append([]string{"scope"}, labels...))
	}
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Namespace: "millrace", Subsystem: "rates", Name: name, Help: help, Buckets: buckets}, []string{"scope"})
	}
	return &metrics{
		tokens:   counter("tokens_taken_total", "Tokens that this member has taken from the bucket."),
		voided:   counter("tokens_unused_total", "Of them, those that died before anybody here wanted them."),
		waited:   histogram("wait_seconds", "Seconds a caller waits for its token.", prometheus.ExponentialBuckets(0.0001, 4, 11)), // 0.1 ms to 105 s
		refusals: counter("refusals_total", "Callers that got no token, or used it too late, by reason.", "reason"),
		writes:   counter("writes_total", "Writes to the bucket, by result.", "result"),
		seconds:  histogram("take_seconds", "Seconds one write to the bucket takes.", prometheus.ExponentialBuckets(0.0001, 2, 14)), // 0.1 ms to 0.8 s
	}
}

// zero creates all series of a scope.
func (m *metrics) zero(scope string) {
	m.tokens.WithLabelValues(scope)
	m.voided.WithLabelValues(scope)
	m.waited.WithLabelValues(scope)
	m.seconds.WithLabelValues(scope)
	for _, reason := range []string{refusedCanceled, refusedVoid} {
		m.refusals.WithLabelValues(scope, reason)
	}
	for _, result := range []string{"ok", "refused", "error"} {
		m.writes.WithLabelValues(scope, result)
	}
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, event.ErrRefused):
		return "refused"
	default:
		return "error"
	}
}
