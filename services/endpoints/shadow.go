package endpoints

import (
	"fmt"
	"slices"
	"strings"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/event"
)

// reachable is what the slices of a service say, however they are packed: per
// address type, ports and address, the endpoint's conditions, node and zone.
type reachable map[string]string

// reachableBy returns what slices of ours say.
func reachableBy(all []*discoveryv1.EndpointSlice) reachable {
	out := reachable{}
	for _, slice := range all {
		if _, ok := ours(slice); !ok || slice.DeletionTimestamp != nil {
			continue
		}
		ports := spellPorts(slice)
		for i := range slice.Endpoints {
			e := &slice.Endpoints[i]
			for _, address := range e.Addresses {
				out[fmt.Sprintf("%s %s %s", slice.AddressType, address, ports)] = sayEndpoint(e)
			}
		}
	}
	return out
}

// spellPorts spells a slice's ports, in an order of their own.
func spellPorts(slice *discoveryv1.EndpointSlice) string {
	var out []string
	for i := range slice.Ports {
		p := &slice.Ports[i]
		out = append(out, fmt.Sprintf("%s:%d/%s%s", value(p.Name), value(p.Port), value(p.Protocol), value(p.AppProtocol)))
	}
	slices.Sort(out)
	return "[" + strings.Join(out, " ") + "]"
}

// sayEndpoint spells what clients read of an endpoint. An absent condition means
// ready and serving, and not terminating.
func sayEndpoint(e *discoveryv1.Endpoint) string {
	is := func(b *bool, otherwise bool) bool {
		if b == nil {
			return otherwise
		}
		return *b
	}
	target := ""
	if e.TargetRef != nil {
		target = e.TargetRef.Kind + " " + e.TargetRef.Name
	}
	return fmt.Sprintf("ready=%t serving=%t terminating=%t node=%s zone=%s target=%s hostname=%s",
		is(e.Conditions.Ready, true), is(e.Conditions.Serving, true), is(e.Conditions.Terminating, false),
		value(e.NodeName), value(e.Zone), target, value(e.Hostname))
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// compareSlices says how what would have been written differs from the slices
// that are there. Which slice holds an endpoint does not count.
func compareSlices(p view, key event.Key, want reachable) []controller.Difference {
	var have reachable
	p.View(func(r cache.Reader) {
		have = reachableBy(cache.ByIndex[*discoveryv1.EndpointSlice](r, sliceKind, byService, key.String()))
	})
	var out []controller.Difference
	for at, says := range want {
		if is, there := have[at]; !there {
			out = append(out, controller.Difference{Field: at, Want: says, Have: "nothing"})
		} else if is != says {
			out = append(out, controller.Difference{Field: at, Want: says, Have: is})
		}
	}
	for at, says := range have {
		if _, wanted := want[at]; !wanted {
			out = append(out, controller.Difference{Field: at, Want: "nothing", Have: says})
		}
	}
	slices.SortFunc(out, func(a, b controller.Difference) int { return strings.Compare(a.Field, b.Field) })
	return out
}
