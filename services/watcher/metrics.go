package watcher

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
)

// Results of an event or a publication, as label values.
const (
	resultPublished  = "published"
	resultSuppressed = "suppressed" // changed nothing that travels, or joined one that waits
	resultRefused    = "refused"    // another message stood there
	resultFailed     = "failed"     // outcome unknown, or the stream is full
	resultOpaque     = "opaque"     // published as a marker, the object is too large
)

// metrics are the watcher's instruments, one series per kind.
type metrics struct {
	events, publishes, bookmarks, compares, differences, relists *prometheus.CounterVec
	objects, dirty, outstanding, bookmarkAge, alive              *prometheus.GaugeVec
	eventToPublish                                               *prometheus.HistogramVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "watcher", Name: name, Help: help,
		}, append([]string{"kind"}, labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{
			Namespace: "millrace", Subsystem: "watcher", Name: name, Help: help,
		}, []string{"kind"})
	}
	return &metrics{
		events:      counter("events_total", "Events of the watch."),
		publishes:   counter("publishes_total", "What became of events and publications.", "result"),
		bookmarks:   counter("bookmarks_total", "Bookmarks acknowledged by the stream."),
		compares:    counter("compares_total", "Comparisons of the stream with what should be in it.", "reason"),
		differences: counter("differences_total", "Keys that a comparison found to differ."),
		relists:     counter("relists_total", "Consistent lists received, the first one included."),
		objects:     gauge("objects", "Live objects in the stream, as far as published from here."),
		dirty:       gauge("dirty", "Keys whose newest state is not acknowledged yet."),
		outstanding: gauge("outstanding", "Messages that the bus has not answered yet."),
		bookmarkAge: gauge("bookmark_age_seconds", "Age of the oldest slice's last acknowledged bookmark."),
		alive:       gauge("watch_alive", "1 while the watch is known to live, or the kind is known to be absent."),
		eventToPublish: f.NewHistogramVec(prometheus.HistogramOpts{
			Namespace: "millrace", Subsystem: "watcher", Name: "event_to_publish_seconds",
			Help:    "Seconds from receiving an event to the stream's acknowledgement.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 16), // 0.5 ms to 16 s
		}, []string{"kind"}),
	}
}

// kindMetrics are the series of one kind.
type kindMetrics struct {
	events, suppressed, bookmarks, differences, relists prometheus.Counter
	results                                             map[string]prometheus.Counter
	compares                                            map[string]prometheus.Counter
	objects, dirty, outstanding, bookmarkAge, alive     prometheus.Gauge
	eventToPublish                                      prometheus.Observer
}

// of returns the series of a kind, which exist, at zero, from then on.
func (m *metrics) of(kind event.Kind) *kindMetrics {
	k := string(kind)
	out := &kindMetrics{
		events:         m.events.WithLabelValues(k),
		bookmarks:      m.bookmarks.WithLabelValues(k),
		differences:    m.differences.WithLabelValues(k),
		relists:        m.relists.WithLabelValues(k),
		objects:        m.objects.WithLabelValues(k),
		dirty:          m.dirty.WithLabelValues(k),
		outstanding:    m.outstanding.WithLabelValues(k),
		bookmarkAge:    m.bookmarkAge.WithLabelValues(k),
		alive:          m.alive.WithLabelValues(k),
		eventToPublish: m.eventToPublish.WithLabelValues(k),
		results:        map[string]prometheus.Counter{},
		compares:       map[string]prometheus.Counter{},
	}
	for _, r := range []string{resultPublished, resultSuppressed, resultRefused, resultFailed, resultOpaque} {
		out.results[r] = m.publishes.WithLabelValues(k, r)
	}
	for _, r := range reasons {
		out.compares[r] = m.compares.WithLabelValues(k, r)
	}
	out.suppressed = out.results[resultSuppressed]
	return out
}

// answered counts the bus's answer to a publication.
func (m *kindMetrics) answered(op event.Op, err error) {
	switch {
	case err == nil && op == event.Opaque:
		m.results[resultOpaque].Inc()
	case err == nil:
		m.results[resultPublished].Inc()
	case errors.Is(err, bus.ErrRefused):
		m.results[resultRefused].Inc()
	default:
		m.results[resultFailed].Inc()
	}
}

func (m *kindMetrics) compared(reason string, differences int) {
	m.compares[reason].Inc()
	m.differences.Add(float64(differences))
}

// idle is what the gauges show of a kind that is not held.
func (m *kindMetrics) idle() {
	for _, g := range []prometheus.Gauge{m.objects, m.dirty, m.outstanding, m.bookmarkAge, m.alive} {
		g.Set(0)
	}
}
