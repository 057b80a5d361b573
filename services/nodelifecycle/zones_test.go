package nodelifecycle

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"pgregory.net/rapid"
)

// crowd makes n nodes alike.
func crowd(name string, n int, options ...nodeOption) (out []*corev1.Node) {
	for i := range n {
		out = append(out, node(fmt.Sprint(name, i), options...))
	}
	return out
}

func join(crowds ...[]*corev1.Node) (out []*corev1.Node) {
	for _, c := range crowds {
		out = append(out, c...)
	}
	return out
}

// The key of zone "a" without a region: contract 1, section 6.
const zoneA, zoneB = ":\x00:a", ":\x00:b"

// Contract 1, section 10, the cases of zone states, and section 6.
func TestZoneStates(t *testing.T) {
	t.Parallel()
	gone := labelled("node.kubernetes.io/exclude-disruption", "")
	tests := map[string]struct {
		nodes []*corev1.Node
		want  map[string]zoneState
		down  bool
	}{
		"one ready node without zone labels: zone \"\" normal":       {nodes: crowd("n", 1, ready), want: map[string]zoneState{"": zoneNormal}},
		"two zones, all sick: full, full":                            {nodes: join(crowd("a", 2, in("a"), unheard), crowd("b", 2, in("b"), unheard)), want: map[string]zoneState{zoneA: zoneFull, zoneB: zoneFull}, down: true},
		"two zones, all sick, one recovers: normal for it, full":     {nodes: join(crowd("a", 2, in("a"), ready), crowd("b", 2, in("b"), unheard)), want: map[string]zoneState{zoneA: zoneNormal, zoneB: zoneFull}},
		"4 nodes without conditions: full":                           {nodes: crowd("n", 4), want: map[string]zoneState{"": zoneFull}, down: true},
		"3 of 4 Unknown: partial":                                    {nodes: join(crowd("s", 3, unheard), crowd("r", 1, ready)), want: map[string]zoneState{"": zonePartial}},
		"2 of 5 sick: normal":                                        {nodes: join(crowd("s", 2, sick), crowd("r", 3, ready)), want: map[string]zoneState{"": zoneNormal}},
		"3 of 5 sick: partial":                                       {nodes: join(crowd("s", 3, sick), crowd("r", 2, ready)), want: map[string]zoneState{"": zonePartial}},
		"2 of 3 sick: normal":                                        {nodes: join(crowd("s", 2, sick), crowd("r", 1, ready)), want: map[string]zoneState{"": zoneNormal}},
		"3 of 3 sick: full":                                          {nodes: crowd("s", 3, sick), want: map[string]zoneState{"": zoneFull}, down: true},
		"1 of 1 sick: full":                                          {nodes: crowd("s", 1, sick), want: map[string]zoneState{"": zoneFull}, down: true},
		"Ready condition removed from the only node: full":           {nodes: crowd("s", 1, says("MemoryPressure", "False")), want: map[string]zoneState{"": zoneFull}, down: true},
		"exactly 0.55 is partial":                                    {nodes: join(crowd("s", 11, sick), crowd("r", 9, ready)), want: map[string]zoneState{"": zonePartial}},
		"below 0.55 is normal":                                       {nodes: join(crowd("s", 6, sick), crowd("r", 5, ready)), want: map[string]zoneState{"": zoneNormal}},
		"only healthy node carries the exclusion label: full":        {nodes: join(crowd("s", 2, sick), crowd("r", 1, ready, gone)), want: map[string]zoneState{"": zoneFull}, down: true},
		"the exclusion label with any value":                         {nodes: join(crowd("s", 2, sick), crowd("r", 1, ready, labelled("node.kubernetes.io/exclude-disruption", "false"))), want: map[string]zoneState{"": zoneFull}, down: true},
		"exclusion, no labels: counted":                              {nodes: crowd("n", 1, ready), want: map[string]zoneState{"": zoneNormal}},
		"exclusion, a node named like a master: counted":             {nodes: crowd("my-master-", 1, ready), want: map[string]zoneState{"": zoneNormal}},
		"exclusion, labelled like a control plane: counted":          {nodes: crowd("n", 1, ready, labelled("node-role.kubernetes.io/control-plane", "")), want: map[string]zoneState{"": zoneNormal}},
		"a sick node that is excluded makes no zone sick":            {nodes: join(crowd("s", 3, sick, gone), crowd("r", 1, ready)), want: map[string]zoneState{"": zoneNormal}},
		"nobody counts: no zone, and nothing is down":                {nodes: crowd("s", 3, sick, gone), want: map[string]zoneState{}},
		"no node at all: nothing is down":                            {want: map[string]zoneState{}},
		"a cordoned ready node is ready":                             {nodes: crowd("n", 1, ready, unschedulable), want: map[string]zoneState{"": zoneNormal}},
		"a zone of excluded nodes beside one that is down: all down": {nodes: join(crowd("a", 2, in("a"), unheard), crowd("b", 1, in("b"), ready, gone)), want: map[string]zoneState{zoneA: zoneFull}, down: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := count(tt.nodes)
			if len(c.zones) != len(tt.want) {
				t.Errorf("%d zones, want %d", len(c.zones), len(tt.want))
			}
			for name, want := range tt.want {
				if got := c.zones[name].state(0.55); got != want {
					t.Errorf("zone %q is %s, want %s", name, got, want)
				}
			}
			if c.allDown() != tt.down {
				t.Errorf("allDown() = %v", c.allDown())
			}
		})
	}
}

