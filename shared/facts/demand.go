package facts

import (
	"context"
	"slices"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// Demand is which kinds are read besides those that watchers are set to carry,
// by who reads them: the watchers carry these too, as metadata.
type Demand struct {
	topic *Topic[millracev1.Demand, *millracev1.Demand]
	view  *View[millracev1.Demand, *millracev1.Demand]
}

// NewDemand returns what is demanded.
func NewDemand(store Store) *Demand {
	topic := New[millracev1.Demand](store, "demand")
	return &Demand{topic: topic, view: topic.View()}
}

// Set says what who reads; nothing takes the demand back.
func (d *Demand) Set(ctx context.Context, who string, kinds []event.Kind) error {
	if len(kinds) == 0 {
		return d.topic.Forget(ctx, who)
	}
	names := make([]string, len(kinds))
	for i, k := range kinds {
		names[i] = string(k)
	}
	slices.Sort(names)
	_, err := d.topic.Update(ctx, who, func(m *millracev1.Demand) bool {
		if slices.Equal(m.GetKinds(), names) {
			return false
		}
		m.Kinds = names
		return true
	})
	return err
}

// Run follows what is demanded until ctx ends.
func (d *Demand) Run(ctx context.Context) { d.view.Run(ctx) }

// Kinds returns what is demanded by anybody, each kind once, sorted; complete is
// as for View.All.
func (d *Demand) Kinds() (kinds []event.Kind, complete bool) {
	facts, complete := d.view.All()
	for _, m := range facts {
		for _, k := range m.GetKinds() {
			kinds = append(kinds, event.Kind(k))
		}
	}
	slices.Sort(kinds)
	return slices.Compact(kinds), complete
}

// Changed returns a channel that is closed when Kinds has something else to say.
func (d *Demand) Changed() <-chan struct{} { return d.view.Changed() }
