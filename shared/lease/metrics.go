package lease

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Why a unit was taken over.
const (
	byRelease  = "released"
	byExpiry   = "expired"
	byEviction = "evicted"
)

// What became of a write to the bucket.
const (
	resultOK      = "ok"
	resultRefused = "refused"
	resultError   = "error"
)

// metrics are the instruments of one role's membership.
type metrics struct {
	members         prometheus.Gauge
	held            prometheus.Gauge
	claims          *prometheus.CounterVec
	releases        prometheus.Counter
	losses          *prometheus.CounterVec
	takeovers       *prometheus.CounterVec
	takeoverSeconds prometheus.Histogram
	renewals        *prometheus.CounterVec
	rejoins         prometheus.Counter
	evictions       prometheus.Counter
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	return &metrics{
		members: f.NewGauge(prometheus.GaugeOpts(opts("members",
			"Living members of the role, as this one sees them."))),
		held: f.NewGauge(prometheus.GaugeOpts(opts("units_held",
			"Units that this member holds."))),
		claims: counters(f, "claims_total", "Claims tried, by result.",
			"result", resultOK, resultRefused, resultError),
		releases: f.NewCounter(prometheus.CounterOpts(opts("releases_total",
			"Units given up on purpose."))),
		losses: counters(f, "losses_total", "Units dropped without having been given up, by reason.",
			"reason", string(lostRefused), string(lostEvicted), string(lostExpired), string(lostTaken)),
		takeovers: counters(f, "takeovers_total", "Units claimed that another member had held, by how that one lost them.",
			"reason", byRelease, byExpiry, byEviction),
		takeoverSeconds: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "lease", Name: "takeover_seconds",
			Help:    "Seconds from the first sign that a unit's holder is gone to its claim here.",
			Buckets: prometheus.ExponentialBuckets(0.005, 2, 12), // 5 ms to 10.24 s
		}),
		renewals: counters(f, "renewals_total", "Renewals of the member key, by result.",
			"result", resultOK, resultRefused, resultError),
		rejoins: f.NewCounter(prometheus.CounterOpts(opts("rejoins_total",
			"Memberships lost and begun again under a new id."))),
		evictions: f.NewCounter(prometheus.CounterOpts(opts("evictions_total",
			"Members that this one declared dead."))),
	}
}

func opts(name, help string) prometheus.Opts {
	return prometheus.Opts{Namespace: "millrace", Subsystem: "lease", Name: name, Help: help}
}

// counters creates every series of a closed set at zero.
func counters(f promauto.Factory, name, help, label string, values ...string) *prometheus.CounterVec {
	vec := f.NewCounterVec(prometheus.CounterOpts(opts(name, help)), []string{label})
	for _, v := range values {
		vec.WithLabelValues(v)
	}
	return vec
}

func resultOf(err error) string {
	switch {
	case err == nil:
		return resultOK
	case isRefused(err):
		return resultRefused
	default:
		return resultError
	}
}
