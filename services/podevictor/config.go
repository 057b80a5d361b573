package podevictor

import (
	"fmt"
	"math"
	"time"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/kube"
)

const (
	// role names the deployment, its leases and its durable positions.
	role = "podevictor"
	// component is the source of our events. Source: contract 2, A10.
	component = "taint-eviction-controller"
)

// workers is how many pods are worked on at once: each waits four times for the API
// server, one after the other, and its deadline has come. Unit: pods, per replica.
// Source: ours; upstream has no bound. At 5 a busy API server (45 ms) let a replica
// delete 28 pods a second.
const workers = 20

// The parts, each of which has a mode of its own.
const (
	partTaints  = "taint-eviction"
	partGarbage = "garbage-collection"
)

// Parts are those parts, for who switches them.
var Parts = []string{partTaints, partGarbage}

// How a pod is deleted.
const (
	modeDelete = "delete"
	modeEvict  = "evict"
)

// Config is everything an operator may set; each field names its unit.
type Config struct {
	Bus        bus.Config        `envconfig:"NATS"`
	Kube       kube.Config       `envconfig:"KUBE"`
	Controller controller.Config `envconfig:"CONTROLLER"`
	Policy     policy            `envconfig:"PODEVICTOR"`
}

// policy is what decisions read.
type policy struct {
	// TaintEvictionMode is active; or shadow: what would be evicted is only recorded;
	// or off. It holds while `millrace mode podevictor/taint-eviction` has set none,
	// and never goes further than the role's own mode.
	TaintEvictionMode string `split_words:"true" default:"active"`
	// GarbageCollectionMode is the same for pods that nobody runs any more.
	GarbageCollectionMode string `split_words:"true" default:"active"`

	// EvictionMode is delete, as upstream; or evict: pods go through the Eviction
	// API, where a PodDisruptionBudget may hold them back for as long as it likes.
	// Default: kube-controller-manager v1.37, which deletes.
	EvictionMode string `split_words:"true" default:"delete"`
	// PodEvictionQPS is how many pods are evicted from tainted nodes.
	// Unit: pods per second, over all replicas; 0: no limit. Default: none;
	// kube-controller-manager had --deleting-pods-qps until v1.4 for nodes.
	PodEvictionQPS float64 `envconfig:"POD_EVICTION_QPS" default:"0"`
	// PodEvictionBurst is how many of them at once. Unit: pods; 0: a second's worth,
	// at least 1. Default: ours.
	PodEvictionBurst int `split_words:"true" default:"0"`
	// ZonePodEvictionQPS and ZonePodEvictionBurst are the same for each zone by
	// itself. A pod needs both tokens. Units and defaults as above.
	ZonePodEvictionQPS   float64 `envconfig:"ZONE_POD_EVICTION_QPS" default:"0"`
	ZonePodEvictionBurst int     `split_words:"true" default:"0"`
	// TaintTolerationComparisonOperators lets the operators Lt and Gt match; where
	// it is off, a toleration with one of them tolerates nothing. Default: the
	// feature gate of that name in v1.37.
	TaintTolerationComparisonOperators bool `split_words:"true" default:"false"`

	// TerminatedPodGCThreshold is how many pods that have ended are kept, in the
	// whole cluster. Unit: pods; 0 or less: all. Default: --terminated-pod-gc-threshold.
	TerminatedPodGCThreshold int `envconfig:"TERMINATED_POD_GC_THRESHOLD" default:"12500"`
	// OrphanQuarantine is how long a node must have been gone before its pods are
	// deleted. Unit: time. Default: kube-controller-manager v1.37, where it is fixed.
	OrphanQuarantine time.Duration `split_words:"true" default:"40s"`
	// GCPeriod is how often finished pods are counted, and how long a name whose pod
	// was collected is left alone. Unit: time. Default: as above.
	GCPeriod time.Duration `envconfig:"GC_PERIOD" default:"20s"`
}

// Validate says what is wrong, in the operator's words.
func (c Config) Validate() error {
	for _, part := range []interface{ Validate() error }{c.Bus, c.Kube, c.Controller} {
		if err := part.Validate(); err != nil {
			return err
		}
	}
	return c.Policy.validate()
}

func (p policy) validate() error {
	for name, mode := range map[string]string{"TAINT_EVICTION_MODE": p.TaintEvictionMode, "GARBAGE_COLLECTION_MODE": p.GarbageCollectionMode} {
		if !controller.ValidMode(mode) {
			return fmt.Errorf("MILLRACE_PODEVICTOR_%s is %q; it must be active, shadow or off", name, mode)
		}
	}
	if p.EvictionMode != modeDelete && p.EvictionMode != modeEvict {
		return fmt.Errorf("MILLRACE_PODEVICTOR_EVICTION_MODE is %q; it must be delete or evict", p.EvictionMode)
	}
	for _, limit := range []struct {
		name  string
		rate  float64
		burst int
	}{
		{"POD_EVICTION", p.PodEvictionQPS, p.PodEvictionBurst},
		{"ZONE_POD_EVICTION", p.ZonePodEvictionQPS, p.ZonePodEvictionBurst},
	} {
		if !(limit.rate >= 0) || math.IsInf(limit.rate, 1) { // not a number either
			return fmt.Errorf("MILLRACE_PODEVICTOR_%s_QPS is %g; it must be a rate of 0 or more", limit.name, limit.rate)
		}
		if limit.burst < 0 {
			return fmt.Errorf("MILLRACE_PODEVICTOR_%s_BURST is %d; it must be 0 or more", limit.name, limit.burst)
		}
	}
	for name, d := range map[string]time.Duration{"ORPHAN_QUARANTINE": p.OrphanQuarantine, "GC_PERIOD": p.GCPeriod} {
		if d <= 0 {
			return fmt.Errorf("MILLRACE_PODEVICTOR_%s is %s; it must be more than 0", name, d)
		}
	}
	return nil
}
