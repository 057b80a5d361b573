package bus

import (
	"maps"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

// ⚠ A server that was killed brings expired keys back.
func TestKeysThatShouldHaveExpiredAreTold(t *testing.T) {
	at := func(seconds int) time.Time { return time.Unix(1_000_000+int64(seconds), 0) }
	type entry struct {
		key    string
		rev    uint64
		stored time.Time
		life   string
		marker bool
	}
	tests := map[string]struct {
		entries []entry
		want    map[string]uint64
	}{
		"nothing": {want: map[string]uint64{}},
		"a member dead for an hour, among others that renew": {
			entries: []entry{
				{key: "m.dead", rev: 1, stored: at(0), life: "6s"},
				{key: "m.a", rev: 2, stored: at(3598), life: "6s"},
				{key: "m.b", rev: 3, stored: at(3600), life: "6s"},
			},
			want: map[string]uint64{"m.dead": 1},
		},
		"its life is not quite over": {
			entries: []entry{
				{key: "m.late", rev: 1, stored: at(0), life: "6s"},
				{key: "m.a", rev: 2, stored: at(6), life: "6s"},
			},
			want: map[string]uint64{},
		},
		"a lease has no end": {
			entries: []entry{
				{key: "p.1", rev: 1, stored: at(0)},
				{key: "m.a", rev: 2, stored: at(3600), life: "6s"},
			},
			want: map[string]uint64{},
		},
		"a key that says it is gone is gone": {
			entries: []entry{
				{key: "m.gone", rev: 1, stored: at(0), life: "60s", marker: true},
				{key: "m.a", rev: 2, stored: at(3600), life: "6s"},
			},
			want: map[string]uint64{},
		},
		"renewed after it was first read": {
			entries: []entry{
				{key: "m.a", rev: 1, stored: at(0), life: "6s"},
				{key: "m.b", rev: 2, stored: at(20), life: "6s"},
				{key: "m.a", rev: 3, stored: at(21), life: "6s"},
			},
			want: map[string]uint64{},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			r := revived{}
			for _, e := range tt.entries {
				header := nats.Header{}
				if e.life != "" {
					header[jetstream.MsgTTLHeader] = []string{e.life}
				}
				r.note(e.key, delivery{Msg: &nats.Msg{Header: header}, Seq: e.rev, Stored: e.stored}, e.marker)
			}
			if diff := cmp.Diff(tt.want, maps.Collect(r.all())); diff != "" {
				t.Error(diff)
			}
		})
	}
}
