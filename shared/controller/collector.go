package controller

import (
	"math"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/event"
)

// collector tells what is true at the moment of a scrape.
type collector struct {
	c          *Controller
	partitions *prometheus.Desc
	complete   *prometheus.Desc
	backlog    *prometheus.Desc
	oldest     *prometheus.Desc
	freshness  *prometheus.Desc
	objects    *prometheus.Desc
	opaque     *prometheus.Desc
	mode       *prometheus.Desc
	part       *prometheus.Desc
}

func newCollector(c *Controller) *collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("millrace_controller_"+name, help, labels, nil)
	}
	return &collector{
		c:          c,
		partitions: desc("partitions", "Partitions held."),
		complete:   desc("partitions_complete", "Partitions held whose inputs are complete."),
		backlog:    desc("backlog", "Keys that are not reconciled."),
		oldest:     desc("oldest_seconds", "Seconds the oldest of them has waited."),
		freshness:  desc("freshness_seconds", "Seconds since the last bookmark that agreed, over the partitions the oldest; +Inf if one had none in its replay.", "kind"),
		objects:    desc("objects", "Objects cached.", "kind"),
		mode:       desc("mode", "1 for the mode that the role is in; 0 for all while it is not known.", "mode"),
		part:       desc("part_mode", "1 for the mode that holds for a part of the role; 0 for all while it is not known.", "part", "mode"),
		opaque:     desc("objects_opaque", "Objects that cannot be read.", "kind"),
	}
}

// Describe implements prometheus.Collector.
func (x *collector) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{x.partitions, x.complete, x.backlog, x.oldest, x.freshness, x.objects, x.opaque, x.mode, x.part} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (x *collector) Collect(out chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	var complete, backlog int
	var oldest time.Duration
	held := x.c.partitions()
	for _, p := range held {
		p.mu.Lock()
		if at, ok := p.complete(); ok && at == p.opened {
			complete++
		}
		p.mu.Unlock()
		keys, since := p.ledger.waiting()
		backlog += keys
		if !since.IsZero() {
			oldest = max(oldest, time.Since(since))
		}
	}
	gauge(x.partitions, float64(len(held)))
	gauge(x.complete, float64(complete))
	gauge(x.backlog, float64(backlog))
	gauge(x.oldest, oldest.Seconds())

	x.modes(gauge)
	kinds := x.c.kinds()
	for _, kind := range x.c.inputs() {
		st, held := kinds[kind]
		age := st.Age.Seconds()
		if held && !st.Known {
			age = math.Inf(1)
		}
		gauge(x.freshness, age, string(kind))
		gauge(x.objects, float64(st.Objects), string(kind))
		gauge(x.opaque, float64(st.Opaque), string(kind))
	}
}

func (x *collector) modes(gauge func(d *prometheus.Desc, v float64, labels ...string)) {
	is := func(mode, now string) float64 {
		if mode == now {
			return 1
		}
		return 0
	}
	for _, mode := range []string{ModeOff, ModeShadow, ModeActive} {
		gauge(x.mode, is(mode, x.c.modes.mode()), mode)
		for part := range x.c.parts {
			gauge(x.part, is(mode, x.c.modeOf(part)), part, mode)
		}
	}
}

// inputs returns all kinds that the role reads.
func (c *Controller) inputs() (kinds []event.Kind) {
	for _, in := range c.def.Inputs {
		kinds = append(kinds, in.Kind)
	}
	for _, in := range c.def.Wide {
		kinds = append(kinds, in.Kind)
	}
	return kinds
}
