package bus

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"github.com/millrace-io/millrace/shared/event"
)

const testRoot = "k8s.test"

func putMessage() event.Message {
	return event.Message{
		Kind: "endpointslices.discovery.k8s.io", Key: event.Key{Namespace: "ns", Name: "web-1.x"},
		Op: event.Put, UID: "6f1c", Version: 1 << 60, Upto: 17, Epoch: 1764493200000000, Hash: 1<<64 - 1,
		Projection: 3, Observed: time.UnixMicro(1764493200123456).UTC(), Committed: time.UnixMicro(1764493200000000).UTC(),
		Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Body: []byte("body"),
	}
}

func markMessage() event.Message {
	return event.Message{
		Kind: "pods", Op: event.Bookmark, Upto: 99, Epoch: 7, Projection: 1, Slice: 5,
		Mark: &event.Mark{
			Counter: 12, Absent: true,
			ByKey:       event.Sums{Count: 1, Existence: 1<<64 - 2, Exact: 3},
			ByNamespace: event.Sums{Count: 4, Existence: 5, Exact: 6},
		},
	}
}

func subjectFor(m event.Message) string {
	if m.Op == event.Bookmark {
		return event.BookmarkSubject(testRoot, m.Kind, m.Slice)
	}
	return event.Subject(testRoot, m.Kind, m.Key, 1, 2)
}

func TestEnvelopeRoundTrip(t *testing.T) {
	tests := map[string]event.Message{
		"an object with everything": putMessage(),
		"an object with nothing":    {Kind: "pods", Key: event.Key{Namespace: "a", Name: "b"}, Op: event.Put},
		"a tombstone":               {Kind: "nodes", Key: event.Key{Name: "n1.example.org"}, Op: event.Delete, UID: "u", Version: 5, Epoch: 1},
		"an opaque object":          {Kind: "nodes", Key: event.Key{Name: "big"}, Op: event.Opaque, UID: "u", Version: 5},
		"a bookmark":                markMessage(),
	}
	for name, want := range tests {
		t.Run(name, func(t *testing.T) {
			h, body, err := encode(want)
			if err != nil {
				t.Fatal(err)
			}
			got, err := decode(testRoot, subjectFor(want), h, body, false)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("decoded message differs (-want +got):\n%s", diff)
			}
		})
	}
}

// The names and spellings of the headers are on the wire.
func TestEnvelopeIsFrozen(t *testing.T) {
	h, _, err := encode(putMessage())
	if err != nil {
		t.Fatal(err)
	}
	want := nats.Header{
		"Mr-Wire": {"1"}, "Mr-Op": {"put"}, "Mr-Uid": {"6f1c"}, "Mr-Version": {"1152921504606846976"},
		"Mr-Upto": {"17"}, "Mr-Epoch": {"1764493200000000"}, "Mr-Hash": {"ffffffffffffffff"}, "Mr-Projection": {"3"},
		"Mr-Observed": {"1764493200123456"}, "Mr-Committed": {"1764493200000000"},
		"traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"},
	}
	if diff := cmp.Diff(want, h); diff != "" {
		t.Errorf("headers differ (-want +got):\n%s", diff)
	}
}

