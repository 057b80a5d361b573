package e2e

import (
	"context"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"google.golang.org/protobuf/proto"

	"github.com/millrace-io/millrace/deploy/fleet"
	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

// owners follows the leases of a role in the bucket, as they are written.
type owners struct {
	mu     sync.Mutex
	leases map[string]holding // by unit
	hosts  map[string]string  // member id → POD_NAME
}

// holding is who holds a unit, and since when anybody could know.
type holding struct {
	id    string
	epoch uint64
	at    time.Time
}

// followOwners follows until the test ends.
func followOwners(ctx context.Context, t *testing.T, f *fleet.Fleet, role string) *owners {
	t.Helper()
	nc, err := nats.Connect(f.NATS.URL, nats.MaxReconnects(-1), nats.ReconnectWait(50*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	bucket, err := js.KeyValue(ctx, "own_default")
	if err != nil {
		t.Fatal(err)
	}
	w, err := bucket.Watch(ctx, role+".>")
	if err != nil {
		t.Fatal(err)
	}
	o := &owners{leases: map[string]holding{}, hosts: map[string]string{}}
	caught := make(chan struct{})
	var tasks sync.WaitGroup
	tasks.Go(func() {
		done := sync.OnceFunc(func() { close(caught) })
		for e := range w.Updates() {
			if e == nil {
				done()
				continue
			}
			o.see(strings.TrimPrefix(e.Key(), role+"."), e)
		}
	})
	t.Cleanup(func() { _ = w.Stop(); tasks.Wait() })
	select {
	case <-caught:
	case <-ctx.Done():
		t.Fatal("the bucket could not be read")
	}
	return o
}

func (o *owners) see(key string, e jetstream.KeyValueEntry) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if id, ok := strings.CutPrefix(key, "m."); ok {
		var m millracev1.Member
		if e.Operation() == jetstream.KeyValuePut && len(e.Value()) > 0 && proto.Unmarshal(e.Value(), &m) == nil {
			o.hosts[id] = m.GetHost()
		}
		return
	}
	unit, ok := strings.CutPrefix(key, "p.")
	if !ok {
		return
	}
	var l millracev1.Lease
	if e.Operation() == jetstream.KeyValuePut {
		_ = proto.Unmarshal(e.Value(), &l)
	}
	o.leases[unit] = holding{l.GetHolder(), e.Revision(), time.Now()}
}

func (o *owners) all() map[string]holding {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.leases)
}

// host is the name of the process that holds a unit.
func (o *owners) host(unit string) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.hosts[o.leases[unit].id]
}

// unitsOf are the units that a process holds.
func (o *owners) unitsOf(host string) (units []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for unit, h := range o.leases {
		if h.id != "" && o.hosts[h.id] == host {
			units = append(units, unit)
		}
	}
	return units
}

// awaitTaken waits until every unit is held by somebody under a newer epoch than
// before, and returns when the last one was.
func (o *owners) awaitTaken(ctx context.Context, t *testing.T, before map[string]holding, units []string, within time.Duration) (last time.Time) {
	t.Helper()
	eventually(ctx, t, within, "units of the lost member taken over", func() (bool, string) {
		now := o.all()
		for _, u := range units {
			if h := now[u]; h.id == "" || h.epoch <= before[u].epoch || h.id == before[u].id {
				return false, "unit " + u + " is not"
			}
		}
		for _, u := range units {
			if at := now[u].at; at.After(last) {
				last = at
			}
		}
		return true, ""
	})
	return last
}
