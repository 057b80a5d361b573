package controller

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
)

// askPending asks as an operator does; nil: nobody answered.
func (r *rig) askPending(request *millracev1.PendingRequest) *millracev1.PendingReport {
	r.Helper()
	data, err := proto.Marshal(request)
	if err != nil {
		r.Fatal(err)
	}
	answer, err := r.Ask(context.Background(), PendingSubject(r.Cluster()), data)
	if err != nil || answer == nil {
		return nil
	}
	if len(answer) > maxReportBytes {
		r.Errorf("the report has %d bytes, at most %d fit", len(answer), maxReportBytes)
	}
	report := &millracev1.PendingReport{}
	if err := proto.Unmarshal(answer, report); err != nil {
		r.Fatal(err)
	}
	return report
}

// What is still to be done is told soonest first, of one node or all, and what a
// report does not name it counts.
func TestPendingIsToldSoonestFirst(t *testing.T) {
	var todo []Pending
	play(t, 1, func(r *rig) {
		r.def.Host = "replica-1"
		r.def.Pending = func() []Pending { return append([]Pending(nil), todo...) }
		r.clock.skew = time.Hour
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		for i := range 3000 { // the later, the sooner; every third has no time
			p := Pending{Object: Ref{Kind: things, Key: key(fmt.Sprint(i))}, Node: fmt.Sprint("node-", i%2), Why: "a\nb", Waiting: "time"}
			if i%3 > 0 {
				p.Due = time.Now().Add(-time.Duration(i) * time.Second)
			}
			todo = append(todo, p)
		}
		if got := r.askPending(&millracev1.PendingRequest{Role: "another"}); got != nil {
			r.Errorf("asked for another role it says %v", got)
		}
		for _, limit := range []uint32{0, 7, 3000, 4000000000} {
			got := r.askPending(&millracev1.PendingRequest{Role: "mirror", Limit: limit})
			want := maxPending
			if limit == 7 {
				want = 7
			}
			if len(got.GetItems()) != want || got.GetTotal() != 3000 || got.GetItems()[0].GetObject().GetName() != "2999" {
				r.Fatalf("limit %d: %d items of %d, want %d of 3000", limit, len(got.GetItems()), got.GetTotal(), want)
			}
			for i, item := range got.GetItems()[1:] {
				if item.GetDue().AsTime().Before(got.GetItems()[i].GetDue().AsTime()) {
					r.Fatalf("item %d is due before the one before it", i+1)
				}
			}
		}
		got := r.askPending(&millracev1.PendingRequest{Node: "node-1"})
		if got.GetTotal() != 1500 || got.GetItems()[0].GetNode() != "node-1" || got.GetItems()[0].GetWhy() != "a b" ||
			got.GetRole() != "mirror" || got.GetHost() != "replica-1" || got.GetMember() != "m1" {
			r.Errorf("of one node there are %d of %s at %s: %v", got.GetTotal(), got.GetRole(), got.GetHost(), got.GetItems()[0])
		}
		if ahead := time.Until(got.GetAt().AsTime()); ahead != time.Hour {
			r.Errorf("the report's time is %s ahead of ours, the cluster's is an hour", ahead)
		}

		todo = todo[:4]
		if got := r.askPending(&millracev1.PendingRequest{}); len(got.GetItems()) != 4 || got.GetItems()[3].GetDue() != nil || got.GetItems()[2].GetDue() != nil {
			r.Errorf("what has no time must come last: %v", got.GetItems())
		}
	})
}

// A report fits into a message, whatever its texts are.
func TestALongPendingReportIsCut(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.def.Pending = func() (todo []Pending) {
			for i := range 2000 {
				k := key(fmt.Sprint(i))
				k.Namespace = strings.Repeat("n", 250)
				todo = append(todo, Pending{Object: Ref{Kind: things, Key: k}, Why: strings.Repeat("w", 5000), Waiting: strings.Repeat("r", 5000)})
			}
			return todo
		}
	}, func(r *rig) {
		settle(time.Second)
		if got := r.askPending(&millracev1.PendingRequest{}); len(got.GetItems()) < 100 || len(got.GetItems()) == maxPending || got.GetTotal() != 2000 {
			r.Errorf("it names %d of %d", len(got.GetItems()), got.GetTotal())
		}
	})
}

// Who has nothing of the kind does not answer, and a panic is no answer.
func TestNobodyAnswersForNothing(t *testing.T) {
	for name, pending := range map[string]func() []Pending{"none": nil, "panic": func() []Pending { panic("role") }} {
		play(t, 1, func(r *rig) { r.def.Pending = pending }, func(r *rig) {
			settle(time.Second)
			if got := r.askPending(&millracev1.PendingRequest{}); got != nil {
				r.Errorf("%s: %v", name, got)
			}
		})
	}
}
