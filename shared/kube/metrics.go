package kube

import (
	"context"
	"net/url"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/client-go/tools/metrics"
	"k8s.io/client-go/util/workqueue"
)

// Names, labels and buckets are those of k8s.io/component-base
// metrics/prometheus/restclient and workqueue, v0.37.
var (
	requestBuckets = []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	queueBuckets   = prometheus.ExponentialBuckets(10e-9, 10, 10)
)

var (
	clientMetricsOnce sync.Once
	queueMetricsOnce  sync.Once
)

// registerClientMetrics installs client-go's hooks: once per process, because
// there is one set of hooks.
func registerClientMetrics(reg prometheus.Registerer) {
	if reg == nil {
		return
	}
	clientMetricsOnce.Do(func() {
		f := promauto.With(reg)
		metrics.Register(metrics.RegisterOpts{
			RequestLatency: latency{f.NewHistogramVec(prometheus.HistogramOpts{
				Name: "rest_client_request_duration_seconds", Buckets: requestBuckets,
				Help: "Request latency in seconds. Broken down by verb, and host.",
			}, []string{"verb", "host"})},
			RateLimiterLatency: latency{f.NewHistogramVec(prometheus.HistogramOpts{
				Name: "rest_client_rate_limiter_duration_seconds", Buckets: requestBuckets,
				Help: "Client side rate limiter latency in seconds. Broken down by verb, and host.",
			}, []string{"verb", "host"})},
			RequestResult: results{f.NewCounterVec(prometheus.CounterOpts{
				Name: "rest_client_requests_total",
				Help: "Number of HTTP requests, partitioned by status code, method, and host.",
			}, []string{"code", "method", "host"})},
			RequestRetry: results{f.NewCounterVec(prometheus.CounterOpts{
				Name: "rest_client_request_retries_total",
				Help: "Number of request retries, partitioned by status code, verb, and host.",
			}, []string{"code", "verb", "host"})},
		})
	})
}

type latency struct{ vec *prometheus.HistogramVec }

func (l latency) Observe(_ context.Context, verb string, u url.URL, d time.Duration) {
	l.vec.WithLabelValues(verb, u.Host).Observe(d.Seconds())
}

type results struct{ vec *prometheus.CounterVec }

func (r results) Increment(_ context.Context, code, method, host string) {
	r.vec.WithLabelValues(code, method, host).Inc()
}

func (r results) IncrementRetry(_ context.Context, code, method, host string) {
	r.vec.WithLabelValues(code, method, host).Inc()
}

// RegisterQueueMetrics serves the metrics of client-go's work queues under
// upstream's names, for queues made afterwards that have a name. Once per
// process: later calls do nothing.
func RegisterQueueMetrics(reg prometheus.Registerer) {
	queueMetricsOnce.Do(func() { workqueue.SetProvider(QueueMetrics(reg)) })
}

// QueueMetrics returns the provider that RegisterQueueMetrics installs, to be
// passed to one queue (workqueue.TypedQueueConfig.MetricsProvider).
func QueueMetrics(reg prometheus.Registerer) workqueue.MetricsProvider {
	f := promauto.With(reg)
	label := []string{"name"}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, label)
	}
	counter := func(name, help string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, label)
	}
	histogram := func(name, help string) *prometheus.HistogramVec {
		return f.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: queueBuckets}, label)
	}
	return &queueMetrics{
		depth:      gauge("workqueue_depth", "Current depth of workqueue"),
		adds:       counter("workqueue_adds_total", "Total number of adds handled by workqueue"),
		latency:    histogram("workqueue_queue_duration_seconds", "How long in seconds an item stays in workqueue before being requested."),
		work:       histogram("workqueue_work_duration_seconds", "How long in seconds processing an item from workqueue takes."),
		unfinished: gauge("workqueue_unfinished_work_seconds", "How many seconds of work is in progress and has not been observed by work_duration."),
		longest:    gauge("workqueue_longest_running_processor_seconds", "How many seconds the longest running processor for workqueue has been running."),
		retries:    counter("workqueue_retries_total", "Total number of retries handled by workqueue"),
	}
}

type queueMetrics struct {
	depth, unfinished, longest *prometheus.GaugeVec
	adds, retries              *prometheus.CounterVec
	latency, work              *prometheus.HistogramVec
}

func (m *queueMetrics) NewDepthMetric(name string) workqueue.GaugeMetric {
	return m.depth.WithLabelValues(name)
}

func (m *queueMetrics) NewAddsMetric(name string) workqueue.CounterMetric {
	return m.adds.WithLabelValues(name)
}

func (m *queueMetrics) NewLatencyMetric(name string) workqueue.HistogramMetric {
	return m.latency.WithLabelValues(name)
}

func (m *queueMetrics) NewWorkDurationMetric(name string) workqueue.HistogramMetric {
	return m.work.WithLabelValues(name)
}

func (m *queueMetrics) NewUnfinishedWorkSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.unfinished.WithLabelValues(name)
}

func (m *queueMetrics) NewLongestRunningProcessorSecondsMetric(name string) workqueue.SettableGaugeMetric {
	return m.longest.WithLabelValues(name)
}

func (m *queueMetrics) NewRetriesMetric(name string) workqueue.CounterMetric {
	return m.retries.WithLabelValues(name)
}
