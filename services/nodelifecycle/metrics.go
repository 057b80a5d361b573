package nodelifecycle

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/millrace-io/millrace/shared/event"
)

// metrics are upstream's, under its names, and ours. The gauges of a zone come
// from the member that holds the partition into which the zone's name falls.
type metrics struct {
	s         *nodeLifecycle
	evictions *prometheus.CounterVec
	update    prometheus.Histogram
	delay     prometheus.Histogram
	checks    *prometheus.CounterVec
	suspended prometheus.Counter

	health, size, unhealthy *prometheus.Desc

	mu   sync.Mutex
	held map[*reconciler]struct{}
}

func newMetrics(reg prometheus.Registerer, s *nodeLifecycle) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		s: s, held: make(map[*reconciler]struct{}),
		evictions: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "node_collector", Name: "evictions_total", Help: "Nodes tainted NoExecute at the rate of their zone.",
		}, []string{"zone"}),
		update: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "node_collector", Name: "update_node_health_duration_seconds",
			Help:    "How long one look at a node took, with what was written.",
			Buckets: prometheus.ExponentialBuckets(0.001, 4, 8),
		}),
		delay: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "nodelifecycle", Name: "detection_delay_seconds",
			Help:    "How long after its grace period a silent node was written Unknown.",
			Buckets: []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30},
		}),
		checks: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "nodelifecycle", Name: "live_checks_total",
			Help: "Live looks at a node and its Lease before it is written: whether they agreed with the heartbeat digest.",
		}, []string{"result"}),
		suspended: f.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "nodelifecycle", Name: "suspended_seconds_total",
			Help: "Seconds in which the nodes of a partition could not be judged, over all partitions held.",
		}),
		health:    zoneDesc("zone_health", "Share of ready nodes of a zone, in percent."),
		size:      zoneDesc("zone_size", "Nodes of a zone that count."),
		unhealthy: zoneDesc("unhealthy_nodes_in_zone", "Nodes of a zone that count and are not ready."),
	}
	for _, result := range []string{"agreed", "contradicted", "failed"} {
		m.checks.WithLabelValues(result)
	}
	if reg != nil {
		reg.MustRegister(m)
	}
	return m
}

func zoneDesc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("node_collector_"+name, help, []string{"zone"}, nil)
}

func (m *metrics) enter(r *reconciler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[r] = struct{}{}
}

func (m *metrics) leave(r *reconciler) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.held, r)
}

// of returns what works on a partition; nil: nothing.
func (m *metrics) of(p held) *reconciler {
	m.mu.Lock()
	defer m.mu.Unlock()
	for r := range m.held {
		if r.p == p {
			return r
		}
	}
	return nil
}

// Describe implements prometheus.Collector.
func (m *metrics) Describe(ch chan<- *prometheus.Desc) {
	ch <- m.health
	ch <- m.size
	ch <- m.unhealthy
}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(ch chan<- prometheus.Metric) {
	m.mu.Lock()
	held := slices.Collect(maps.Keys(m.held))
	m.mu.Unlock()
	if len(held) == 0 {
		return
	}
	for name, z := range m.s.census.take(held[0].p).zones {
		mine := slices.ContainsFunc(held, func(r *reconciler) bool { return m.s.holds(r.p, event.Key{Name: name}) })
		if !mine {
			continue
		}
		m.evictions.WithLabelValues(name)
		ch <- prometheus.MustNewConstMetric(m.health, prometheus.GaugeValue, z.health(), name)
		ch <- prometheus.MustNewConstMetric(m.size, prometheus.GaugeValue, float64(z.size()), name)
		ch <- prometheus.MustNewConstMetric(m.unhealthy, prometheus.GaugeValue, float64(z.notReady), name)
	}
}
