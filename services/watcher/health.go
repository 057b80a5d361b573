package watcher

import (
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/lease"
	"github.com/millrace-io/millrace/shared/process"
	"github.com/millrace-io/millrace/shared/telemetry"
)

// started is when this process began, for people.
var started = time.Now()

// watchOver names what /readyz asks: the streams, the membership, and each kind
// that is held here.
func (h *holder) watchOver(health *telemetry.Health, members *lease.Lease) (remove func()) {
	removes := []func(){
		health.Ready("streams", h.keeper.state),
		health.Ready("members", members.Ready),
	}
	for kind, k := range h.kinds {
		removes = append(removes, health.Ready(string(kind), func() error { return k.status.ready(time.Now()) }))
	}
	return func() {
		for _, f := range removes {
			f()
		}
	}
}

// answer is what this member says of itself.
func (h *holder) answer(member, host string, env *process.Env) []byte {
	now := time.Now()
	status := &millracev1.MemberStatus{
		Member: &millracev1.Member{
			Id: member, Role: role, Host: host, Version: env.Version, Started: timestamppb.New(started),
		},
		NotReady: env.Health.Missing(),
	}
	for _, k := range h.kinds {
		if unit, kind := k.status.proto(now); kind != nil {
			status.Partitions = append(status.Partitions, unit)
			status.Kinds = append(status.Kinds, kind)
		}
	}
	data, err := proto.Marshal(status)
	if err != nil {
		return nil
	}
	return data
}
