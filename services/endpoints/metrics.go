package endpoints

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	librarymetrics "k8s.io/endpointslice/metrics"

	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// metrics are this service's instruments, beside the library's own
// (endpoint_slice_controller_*) and the frame's.
type metrics struct {
	writes *prometheus.CounterVec
	delay  prometheus.Histogram
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		writes: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "endpoints", Name: "writes_total",
			Help: "Writes of EndpointSlices that the API server took, by verb.",
		}, []string{"verb"}), // create|update|delete
		delay: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "endpoints", Name: "change_to_slice_seconds",
			Help:    "Seconds from the arrival of a change at the watcher to slices that agree with it.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 15), // 1 ms to 16.4 s
		}),
	}
	for _, verb := range []kube.Verb{kube.VerbCreate, kube.VerbUpdate, kube.VerbDelete} {
		m.writes.WithLabelValues(string(verb))
	}
	return m
}

func (m *metrics) wrote(w kube.Write) {
	if !w.Shadow {
		m.writes.WithLabelValues(string(w.Verb)).Inc()
	}
}

// synced observes how long ago the change arrived that a finished reconcile
// answers.
func (m *metrics) synced(p partition, key event.Key) {
	if cause, ok := p.Changed(key); ok && !cause.Message.Observed.IsZero() {
		m.delay.Observe(time.Since(cause.Message.Observed).Seconds())
	}
}

// countSync counts a sync as upstream's loop does, which the library has no part
// in: endpoint_slice_controller_syncs.
func countSync(err error) {
	result := "success"
	switch classify(err) {
	case controller.Shadow:
	case controller.Waiting, controller.Conflict, controller.Gone, controller.NotHolder:
		result = "stale"
	default:
		if err != nil {
			result = "error"
		}
	}
	librarymetrics.EndpointSliceSyncs.WithLabelValues(result).Inc()
}
