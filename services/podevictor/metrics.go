package podevictor

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/kube"
)

// metrics are upstream's, under its names, and ours.
type metrics struct {
	s         *podEvictor
	deletions prometheus.Counter
	delay     prometheus.Histogram
	garbage   *prometheus.CounterVec
	errors    *prometheus.CounterVec
	pending   *prometheus.Desc
}

func newMetrics(reg prometheus.Registerer, s *podEvictor) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		s: s,
		deletions: f.NewCounter(prometheus.CounterOpts{
			Namespace: "taint_eviction_controller", Name: "pod_deletions_total", Help: "Pods deleted for a taint of their node.",
		}),
		delay: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "taint_eviction_controller", Name: "pod_deletion_duration_seconds",
			Help:    "How long after it was due a pod was deleted for a taint of its node.",
			Buckets: []float64{.005, .025, .1, .5, 1, 2.5, 10, 30, 60, 120, 180, 240},
		}),
		garbage: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "pod_gc_collector", Name: "force_delete_pods_total", Help: "Pods that nobody runs any more of which the deletion was asked for.",
		}, []string{"namespace", "reason"}),
		errors: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "pod_gc_collector", Name: "force_delete_pod_errors_total", Help: "Such deletions that failed.",
		}, []string{"namespace", "reason"}),
		pending: prometheus.NewDesc("millrace_podevictor_pending", "Pods to be deleted, by what that waits for.", []string{"waiting"}, nil),
	}
	if reg != nil {
		reg.MustRegister(m)
	}
	return m
}

// deleted counts a pod that was evicted.
func (m *metrics) deleted(due, now time.Time) {
	m.deletions.Inc()
	m.delay.Observe(max(0, now.Sub(due)).Seconds())
}

// forced counts a deletion by force that was sent; one that shadow mode held back was
// not.
func (m *metrics) forced(namespace, rule string, err error) {
	if errors.Is(err, kube.ErrRefused) || errors.Is(err, controller.ErrShadow) {
		return
	}
	m.garbage.WithLabelValues(namespace, rule).Inc()
	if err != nil {
		m.errors.WithLabelValues(namespace, rule).Inc()
	}
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) { ch <- m.pending }

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	counts := map[string]int{
		waitsTime: 0, waitsRate: 0, waitsFreshness: 0, waitsPause: 0, waitsShadow: 0, waitsQuarantine: 0, waitsRetry: 0,
	}
	for _, p := range m.s.pending() {
		counts[kindOfWait(p.Waiting)]++
	}
	for kind, n := range counts {
		ch <- prometheus.MustNewConstMetric(m.pending, prometheus.GaugeValue, float64(n), kind)
	}
}
