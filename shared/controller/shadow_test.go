package controller

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

// A key that fails again and again with a write held back is one key that
// differs, not one more record per try.
func TestAShadowedKeyThatFailsIsOneThatDiffers(t *testing.T) {
	s := newShadow()
	for range 1000 {
		s.begin(key("a"))
		s.intend(key("a"), &millracev1.Decision{Verb: "update"})
		s.failed(key("a"))
	}
	if n := len(s.intents); n != 1 {
		t.Fatalf("%d keys differ, want 1", n)
	}
	if n := len(s.intents[key("a")].writes); n != 1 {
		t.Errorf("%d writes are told of, want that of the last run", n)
	}
	s.begin(key("b"))
	s.effect(key("b"), "something") // as an active role says it, too
	s.failed(key("b"))
	if s.intents[key("b")] != nil {
		t.Error("a key differs of which nothing was held back")
	}
	s.begin(key("a"))
	s.settle(key("a"), false)
	if len(s.intents) != 0 || s.agreed != 1 {
		t.Errorf("%d keys differ and %d agreed, want 0 and 1", len(s.intents), s.agreed)
	}
}

// What a report cannot carry it leaves out; it must not be what is left out.
func TestAReportFitsIntoAMessage(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.def.Compare = func(*Partition, event.Key, any) []Difference {
			many := make([]Difference, 500)
			for i := range many {
				many[i] = Difference{Field: "endpoint", Want: string(make([]byte, 4000)), Have: string(make([]byte, 4000))}
			}
			return many
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		p := r.c.partitions()[0]
		for i := range 200 {
			k := key("k" + string(rune('a'+i%26)) + string(rune('a'+i/26)))
			p.shadow.begin(k)
			p.shadow.intend(k, &millracev1.Decision{Verb: "update"})
			p.shadow.effect(k, "x")
			p.shadow.settle(k, true)
		}
		request, err := proto.Marshal(&millracev1.ShadowRequest{Role: r.def.Role})
		if err != nil {
			r.Fatal(err)
		}
		answer := r.c.shadowReport(request)
		var report millracev1.ShadowReport
		if err := proto.Unmarshal(answer, &report); err != nil {
			r.Fatal(err)
		}
		if len(answer) > maxReportBytes || report.GetDiffering() != 200 || len(report.GetKeys()) == 0 {
			r.Errorf("%d bytes that name %d of %d keys; at most %d bytes, and some of 200", len(answer), len(report.GetKeys()), report.GetDiffering(), maxReportBytes)
		}
	})
}

// A role that panics when it is asked goes on working.
func TestAPanicInAnAnswerIsContained(t *testing.T) {
	play(t, 1, nil, func(r *rig) {
		before := r.value("millrace_controller_panics_total")
		answer := r.c.contained("x", func([]byte) []byte { panic("a role's mistake") })(nil)
		if answer != nil {
			r.Errorf("it answered %q", answer)
		}
		if n := r.value("millrace_controller_panics_total"); n != before+1 {
			r.Errorf("%v panics are counted, want one more than %v", n, before)
		}
	})
}
