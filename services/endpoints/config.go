package endpoints

import (
	"fmt"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/kube"
)

const (
	// role names the deployment, its leases and its durable positions.
	role = "endpoints"
	// manager is the field manager of our writes.
	manager = "millrace-endpoints"
	// component is the source of our events. Source: contract 3, table of
	// controllers.
	component = "endpoint-slice-controller"
)

// Config is everything an operator may set; each field names its unit.
type Config struct {
	Bus        bus.Config        `envconfig:"NATS"`
	Kube       kube.Config       `envconfig:"KUBE"`
	Controller controller.Config `envconfig:"CONTROLLER"`
	Policy     policy            `envconfig:"ENDPOINTS"`
}

// policy is what decisions read. The names are upstream's flags.
type policy struct {
	// MaxEndpointsPerSlice is how many endpoints a slice may hold.
	// Unit: endpoints, 1 to 1000. Default: kube-controller-manager v1.37,
	// --max-endpoints-per-slice.
	MaxEndpointsPerSlice int32 `split_words:"true" default:"100"`
}

// Validate says what is wrong, in the operator's words.
func (c Config) Validate() error {
	if err := c.Bus.Validate(); err != nil {
		return err
	}
	if err := c.Kube.Validate(); err != nil {
		return err
	}
	if err := c.Controller.Validate(); err != nil {
		return err
	}
	if n := c.Policy.MaxEndpointsPerSlice; n < 1 || n > 1000 {
		return fmt.Errorf("MILLRACE_ENDPOINTS_MAX_ENDPOINTS_PER_SLICE is %d; it must be 1 to 1000", n)
	}
	return nil
}
