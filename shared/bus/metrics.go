package bus

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// metrics are the bus's instruments.
type metrics struct {
	publishes      *prometheus.CounterVec
	publishSeconds prometheus.Histogram
	feedReplays    *prometheus.CounterVec
	feedGaps       prometheus.Counter
	broken         prometheus.Counter
	reconnects     prometheus.Counter
	connected      prometheus.Gauge
	kvCAS          *prometheus.CounterVec
}

// Results of a write, as label values.
const (
	resultOK           = "ok"
	resultRefused      = "refused"
	resultTooLarge     = "too_large"
	resultFull         = "full"
	resultTimeout      = "timeout"
	resultDisconnected = "disconnected"
	resultError        = "error"
)

var results = []string{resultOK, resultRefused, resultTooLarge, resultFull, resultTimeout, resultDisconnected, resultError}

// Reasons for a feed to start, as label values.
const (
	replayFirst  = "first"
	replayAgain  = "again"
	replayGap    = "gap"
	replayBeat   = "heartbeat"
	replayGone   = "deleted"
	replayFailed = "error"
)

var replays = []string{replayFirst, replayAgain, replayGap, replayBeat, replayGone, replayFailed}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	m := &metrics{
		publishes: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "bus", Name: "publishes_total",
			Help: "Messages published to a stream, by result.",
		}, []string{"result"}),
		publishSeconds: f.NewHistogram(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "bus", Name: "publish_seconds",
			Help:    "Seconds from publishing a message to the server's answer.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 15), // 0.1 ms to 1.6 s
		}),
		feedReplays: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "bus", Name: "feed_replays_total",
			Help: "Feeds started from the beginning, by what ended the one before.",
		}, []string{"reason"}),
		feedGaps: f.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "bus", Name: "feed_gaps_total",
			Help: "Feeds that ended because the flow was broken.",
		}),
		broken: f.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "bus", Name: "broken_messages_total",
			Help: "Messages that could not be decoded.",
		}),
		reconnects: f.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "bus", Name: "reconnects_total",
			Help: "Connections made after the first one.",
		}),
		connected: f.NewGauge(prometheus.GaugeOpts{
			Namespace: "millrace", Subsystem: "bus", Name: "connected",
			Help: "1 while connected to NATS.",
		}),
		kvCAS: f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "bus", Name: "kv_cas_total",
			Help: "Conditional writes to a bucket, by bucket and result.",
		}, []string{"bucket", "result"}),
	}
	for _, r := range results {
		m.publishes.WithLabelValues(r)
		for _, bucket := range Buckets {
			m.kvCAS.WithLabelValues(string(bucket), r)
		}
	}
	for _, r := range replays {
		m.feedReplays.WithLabelValues(r)
	}
	return m
}

// resultOf is the label value of a write's error.
func resultOf(err error) string {
	switch {
	case err == nil:
		return resultOK
	case errors.Is(err, ErrRefused):
		return resultRefused
	case errors.Is(err, ErrTooLarge):
		return resultTooLarge
	case errors.Is(err, ErrFull):
		return resultFull
	case errors.Is(err, ErrTimeout):
		return resultTimeout
	case errors.Is(err, ErrDisconnected), errors.Is(err, ErrClosed):
		return resultDisconnected
	default:
		return resultError
	}
}