func TestDecodeRefuses(t *testing.T) {
	put := putMessage()
	tests := map[string]struct {
		subject string
		header  nats.Header
		body    string
		is      error
		says    string
	}{
		"a newer wire version":            {header: nats.Header{headerWire: {"2"}, headerOp: {"put"}}, is: ErrWireVersion},
		"a message without version":       {header: nats.Header{headerOp: {"put"}}, is: ErrWireVersion},
		"an unknown op":                   {header: nats.Header{headerWire: {"1"}, headerOp: {"patch"}}, says: "patch"},
		"a number that is none":           {header: nats.Header{headerWire: {"1"}, headerOp: {"put"}, headerVersion: {"x"}}, says: headerVersion},
		"a tombstone with a body":         {header: nats.Header{headerWire: {"1"}, headerOp: {"delete"}}, body: "x", says: "body"},
		"a bookmark in an object's place": {header: nats.Header{headerWire: {"1"}, headerOp: {"bookmark"}}, says: "place"},
		"an object in a bookmark's place": {subject: event.BookmarkSubject(testRoot, "pods", 1), header: nats.Header{headerWire: {"1"}, headerOp: {"put"}}, says: "place"},
		"a mark that is none":             {subject: event.BookmarkSubject(testRoot, "pods", 1), header: nats.Header{headerWire: {"1"}, headerOp: {"bookmark"}}, body: "\xff", says: "mark"},
		"another cluster":                 {subject: "k8s.other.pods.1.1._.x", says: "below"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			subject := tt.subject
			if subject == "" {
				subject = subjectFor(put)
			}
			_, err := decode(testRoot, subject, tt.header, []byte(tt.body), false)
			if err == nil {
				t.Fatal("decoded without an error")
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error is %v, want %v", err, tt.is)
			}
			if !strings.Contains(err.Error(), tt.says) {
				t.Errorf("error is %q, want it to name %q", err, tt.says)
			}
		})
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, m := range map[string]event.Message{
		"a bookmark without a mark": {Op: event.Bookmark},
		"a tombstone with a body":   {Op: event.Delete, Body: []byte("x")},
		"no op":                     {},
	} {
		if _, _, err := encode(m); err == nil {
			t.Errorf("%s was encoded", name)
		}
	}
}

func FuzzEnvelope(f *testing.F) {
	f.Add(uint8(1), "uid", uint64(5), uint64(4), uint64(9), uint64(1), uint32(1), int64(1764493200123456), int64(0), "00-1-2-01", []byte("b"))
	f.Add(uint8(4), "", uint64(0), uint64(1<<63), uint64(9), uint64(0), uint32(0), int64(0), int64(-5), "", []byte{})
	f.Fuzz(func(t *testing.T, op uint8, uid string, version, upto, epoch, hash uint64, projection uint32, observed, committed int64, trace string, body []byte) {
		want := event.Message{
			Kind: "pods", Op: event.Op(op%4 + 1), UID: uid, Version: version, Upto: upto, Epoch: epoch, Hash: hash,
			Projection: projection, Observed: micros(observed), Committed: micros(committed), Trace: trace,
		}
		switch want.Op {
		case event.Put:
			want.Key, want.Body = event.Key{Name: "n"}, body
		case event.Bookmark:
			want.Slice = int(projection % 256)
			want.Mark = &event.Mark{Counter: hash, Absent: epoch%2 == 0, ByKey: event.Sums{Count: version, Existence: upto, Exact: hash}}
		default:
			want.Key = event.Key{Name: "n"}
		}
		h, data, err := encode(want)
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(testRoot, subjectFor(want), h, data, false)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("decoded message differs (-want +got):\n%s", diff)
		}
	})
}

func micros(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.UnixMicro(n % (1 << 53)).UTC()
}

// Whatever a foreign message says, decode must come back with an error, not with
// a panic, and what it takes must encode again.
func FuzzDecode(f *testing.F) {
	h, body, _ := encode(putMessage())
	f.Add(subjectFor(putMessage()), h.Get(headerWire), h.Get(headerOp), h.Get(headerVersion), body)
	h, body, _ = encode(markMessage())
	f.Add(subjectFor(markMessage()), h.Get(headerWire), h.Get(headerOp), h.Get(headerVersion), body)
	f.Fuzz(func(t *testing.T, subject, wire, op, version string, body []byte) {
		h := nats.Header{headerWire: {wire}, headerOp: {op}, headerVersion: {version}}
		m, err := decode(testRoot, subject, h, body, false)
		if err != nil {
			return
		}
		if _, _, err := encode(m); err != nil {
			t.Errorf("decoded %+v, which does not encode: %v", m, err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	m := putMessage()
	b.ReportAllocs()
	for b.Loop() {
		if _, _, err := encode(m); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	m := putMessage()
	h, body, _ := encode(m)
	subject := subjectFor(m)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := decode(testRoot, subject, h, body, false); err != nil {
			b.Fatal(err)
		}
	}
}
