package watcher

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"google.golang.org/protobuf/types/known/durationpb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

// beats is what outlives the holds of the kind nodes.
type beats struct {
	metrics *beatMetrics
	status  *beatStatus
}

func newBeats(reg prometheus.Registerer) *beats {
	return &beats{metrics: newBeatMetrics(reg), status: &beatStatus{}}
}

type beatMetrics struct {
	events                      prometheus.Counter
	published, failed, withheld prometheus.Counter
	nodes, oldest, bytes        prometheus.Gauge
}

func newBeatMetrics(reg prometheus.Registerer) *beatMetrics {
	f := promauto.With(reg)
	gauge := func(name, help string) prometheus.Gauge {
		return f.NewGauge(prometheus.GaugeOpts{Namespace: "millrace", Subsystem: "watcher", Name: name, Help: help})
	}
	digests := f.NewCounterVec(prometheus.CounterOpts{
		Namespace: "millrace", Subsystem: "watcher", Name: "digests_total",
		Help: "Heartbeat digests of partitions; withheld: seconds in which none could be made.",
	}, []string{"result"})
	return &beatMetrics{
		events: f.NewCounter(prometheus.CounterOpts{
			Namespace: "millrace", Subsystem: "watcher", Name: "lease_events_total", Help: "Leases of nodes, listed and changed.",
		}),
		published: digests.WithLabelValues(resultPublished),
		failed:    digests.WithLabelValues(resultFailed),
		withheld:  digests.WithLabelValues("withheld"),
		nodes:     gauge("beat_nodes", "Nodes whose heartbeats are followed here."),
		oldest:    gauge("beat_oldest_seconds", "How long the node has been silent that has been longest."),
		bytes:     gauge("digest_bytes", "Size of the largest partition's last heartbeat digest."),
	}
}

// staleDigest is the age of a digest above which heartbeats are not ready. Unit:
// time. Source: readers do not judge by one that is older.
const staleDigest = 3 * time.Second

// beatStatus is what others may know of the heartbeats. The beater writes it.
type beatStatus struct {
	mu      sync.Mutex
	held    bool
	nodes   int
	oldest  time.Duration
	bytes   int
	told    time.Time // the last digest of the partition that has waited longest
	why     string    // why there is none
	problem string    // what the bus said last
}

func (s *beatStatus) take() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.why = true, "starting"
}

// giveUp is what is left of a hold.
func (b *beats) giveUp() {
	for _, g := range []prometheus.Gauge{b.metrics.nodes, b.metrics.oldest, b.metrics.bytes} {
		g.Set(0)
	}
	s := b.status
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.nodes, s.oldest, s.bytes, s.told, s.why, s.problem = false, 0, 0, 0, time.Time{}, "", ""
}

func (s *beatStatus) say(nodes int, oldest time.Duration, bytes int, told time.Time, why string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.nodes, s.oldest, s.bytes, s.told, s.why = nodes, oldest, bytes, told, why
	if why == "" && time.Since(told) < 2*markPeriod {
		s.problem = ""
	}
}

func (s *beatStatus) stumbled(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = err.Error()
}

// ready returns why readers cannot judge by the digests that are made here.
func (s *beatStatus) ready(now time.Time) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held || !s.told.IsZero() && now.Sub(s.told) <= staleDigest {
		return nil
	}
	why := "no digest yet"
	if !s.told.IsZero() {
		why = fmt.Sprintf("no digest for %s", now.Sub(s.told).Truncate(time.Second))
	}
	for _, more := range []string{s.why, s.problem} {
		if more != "" {
			why += ": " + more
		}
	}
	return errors.New(why)
}

func (s *beatStatus) proto(now time.Time) *millracev1.HeartbeatStatus {
	problem := ""
	if err := s.ready(now); err != nil {
		problem = err.Error()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.held {
		return nil
	}
	return &millracev1.HeartbeatStatus{
		Nodes: uint64(s.nodes), Oldest: durationpb.New(s.oldest), DigestBytes: uint64(s.bytes), Problem: problem, //nolint:gosec // counts
	}
}
