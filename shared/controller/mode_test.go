package controller

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/event"
)

func (r *rig) setMode(mode string) {
	r.SetFact(ModeKey("mirror"), mode)
	synctest.Wait()
}

func (r *rig) wantMode(want string) {
	r.Helper()
	if got := r.c.Status().GetMode(); got != want {
		r.Errorf("mode is %q, want %q", got, want)
	}
}

// claimed claims a partition in the background: while the role takes no part,
// nobody accepts it.
func (r *rig) claimed() <-chan struct{} {
	done := make(chan struct{})
	go func() { r.lease.Claim(0); close(done) }()
	synctest.Wait()
	return done
}

// 6.9. Until it is known in which mode the role is, nothing is claimed and
// nothing is written.
func TestRule9NothingBeforeTheModeIsKnown(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.HideFacts(true)
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		done := r.claimed()
		settle(time.Hour)
		select {
		case <-done:
			r.Error("a partition was claimed")
		default:
		}
		r.wantMode("")
		if err := r.c.Ready(); err == nil || r.written() != 0 {
			r.Errorf("ready: %v, after %d writes", err, r.written())
		}
		r.HideFacts(false)
		settle(5 * time.Second)
		<-done
		r.wantMode(ModeActive)
		r.wantMirrored()
	})
}

// 6.9. Changed at run time: a key held back in shadow mode is reconciled when
// the role may write, although no event asks for it, and on a live read.
func TestRule9WhatWasHeldBackIsDoneOnceActive(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.SetFact(ModeKey("mirror"), ModeShadow)
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(5 * time.Second)
		r.Put(things, key("b"), "x")
		settle(time.Minute)
		if n := r.written(); n != 0 {
			r.Fatalf("%d writes in shadow mode", n)
		}
		r.wantMode(ModeShadow)
		r.setMode(ModeActive)
		settle(time.Second)
		r.wantMirrored()
	})
}

// 6.9. Switching to and fro while things change loses no key.
func TestRule9SwitchingUnderChurnLosesNoKey(t *testing.T) {
	play(t, 3, nil, func(r *rig) {
		for i := range 3 {
			r.lease.Claim(i)
		}
		settle(3 * time.Second)
		at := func(i int) event.Key { return event.Key{Namespace: fmt.Sprint("ns", i%7), Name: fmt.Sprint("t", i%40)} }
		for i := range 600 {
			if i%11 == 10 {
				r.Delete(things, at(i*7))
			} else {
				r.Put(things, at(i), fmt.Sprint(i))
			}
			switch i % 50 {
			case 20:
				r.SetFact(ModeKey("mirror"), ModeShadow)
			case 45:
				r.SetFact(ModeKey("mirror"), ModeActive)
			}
			time.Sleep(time.Duration(i%13) * time.Millisecond)
		}
		settle(40 * time.Second)
		r.wantMode(ModeActive)
		r.wantMirrored()
		if r.value("millrace_controller_reconciles_total", "result=shadow") == 0 {
			r.Error("nothing was ever held back: the test shows nothing")
		}
	})
}

// 6.9. The race by itself: a key is answered "shadow", and the role becomes
// active before its run has ended.
func TestRule9AKeyInHandWhenTheRoleBecomesActive(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.SetFact(ModeKey("mirror"), ModeShadow)
		mirror := r.reconcile
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			result, err := mirror(ctx, p, k)
			if errors.Is(err, ErrShadow) {
				time.Sleep(10 * time.Second)
			}
			return result, err
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("a"), "x")
		settle(time.Second) // in hand, and held back
		r.setMode(ModeActive)
		settle(15 * time.Second)
		r.wantMirrored()
	})
}

// 6.9. Off: what is held is handed over, nothing is claimed, and that is no
// fault; back on, everything is done.
func TestRule9OffHoldsNothing(t *testing.T) {
	play(t, 1, func(r *rig) { r.Put(things, key("a"), "x") }, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.wantMirrored()
		r.setMode(ModeOff)
		settle(time.Second)
		r.Put(things, key("a"), "y")
		settle(time.Minute)
		if n := len(r.c.partitions()); n != 0 || r.written() != 1 {
			r.Errorf("%d partitions held and %d writes, want none and 1", n, r.written())
		}
		r.wantMode(ModeOff)
		if err := r.c.Ready(); err != nil {
			r.Errorf("Ready() = %v", err)
		}
		done := r.claimed()
		r.setMode(ModeActive)
		settle(5 * time.Second)
		<-done
		r.wantMirrored()
	})
}

