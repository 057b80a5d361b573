package nodelifecycle

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/node/topology"
)

// What the nodes of all zones together say. Every member counts for itself, what
// the API shows: the same numbers for everybody, and nobody to ask.

// zoneState is how a zone does. Source: contract 1, section 6.
type zoneState uint8

const (
	zoneNormal zoneState = iota
	// zonePartial: so many are not ready that it may well be us who are wrong.
	zonePartial
	// zoneFull: nobody is ready.
	zoneFull
)

func (s zoneState) String() string { return [...]string{"normal", "partial", "full"}[s] }

// labelExclude takes a node out of the count, whatever its value. Source: contract
// 1, section 4.4.
const labelExclude = "node.kubernetes.io/exclude-disruption"

// fewNodes is how many nodes must be not ready at least for a zone to be in
// trouble. Source: contract 1, section 6: more than 2.
const fewNodes = 3

// zone counts the nodes of one zone that count.
type zone struct{ ready, notReady int }

func (z zone) size() int { return z.ready + z.notReady }

// health is the share of ready nodes in percent.
func (z zone) health() float64 {
	if z.size() == 0 {
		return 100
	}
	return 100 * float64(z.ready) / float64(z.size())
}

func (z zone) state(unhealthy float64) zoneState {
	switch {
	case z.ready == 0 && z.notReady > 0:
		return zoneFull
	case z.notReady >= fewNodes && float64(z.notReady)/float64(z.size()) >= unhealthy:
		return zonePartial
	default:
		return zoneNormal
	}
}

// census is one count of all nodes.
type census struct {
	zones    map[string]zone
	notReady int // in all zones, those that do not count included
}

// count counts nodes.
func count(nodes []*corev1.Node) census {
	c := census{zones: make(map[string]zone)}
	for _, n := range nodes {
		ready := isReady(n)
		if !ready {
			c.notReady++
		}
		if _, excluded := n.Labels[labelExclude]; excluded {
			continue
		}
		key := zoneOf(n)
		z := c.zones[key]
		if ready {
			z.ready++
		} else {
			z.notReady++
		}
		c.zones[key] = z
	}
	return c
}

func isReady(n *corev1.Node) bool {
	status, _ := statusOf(n, corev1.NodeReady)
	return status == corev1.ConditionTrue
}

// zoneOf names the zone of a node; empty is a zone too.
func zoneOf(n *corev1.Node) string { return topology.GetZoneKey(n) }

// nameOf is the key of a zone for people: region/zone, as far as there are such.
func nameOf(zone string) string { return strings.Trim(strings.ReplaceAll(zone, ":\x00:", "/"), "/") }

// allDown: there are zones, and nobody is ready in any.
func (c census) allDown() bool {
	for _, z := range c.zones {
		if z.ready > 0 {
			return false
		}
	}
	return len(c.zones) > 0
}

// rate returns how many nodes of a zone may be tainted NoExecute per second; 0:
// none. A zone in which no node counts is as one that does well.
func (c census) rate(name string, p *policy) float64 {
	if c.allDown() {
		return 0
	}
	z := c.zones[name]
	switch z.state(p.UnhealthyZoneThreshold) {
	case zoneFull:
		if p.DeadZoneEvictionRate >= 0 {
			return p.DeadZoneEvictionRate
		}
		return p.NodeEvictionRate
	case zonePartial:
		if z.size() > p.LargeClusterSizeThreshold {
			return p.SecondaryNodeEvictionRate
		}
		return 0
	default:
		return p.NodeEvictionRate
	}
}
