package watcher

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/kube"
)

// Config is everything an operator may set.
type Config struct {
	Bus  bus.Config  `envconfig:"NATS"`
	Kube kube.Config `envconfig:"KUBE"`
	Kinds
}

// Kinds is which kinds the watchers of a cluster share among them. All of them
// must be told the same.
type Kinds struct {
	// Kinds are carried as controllers read them, or, where no controller reads
	// more, as metadata. Written as kubectl takes them: resource.group. Default:
	// what the controllers of this release read.
	Kinds []event.Kind `envconfig:"WATCHER_KINDS" default:"nodes,pods,services,endpoints,endpointslices.discovery.k8s.io,resourcequotas,persistentvolumeclaims,resourceclaims.resource.k8s.io,deviceclasses.resource.k8s.io,replicationcontrollers,namespaces"`
	// Metadata are further kinds, carried as metadata only: what quota is to
	// count. Default: none.
	Metadata []event.Kind `envconfig:"WATCHER_KINDS_METADATA"`
	// TombstoneLife is how long the last word on a deleted object stays in the
	// stream. Unit: Go duration, at least 1s, the server's smallest. Default:
	// architecture section 3; a reader that was away for longer replays anyway.
	TombstoneLife time.Duration `envconfig:"WATCHER_TOMBSTONE_LIFE" default:"24h"`
}

// kindShape is how the API spells resources and groups.
var kindShape = regexp.MustCompile(`^[a-z][a-z0-9-]*(\.[a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$`)

// heartbeats are not carried: one event per node and ten seconds.
const heartbeats event.Kind = "leases.coordination.k8s.io"

// Validate says what is wrong, in the operator's words.
func (k Kinds) Validate() error {
	all := slices.Concat(k.Kinds, k.Metadata)
	if len(all) == 0 {
		return fmt.Errorf("MILLRACE_WATCHER_KINDS is empty; it must name at least one kind")
	}
	if k.TombstoneLife != 0 && k.TombstoneLife < time.Second {
		return fmt.Errorf("MILLRACE_WATCHER_TOMBSTONE_LIFE is %s; it must be at least 1s", k.TombstoneLife)
	}
	for i, kind := range all {
		setting := "MILLRACE_WATCHER_KINDS"
		if i >= len(k.Kinds) {
			setting = "MILLRACE_WATCHER_KINDS_METADATA"
		}
		switch {
		case !kindShape.MatchString(string(kind)):
			return fmt.Errorf("%s has %q; a kind is written resource.group, as in endpointslices.discovery.k8s.io", setting, kind)
		case kind == heartbeats:
			return fmt.Errorf("%s has %s; heartbeats do not travel one by one", setting, kind)
		case slices.Contains(all[:i], kind):
			return fmt.Errorf("%s has %s, which is named twice", setting, kind)
		case i >= len(k.Kinds) && withBody[kind]:
			return fmt.Errorf("%s has %s, whose readers need more; name it in MILLRACE_WATCHER_KINDS", setting, kind)
		}
	}
	return nil
}

// units are all kinds in an order that does not depend on how they were named,
// so that every watcher has the same list.
func (k Kinds) units() []string {
	var units []string
	for _, kind := range slices.Concat(k.Kinds, k.Metadata) {
		units = append(units, string(kind))
	}
	slices.Sort(units)
	return units
}