// A write that was decided on while the role was active is refused from the
// moment on at which it is off.
func TestRule9OffCountsAtOnce(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			if err := p.Guard(ctx, k, Harmless); err != nil && !errors.Is(err, ErrLiveFirst) {
				return Result{}, err
			}
			p.ReadLive(k)
			time.Sleep(time.Second)
			if err := p.Guard(ctx, k, Harmless); err != nil {
				return Result{}, err
			}
			r.mu.Lock()
			r.writes++
			r.mu.Unlock()
			return Result{}, nil
		}
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(1500 * time.Millisecond) // in hand
		r.setMode(ModeOff)
		settle(time.Minute)
		if r.written() != 0 || r.value("millrace_controller_guard_refusals_total", "reason=not_holder") == 0 {
			r.Errorf("%d writes while off", r.written())
		}
	})
}

// The last known mode holds: through a bus that cannot be read, through a wipe,
// and through what is no mode.
func TestTheLastKnownModeHolds(t *testing.T) {
	play(t, 1, func(r *rig) { r.SetFact(ModeKey("mirror"), ModeShadow) }, func(r *rig) {
		settle(time.Second)
		for name, do := range map[string]func(){
			"hidden": func() { r.HideFacts(true) }, "shown": func() { r.HideFacts(false) },
			"nonsense": func() { r.SetFact(ModeKey("mirror"), "asleep") },
		} {
			do()
			settle(time.Second)
			r.Log(name)
			r.wantMode(ModeShadow)
		}
		r.LoseFacts()
		settle(time.Second)
		r.wantMode(ModeShadow)
		r.HideFacts(false)
		r.setMode(ModeActive)
		r.wantMode(ModeActive)
		r.setMode(ModeShadow)
		r.setMode("") // taken back: the setting counts
		r.wantMode(ModeActive)
	})
}

func (r *rig) report() *millracev1.ShadowReport {
	r.Helper()
	request, err := proto.Marshal(&millracev1.ShadowRequest{Role: "mirror"})
	if err != nil {
		r.Fatal(err)
	}
	data, err := r.Ask(context.Background(), ShadowSubject(r.Cluster()), request)
	if err != nil {
		r.Fatal(err)
	}
	report := &millracev1.ShadowReport{}
	if err := proto.Unmarshal(data, report); err != nil {
		r.Fatal(err)
	}
	return report
}

// 6.9. What would have been written is compared with what the cluster becomes.
func TestRule9ShadowComparesWithWhatTheClusterBecame(t *testing.T) {
	for name, compare := range map[string]func(p *Partition, k event.Key, effect any) []Difference{
		"by hash": nil,
		"by the role's own comparison": func(p *Partition, k event.Key, effect any) (out []Difference) {
			p.View(func(v Reader) {
				have, _ := v.Get(outs, k)
				if o, _ := have.(thing); o.Body != effect {
					out = append(out, Difference{"body", fmt.Sprint(effect), o.Body})
				}
			})
			return out
		},
	} {
		t.Run(name, func(t *testing.T) {
			play(t, 1, func(r *rig) {
				r.SetFact(ModeKey("mirror"), ModeShadow)
				r.def.Compare = compare
				r.Put(things, key("a"), "x")
				r.Put(things, key("b"), "x")
			}, func(r *rig) {
				r.lease.Claim(0)
				settle(5 * time.Second)
				got := r.report()
				if got.GetDiffering() != 2 || got.GetAgreed() != 0 || len(got.GetKeys()) != 2 || got.GetMode() != ModeShadow {
					r.Fatalf("report is %v, want two keys that differ", got)
				}
				if d := got.GetKeys()[0]; len(d.GetDifferences()) != 1 || len(d.GetWrites()) != 1 || d.GetSince().AsDuration() < time.Second {
					r.Errorf("difference is %v", d)
				}
				r.Put(outs, key("a"), "x/0") // another controller does the same
				r.Put(outs, key("b"), "z")   // and something else
				settle(5 * time.Second)
				got = r.report()
				if got.GetDiffering() != 1 || got.GetAgreed() != 1 || got.GetKeys()[0].GetKey().GetName() != "b" {
					r.Errorf("report is %v, want a to agree and b to differ", got)
				}
				r.setMode(ModeActive)
				settle(5 * time.Second)
				if got := r.report(); got.GetDiffering() != 0 || got.GetAgreed() != 0 {
					r.Errorf("report in active mode is %v", got)
				}
				r.wantMirrored()
			})
		})
	}
}
