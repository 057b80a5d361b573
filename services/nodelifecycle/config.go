package nodelifecycle

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
	role = "nodelifecycle"
	// component is the source of our events. Source: contract 1, section 8.
	component = "node-controller"
)

// Config is everything an operator may set; each field names its unit.
type Config struct {
	Bus        bus.Config        `envconfig:"NATS"`
	Kube       kube.Config       `envconfig:"KUBE"`
	Controller controller.Config `envconfig:"CONTROLLER"`
	Policy     policy            `envconfig:"NODELIFECYCLE"`
}

// policy is what decisions read. The names are upstream's flags, and so are the
// defaults of v1.37, but where a field says otherwise.
type policy struct {
	// NodeMonitorPeriod is how long a node must have been seen not Ready, and no
	// more nodes become so, before it may be tainted NoExecute. Unit: time.
	// Default: --node-monitor-period.
	NodeMonitorPeriod time.Duration `split_words:"true" default:"5s"`
	// NodeMonitorGracePeriod is how long a node may be silent. Unit: time, more
	// than 45s, which is what a kubelet may need to find its connection broken.
	// Default: --node-monitor-grace-period.
	NodeMonitorGracePeriod time.Duration `split_words:"true" default:"50s"`
	// NodeStartupGracePeriod is how long a node may be silent that has never
	// reported. Unit: time. Default: --node-startup-grace-period.
	NodeStartupGracePeriod time.Duration `split_words:"true" default:"60s"`
	// NodeEvictionRate is how many nodes of a zone are tainted NoExecute. Unit:
	// nodes per second, over all replicas; 0: none. Default: --node-eviction-rate.
	NodeEvictionRate float64 `split_words:"true" default:"0.1"`
	// SecondaryNodeEvictionRate is that of a large zone in which too many are not
	// ready. Unit: nodes per second. Default: --secondary-node-eviction-rate.
	SecondaryNodeEvictionRate float64 `split_words:"true" default:"0.01"`
	// LargeClusterSizeThreshold: a zone of no more nodes is not large, and its
	// secondary rate is 0. Unit: nodes. Default: --large-cluster-size-threshold.
	LargeClusterSizeThreshold int `split_words:"true" default:"50"`
	// UnhealthyZoneThreshold is which share of its nodes must be not ready for a
	// zone to count as unhealthy. Unit: share, above 0, at most 1. Default:
	// --unhealthy-zone-threshold.
	UnhealthyZoneThreshold float64 `split_words:"true" default:"0.55"`
	// DeadZoneEvictionRate is that of a zone in which nobody is ready, while there
	// are others. Unit: nodes per second; 0: none; negative: as NodeEvictionRate.
	// Default: ours, upstream has none.
	DeadZoneEvictionRate float64 `split_words:"true" default:"-1"`
	// MarkPodsOfNotReadyNodes makes pods not Ready also where the kubelet itself
	// reports that its node is not. Default: ours; upstream does not.
	MarkPodsOfNotReadyNodes bool `split_words:"true" default:"false"`
}

// lowGrace is the grace below which a kubelet behind a broken connection looks
// dead. Unit: time. Source: contract 1, section 2: HTTP/2 ping 30 s and idle 15 s.
const lowGrace = 45 * time.Second

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
	for _, s := range []struct {
		name  string
		value time.Duration
	}{
		{"NODE_MONITOR_PERIOD", p.NodeMonitorPeriod},
		{"NODE_MONITOR_GRACE_PERIOD", p.NodeMonitorGracePeriod},
		{"NODE_STARTUP_GRACE_PERIOD", p.NodeStartupGracePeriod},
	} {
		if s.value <= 0 {
			return fmt.Errorf("MILLRACE_NODELIFECYCLE_%s is %s; it must be more than 0", s.name, s.value)
		}
	}
	for _, s := range []struct {
		name       string
		value, min float64
	}{
		{"NODE_EVICTION_RATE", p.NodeEvictionRate, 0},
		{"SECONDARY_NODE_EVICTION_RATE", p.SecondaryNodeEvictionRate, 0},
		{"DEAD_ZONE_EVICTION_RATE", p.DeadZoneEvictionRate, math.Inf(-1)},
	} {
		if !(s.value >= s.min) || math.IsInf(s.value, 1) { // not a number either
			return fmt.Errorf("MILLRACE_NODELIFECYCLE_%s is %g; it must be a rate of %g or more", s.name, s.value, s.min)
		}
	}
	switch {
	case p.LargeClusterSizeThreshold < 0:
		return fmt.Errorf("MILLRACE_NODELIFECYCLE_LARGE_CLUSTER_SIZE_THRESHOLD is %d; it must be 0 or more", p.LargeClusterSizeThreshold)
	case !(p.UnhealthyZoneThreshold > 0 && p.UnhealthyZoneThreshold <= 1): // not a number either
		return fmt.Errorf("MILLRACE_NODELIFECYCLE_UNHEALTHY_ZONE_THRESHOLD is %g; it must be above 0 and at most 1", p.UnhealthyZoneThreshold)
	}
	return nil
}
