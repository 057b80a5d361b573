package beat

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

// large is a partition as a cluster of 65 000 nodes has 32 of: names as a cloud
// gives them, times of the last ten seconds and five minutes.
func large(nodes int) Digest {
	d := Digest{Epoch: 1_790_000_000_000_000, Counter: 86_400, At: 400 * time.Hour}
	for i := range nodes {
		d.Beats = append(d.Beats, Beat{
			Node:    fmt.Sprintf("ip-10-%03d-%03d-%03d.eu-central-1.compute.internal", i>>16, i>>8&255, i&255),
			UID:     fmt.Sprintf("6b2f7a1c-%04x-4e0d-9a3b-%012x", i, i*7919),
			Renewed: 1_790_000_000_000_000 + int64(i*7919%10_000)*1003, Heartbeat: 1_790_000_000 - int64(i*31%300),
			Age: time.Duration(i*7919%10_000) * time.Millisecond,
		})
	}
	return d
}

func TestDigestTravels(t *testing.T) {
	var e Encoder
	for name, d := range map[string]Digest{
		"a large one":  large(2032),
		"an empty one": {Epoch: 1, Counter: 2, At: time.Second, Beats: []Beat{}},
		"what is unusual": {Epoch: 1, Beats: []Beat{
			{Node: "a", UID: "6B2F7A1C-0000-4e0d-9a3b-000000000000"},
			{Node: "b", UID: "no uuid", Renewed: -5},
			{Node: "c", UID: "fifteen letters", Renewed: 1 << 62, Age: 1000 * time.Hour},
			{Node: "d", UID: "sixteen letters!", Heartbeat: -1 << 62},
			{Node: "e", UID: ""},
			{Node: "f", UID: "6b2f7a1c-0000-4e0d-9a3b+000000000000"},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			body, err := e.Encode(d)
			if err != nil {
				t.Fatal(err)
			}
			got, err := Decode(body)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(d, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The smallest limit that is met is the 1 MiB of a NATS server that was told
// nothing.
func TestDigestFits(t *testing.T) {
	var e Encoder
	for partitions, limit := range map[int]int{32: 1 << 20 / 4, 8: 1 << 20} {
		d := large(65_000 / partitions * 11 / 10) // hashing is not even
		body, err := e.Encode(d)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("65 000 nodes in %d partitions: %d bytes for %d nodes, %.1f each", partitions, len(body), len(d.Beats), float64(len(body))/float64(len(d.Beats)))
		if len(body) > limit {
			t.Errorf("%d bytes; at most %d are wanted", len(body), limit)
		}
	}
}

func TestBrokenDigests(t *testing.T) {
	for name, m := range map[string]*millracev1.Digest{
		"columns of different length": {Nodes: []string{"a"}},
		"names out of order": {
			Nodes: []string{"b", "a"}, Uids: [][]byte{{0}, {0}}, Renewed: []int64{0, 0}, Heartbeats: []int64{0, 0}, Ages: []uint32{0, 0},
		},
	} {
		body, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(body); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := Decode([]byte{0xff}); err == nil {
		t.Error("what is no message: no error")
	}
}

func FuzzUID(f *testing.F) {
	for _, uid := range []string{"", "x", "fifteen letters", "6b2f7a1c-0000-4e0d-9a3b-000000000000", "6b2f7a1c-0000-4e0d-9a3b-00000000000G"} {
		f.Add(uid)
	}
	f.Fuzz(func(t *testing.T, uid string) {
		if len(uid) > 0 && uid[0] == 0 {
			t.Skip("a UID is no such text")
		}
		if got := uidOf(appendUID(nil, uid)); got != uid {
			t.Errorf("%q came back as %q", uid, got)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	var e Encoder
	d := large(2032)
	for b.Loop() {
		if _, err := e.Encode(d); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	var e Encoder
	body, err := e.Encode(large(2032))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Decode(body); err != nil {
			b.Fatal(err)
		}
	}
}
