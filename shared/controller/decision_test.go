package controller

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
)

func (r *rig) records() []*millracev1.Decision {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return append([]*millracev1.Decision(nil), r.Records...)
}

// 6. One record per write: what was written, because of what, by whom.
func TestEveryWriteIsRecorded(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.def.Host = "replica-1"
		r.Put(things, key("old"), "x")
	}, func(r *rig) {
		g := r.lease.Claim(0)
		settle(3 * time.Second)
		cause := r.Put(things, key("a"), "y")
		settle(time.Second)
		all := r.records()
		if len(all) != r.written() || len(all) != 2 {
			r.Fatalf("%d records of %d writes, want 2", len(all), r.written())
		}
		if all[0].GetCause() != nil {
			r.Errorf("the first write after the claim has a cause: %v", all[0].GetCause())
		}
		got, out := all[1], r.Objects(outs)[key("a")]
		if o := got.GetObject(); o.GetKind() != string(outs) || o.GetName() != "a" || o.GetVersion() != out.Version || o.GetUid() != out.UID {
			r.Errorf("object is %v, want %+v", o, out)
		}
		if c := got.GetCause(); c.GetObject().GetKind() != string(things) || c.GetObject().GetVersion() != cause.Version || c.GetOp() != "put" {
			r.Errorf("cause is %v, want the put of %+v", c, cause)
		}
		hops := []time.Time{got.GetCause().GetObserved().AsTime(), got.GetCause().GetReceived().AsTime(), got.GetTaken().AsTime(), got.GetAt().AsTime()}
		for i, at := range hops {
			if at.IsZero() || i > 0 && at.Before(hops[i-1]) {
				r.Errorf("hops are %v, want an order", hops)
			}
		}
		if got.GetRole() != "mirror" || got.GetHost() != "replica-1" || got.GetMember() != g.Member() || got.GetEpoch() != g.Epoch() ||
			got.GetRule() != "mirror" || got.GetOutcome() != millracev1.Outcome_OUTCOME_TAKEN || got.GetKey().GetName() != "a" ||
			got.GetBodyBytes() != 3 || got.GetBodyHash() != event.HashBody([]byte("y/0")) || len(got.GetInputs()) != 1 {
			r.Errorf("record is %v", got)
		}
		// One line, cut between characters.
		if want := "because of " + strings.Repeat("ü", 144) + "…"; got.GetDetail() != want {
			r.Errorf("detail is %q of %d bytes, want %q", got.GetDetail(), len(got.GetDetail()), want)
		}
		if r.value("millrace_controller_decision_records_total", "result=kept") != 2 {
			r.Error("the records were not counted")
		}
	})
}

// A record that is lost, or that nobody takes away, delays and fails nothing.
func TestRecordsNeverHoldAWriteUp(t *testing.T) {
	play(t, 1, func(r *rig) { r.NoRecords = true }, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("a"), "x")
		settle(time.Second)
		r.wantMirrored()
		p := r.c.partitions()[0]
		before := time.Now()
		for range recordsQueued * 3 { // nothing is sent meanwhile: the bubble's time stands
			p.Record(key("a"), Decision{Err: errors.New("no"), Object: Ref{Kind: outs, Key: key("a")}})
		}
		if took := time.Since(before); took != 0 {
			r.Errorf("recording took %s", took)
		}
		settle(time.Second)
		if lost := r.value("millrace_controller_decision_records_total", "result=lost"); lost != recordsQueued*3+1 {
			r.Errorf("%v records counted as lost, want all %d", lost, recordsQueued*3+1)
		}
	})
}

// ask asks the frame about one thing, as an operator does.
func (r *rig) ask(kind event.Kind, k event.Key) *millracev1.ExplainAnswer {
	r.Helper()
	request, err := proto.Marshal(&millracev1.ExplainRequest{Object: Ref{Kind: kind, Key: k}.proto()})
	if err != nil {
		r.Fatal(err)
	}
	data, err := r.Ask(context.Background(), ExplainSubject(r.Cluster()), request)
	if err != nil || data == nil {
		return nil
	}
	a := &millracev1.ExplainAnswer{}
	if err := proto.Unmarshal(data, a); err != nil {
		r.Fatal(err)
	}
	return a
}

func (r *rig) wantState(k event.Key, want string) *millracev1.KeyState {
	r.Helper()
	a := r.ask(things, k)
	if len(a.GetKeys()) != 1 || a.GetKeys()[0].GetState() != want {
		r.Fatalf("keys of %s are %v, want one that is %s", k, a.GetKeys(), want)
	}
	return a.GetKeys()[0]
}

func TestExplainSaysWhereAKeyStands(t *testing.T) {
	play(t, 2, func(r *rig) {
		mirror := r.reconcile
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			switch {
			case k == key("slow"):
				return sleeper(time.Minute)(ctx, p, k)
			case k == key("bad") && r.isFailing():
				return Result{}, errors.New("not today")
			}
			return mirror(ctx, p, k)
		}
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		settle(time.Second)
		if a := r.ask(things, key("a")); a != nil {
			r.Errorf("whoever does not hold it says %v", a)
		}
		r.lease.Claim(partition.OfNamespace(key("a"), 2))
		settle(3 * time.Second)
		a := r.ask(things, key("a"))
		if o := r.Objects(things)[key("a")]; a.GetCached().GetVersion() != o.Version || a.GetCached().GetUid() != o.UID || !a.GetSynced() || !a.GetKind().GetSynced() {
			r.Errorf("explained as %v, want version %d of a complete partition", a, o.Version)
		}
		r.wantState(key("a"), StateAtRest)
		if a := r.ask(outs, key("a")); a.GetCached() == nil || len(a.GetKeys()) != 0 {
			r.Errorf("an output is explained as %v", a)
		}

		r.fail(true)
		r.Put(things, key("slow"), "x")
		r.Put(things, key("bad"), "x")
		settle(10 * time.Second)
		if s := r.wantState(key("slow"), StateRunning); s.GetSince().AsDuration() < 9*time.Second || s.GetCause().GetObject().GetName() != "slow" {
			r.Errorf("the slow key is %v", s)
		}
		if s := r.wantState(key("bad"), StateRetry); s.GetFailures() < 2 || s.GetLastError() != "not today" || s.GetNextTry().AsDuration() <= 0 {
			r.Errorf("the bad key is %v", s)
		}
		r.fail(false)
		settle(2 * time.Minute)
		if s := r.wantState(key("bad"), StateAtRest); s.GetLastError() != "" || s.GetFailures() != 0 {
			r.Errorf("the bad key that is good is %v", s)
		}

		r.nodes.SetMute(true)
		settle(time.Minute)
		r.Put(things, key("a"), "y")
		settle(time.Second)
		if s := r.wantState(key("a"), StateParked); s.GetWaitsFor() == "" || s.GetCause() == nil {
			r.Errorf("the parked key is %v", s)
		} else {
			t.Log(s.GetWaitsFor())
		}
	})
}