// Contract 1, section 6: "<region>:\0:<zone>", the beta labels win, neither is a
// valid zone.
func TestZoneKeys(t *testing.T) {
	t.Parallel()
	const (
		region, zone         = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
		betaRegion, betaZone = "failure-domain.beta.kubernetes.io/region", "failure-domain.beta.kubernetes.io/zone"
	)
	tests := map[string]struct {
		labels []string
		want   string
	}{
		"neither: the empty zone": {nil, ""},
		"both":                    {[]string{region, "r", zone, "z"}, "r:\x00:z"},
		"region alone":            {[]string{region, "r"}, "r:\x00:"},
		"zone alone":              {[]string{zone, "z"}, ":\x00:z"},
		"the beta labels":         {[]string{betaRegion, "r", betaZone, "z"}, "r:\x00:z"},
		"the beta labels win":     {[]string{region, "r", zone, "z", betaRegion, "R", betaZone, "Z"}, "R:\x00:Z"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := node("n", labelled(tt.labels...))
			if got := zoneOf(n); got != tt.want {
				t.Errorf("zoneOf() = %q, want %q", got, tt.want)
			}
			if got := zoneOf(trimNode(n)); got != tt.want {
				t.Errorf("of what the cache keeps it is %q, want %q", got, tt.want)
			}
		})
	}
}

// Contract 1, section 6, the table of rates, and our own rate of a dead zone.
func TestRatesOfZones(t *testing.T) {
	t.Parallel()
	well := crowd("b", 1, in("b"), ready)
	dead := join(well, crowd("a", 4, in("a"), unheard))
	tests := map[string]struct {
		nodes []*corev1.Node
		set   func(p *policy)
		want  float64
	}{
		"normal: the eviction rate":                                  {nodes: join(well, crowd("a", 3, in("a"), ready), crowd("s", 1, in("a"), sick)), want: 0.1},
		"normal in the only zone":                                    {nodes: join(crowd("a", 3, in("a"), ready), crowd("s", 1, in("a"), sick)), want: 0.1},
		"partial, more than 50: 0.01":                                {nodes: join(crowd("s", 41, in("a"), sick), crowd("a", 10, in("a"), ready)), want: 0.01},
		"partial, exactly 50: stop":                                  {nodes: join(crowd("s", 40, in("a"), sick), crowd("a", 10, in("a"), ready)), want: 0},
		"partial, excluded nodes do not make it large":               {nodes: join(crowd("s", 40, in("a"), sick), crowd("a", 10, in("a"), ready), crowd("x", 9, in("a"), ready, labelled(labelExclude, ""))), want: 0},
		"full, some other zone not full: 0.1":                        {nodes: dead, want: 0.1},
		"full in all zones: 0":                                       {nodes: join(crowd("b", 1, in("b"), sick), crowd("a", 4, in("a"), unheard)), want: 0},
		"full in all zones, one of which is that of no labels: 0":    {nodes: join(crowd("b", 1, sick), crowd("a", 4, in("a"), unheard)), want: 0},
		"full in all zones, and the dead zone's own rate: 0":         {nodes: crowd("a", 4, in("a"), unheard), set: func(p *policy) { p.DeadZoneEvictionRate = 3 }, want: 0},
		"ours: a dead zone's own rate":                               {nodes: dead, set: func(p *policy) { p.DeadZoneEvictionRate = 3 }, want: 3},
		"ours: a dead zone's own rate may be 0":                      {nodes: dead, set: func(p *policy) { p.DeadZoneEvictionRate = 0 }, want: 0},
		"ours: a dead zone's own rate is not that of a sick one":     {nodes: join(well, crowd("a", 3, in("a"), ready), crowd("s", 1, in("a"), sick)), set: func(p *policy) { p.DeadZoneEvictionRate = 3 }, want: 0.1},
		"a rate of 0 is kept":                                        {nodes: dead, set: func(p *policy) { p.NodeEvictionRate = 0 }, want: 0},
		"the threshold is the operator's":                            {nodes: join(well, crowd("a", 3, in("a"), ready), crowd("s", 3, in("a"), sick)), set: func(p *policy) { p.UnhealthyZoneThreshold = 0.5 }, want: 0},
		"the size is the operator's":                                 {nodes: join(well, crowd("a", 2, in("a"), ready), crowd("s", 3, in("a"), sick)), set: func(p *policy) { p.LargeClusterSizeThreshold = 4 }, want: 0.01},
		"a zone of which no node counts is as one that does well":    {nodes: join(well, crowd("a", 2, in("a"), sick, labelled(labelExclude, ""))), want: 0.1},
		"nobody counts anywhere: as upstream, whose queues begin so": {nodes: crowd("a", 2, in("a"), sick, labelled(labelExclude, "")), want: 0.1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := defaults()
			if tt.set != nil {
				tt.set(&p)
			}
			if got := count(tt.nodes).rate(zoneA, &p); got != tt.want {
				t.Errorf("rate() = %g, want %g", got, tt.want)
			}
		})
	}
}

