package watcher

import (
	"cmp"
	"slices"
	"time"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/telemetry"
)

// watchOver names what /readyz asks besides the edges and the membership: the
// streams, and each kind that is held here.
func (h *holder) watchOver(health *telemetry.Health) (remove func()) {
	removes := []func(){health.Ready("streams", h.keeper.state)}
	for kind, k := range h.all() {
		removes = append(removes, health.Ready(string(kind), func() error { return k.status.ready(time.Now()) }))
		if k.beats != nil {
			removes = append(removes, health.Ready("heartbeats", func() error { return k.beats.status.ready(time.Now()) }))
		}
	}
	return func() {
		for _, f := range removes {
			f()
		}
	}
}

// memberStatus is what this member says of the kinds it holds.
func (h *holder) memberStatus() *millracev1.MemberStatus {
	now := time.Now()
	status := &millracev1.MemberStatus{}
	for _, k := range h.all() {
		if unit, kind := k.status.proto(now); kind != nil {
			status.Partitions = append(status.Partitions, unit)
			status.Kinds = append(status.Kinds, kind)
		}
		if k.beats != nil {
			status.Heartbeats = cmp.Or(k.beats.status.proto(now), status.GetHeartbeats())
		}
	}
	slices.SortFunc(status.GetPartitions(), func(a, b *millracev1.PartitionStatus) int {
		return cmp.Compare(a.GetUnit(), b.GetUnit())
	})
	slices.SortFunc(status.GetKinds(), func(a, b *millracev1.KindStatus) int {
		return cmp.Compare(a.GetKind(), b.GetKind())
	})
	return status
}
