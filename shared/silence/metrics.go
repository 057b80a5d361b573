package silence

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/millrace-io/millrace/shared/beat"
)

type metrics struct {
	heard, ignored, broken, contradicted prometheus.Counter
}

func newMetrics(reg prometheus.Registerer, suspended func(beat.Reason) float64) *metrics {
	f := promauto.With(reg)
	digests := f.NewCounterVec(prometheus.CounterOpts{
		Namespace: "millrace", Subsystem: "silence", Name: "digests_total",
		Help: "Heartbeat digests that came; ignored: of an earlier watcher, or not for the first time.",
	}, []string{"result"})
	gauge := func(name, help string, why beat.Reason, labels prometheus.Labels) {
		f.NewGaugeFunc(prometheus.GaugeOpts{
			Namespace: "millrace", Subsystem: "silence", Name: name, Help: help, ConstLabels: labels,
		}, func() float64 { return suspended(why) })
	}
	gauge("partitions", "Partitions whose heartbeat digests are followed.", "", nil)
	for _, why := range beat.Reasons {
		if why != beat.Unknown { // of a node, not of a partition
			gauge("suspended_partitions", "Partitions in which no node is judged, by reason.", why, prometheus.Labels{"reason": string(why)})
		}
	}
	return &metrics{
		heard:   digests.WithLabelValues("heard"),
		ignored: digests.WithLabelValues("ignored"),
		broken:  digests.WithLabelValues("broken"),
		contradicted: f.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "silence", Name: "contradictions_total",
			Help: "Live reads that showed another beat than the digest.",
		}),
	}
}