// Upstream changes a limiter only when a zone's state changes, so growth across 50
// nodes within one state does not change the rate. Ours is a function of what is:
// it does.
func TestAZoneThatGrowsWithinOneStateChangesItsRate(t *testing.T) {
	t.Parallel()
	p := defaults()
	small := join(crowd("s", 40, in("a"), sick), crowd("a", 10, in("a"), ready))
	grown := join(small, crowd("t", 1, in("a"), ready))
	if before, after := count(small).rate(zoneA, &p), count(grown).rate(zoneA, &p); before != 0 || after != 0.01 {
		t.Errorf("rates %g and %g, want 0 and 0.01", before, after)
	}
}

// Gauges of section 9: percent ready, size and unhealthy nodes are of those that
// count; an empty zone is 100 % healthy.
func TestZoneHealth(t *testing.T) {
	t.Parallel()
	c := count(join(crowd("r", 3, ready), crowd("s", 1, unheard), crowd("x", 5, sick, labelled(labelExclude, ""))))
	if z := c.zones[""]; z.size() != 4 || z.notReady != 1 || z.health() != 75 {
		t.Errorf("size %d, %d not ready, health %g; want 4, 1, 75", z.size(), z.notReady, z.health())
	}
	if got := (zone{}).health(); got != 100 {
		t.Errorf("an empty zone's health is %g", got)
	}
	if c.notReady != 6 {
		t.Errorf("%d sick nodes in all, want 6: the quiet rule looks at those that do not count too", c.notReady)
	}
}

// The same nodes in any order say the same, to every member: architecture 8.
func TestTheOrderOfNodesDoesNotMatter(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) *corev1.Node {
			n := anyNode.Draw(t, "node")
			if z := rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "zone"); z != "" {
				in(z)(n)
			}
			if rapid.Bool().Draw(t, "excluded") {
				labelled(labelExclude, "")(n)
			}
			return n
		}), 0, 20).Draw(t, "nodes")
		p, a := defaults(), count(nodes)
		b := count(rapid.Permutation(nodes).Draw(t, "order"))
		for _, z := range []string{"", zoneA, zoneB} {
			if a.rate(z, &p) != b.rate(z, &p) {
				t.Errorf("zone %q: %g and %g", z, a.rate(z, &p), b.rate(z, &p))
			}
			if a.allDown() && a.rate(z, &p) != 0 {
				t.Errorf("zone %q has a rate of %g while all are down", z, a.rate(z, &p))
			}
		}
		if a.allDown() != b.allDown() {
			t.Error("all zones are down, and are not")
		}
	})
}
