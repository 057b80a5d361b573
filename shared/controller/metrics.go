package controller

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
)

// Results of a reconcile besides those of classes.
const (
	resultOK    = "ok"
	resultPanic = "panic"
)

// Reasons of a replay.
const (
	replayFirst = "first" // a claim, or the start of the process
	replayGap   = "gap"   // the feed was interrupted
	replayDrift = "drift" // bookmarks contradicted the cache
	replaySweep = "sweep" // it was time
)

// What became of a decision record.
const (
	recordKept = "kept"
	recordLost = "lost"
)

// Hops of a change on its way.
const (
	hopWatch = "watch" // committed by the API server → observed by the watcher
	hopBus   = "bus"   // observed by the watcher → received here
	hopQueue = "queue" // received here → taken in hand
	hopTotal = "total" // committed (observed, where that is not known) → taken in hand
)

// refusals are the reasons of Guard.
var refusals = []struct {
	err    error
	reason string
}{
	{ErrNotHolder, "not_holder"}, {ErrPaused, "paused"}, {ErrNotSynced, "not_synced"}, {ErrStale, "stale"},
	{ErrClock, "clock"}, {ErrLiveFirst, "live_first"}, {ErrShadow, "shadow"},
}

// metrics are the instruments of one role; the registry names it.
type metrics struct {
	reconciles *prometheus.CounterVec
	seconds    prometheus.Histogram
	ages       *prometheus.HistogramVec
	replays    *prometheus.CounterVec
	drifts     prometheus.Counter
	conflicts  prometheus.Counter
	refusals   *prometheus.CounterVec
	panics     prometheus.Counter
	poison     prometheus.Counter
	stale      prometheus.Counter
	letters    *prometheus.CounterVec
	records    *prometheus.CounterVec
}

func newMetrics(reg prometheus.Registerer) *metrics {
	f := promauto.With(reg)
	counter := func(name, help string) prometheus.CounterOpts {
		return prometheus.CounterOpts{Namespace: "millrace", Subsystem: "controller", Name: name, Help: help}
	}
	histogram := func(name, help string, buckets []float64) prometheus.HistogramOpts {
		return prometheus.HistogramOpts{Namespace: "millrace", Subsystem: "controller", Name: name, Help: help, Buckets: buckets}
	}
	m := &metrics{
		reconciles: f.NewCounterVec(counter("reconciles_total", "Reconciles, by result."), []string{"result"}),
		seconds: f.NewHistogram(histogram("reconcile_seconds", "Seconds one reconcile takes.",
			prometheus.ExponentialBuckets(0.0001, 4, 10))), // 0.1 ms to 26 s
		ages: f.NewHistogramVec(histogram("event_age_seconds", "Seconds a change takes from hop to hop until its key is taken in hand.",
			prometheus.ExponentialBuckets(0.001, 2, 18)), []string{"hop"}), // 1 ms to 131 s
		replays:   f.NewCounterVec(counter("replays_total", "Times a feed was read from its beginning, by reason."), []string{"reason"}),
		drifts:    f.NewCounter(counter("drift_total", "Times that bookmarks contradicted a cache for too long.")),
		conflicts: f.NewCounter(counter("conflicts_total", "Reconciles that met an object changed by another.")),
		refusals:  f.NewCounterVec(counter("guard_refusals_total", "Writes not allowed, by reason."), []string{"reason"}),
		panics:    f.NewCounter(counter("panics_total", "Panics contained to one key or object.")),
		poison:    f.NewCounter(counter("poison_total", "Objects that could not be read.")),
		stale:     f.NewCounter(counter("stale_waits_total", "Keys that had to wait because an input was too old.")),
		letters:   f.NewCounterVec(counter("dead_letters_total", "Dead letters, by what was done."), []string{"do"}),
		records:   f.NewCounterVec(counter("decision_records_total", "Records of writes, by what became of them."), []string{"result"}),
	}
	m.zero()
	return m
}

// zero creates all series.
func (m *metrics) zero() {
	for _, result := range classes {
		m.reconciles.WithLabelValues(result)
	}
	m.reconciles.WithLabelValues(resultOK)
	m.reconciles.WithLabelValues(resultPanic)
	for _, hop := range []string{hopWatch, hopBus, hopQueue, hopTotal} {
		m.ages.WithLabelValues(hop)
	}
	for _, reason := range []string{replayFirst, replayGap, replayDrift, replaySweep} {
		m.replays.WithLabelValues(reason)
	}
	for _, r := range refusals {
		m.refusals.WithLabelValues(r.reason)
	}
	m.records.WithLabelValues(recordKept)
	m.records.WithLabelValues(recordLost)
	m.letters.WithLabelValues("write")
	m.letters.WithLabelValues("clear")
}

// refused counts a refusal of Guard.
func (m *metrics) refused(err error) {
	for _, r := range refusals {
		if errors.Is(err, r.err) {
			m.refusals.WithLabelValues(r.reason).Inc()
			return
		}
	}
}

// age records the way of the change that caused a reconcile. The first two hops
// compare clocks of different machines; what comes out negative counts as zero.
func (m *metrics) age(c Cause, now time.Time) {
	observe := func(hop string, from, to time.Time) {
		if !from.IsZero() {
			m.ages.WithLabelValues(hop).Observe(max(0, to.Sub(from).Seconds()))
		}
	}
	first := c.Message.Committed
	if first.IsZero() {
		first = c.Message.Observed
	}
	if !c.Message.Observed.IsZero() {
		observe(hopWatch, c.Message.Committed, c.Message.Observed)
	}
	observe(hopBus, c.Message.Observed, c.Received)
	observe(hopQueue, c.Received, now)
	observe(hopTotal, first, now)
}
