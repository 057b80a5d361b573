package controller

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace-io/millrace/shared/event"
)

// 6.1. Without the rule (synced at the first bookmark, whatever its sums) the
// key would be decided on a cache that lacks the second thing.
func TestRule1NoKeyIsDecidedBeforeABookmarkProvesTheCacheComplete(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.Put(things, key("here"), "x")
		r.Put(things, key("lost"), "x")
		r.Vanish(things, key("lost")) // the stream lacks it; the bookmarks know
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(8 * time.Second)
		r.wantRuns(key("here"), 0)
		if err := r.c.Ready(); err == nil || !strings.Contains(err.Error(), "things") {
			r.Errorf("Ready() = %v, want it to name things", err)
		}
		settle(30 * time.Second) // replay, then the comparison puts it right
		r.wantMirrored()
	})
}

// 6.1. Drift: replay first, then the watcher is asked, and nothing is decided
// meanwhile.
func TestRule1DriftReplaysThenAsksForAComparison(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "x")
		r.Put(things, key("b"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(5 * time.Second)
		r.wantMirrored()
		// A killed server brings a deleted key back.
		r.Force(event.Message{Kind: things, Key: key("ghost"), Op: event.Put, UID: "ghost", Version: 1, Projection: 1, Epoch: 1, Body: []byte("x")})
		settle(5 * time.Second)
		before := r.ran(key("a"))
		settle(6 * time.Second) // ten mismatches
		if got := r.value("millrace_controller_replays_total", "reason=drift"); got != 1 {
			r.Errorf("%v replays for drift, want 1", got)
		}
		r.Put(things, key("a"), "y")
		settle(5 * time.Second)
		r.wantRuns(key("a"), before)
		if r.asked("compare") {
			r.Error("asked for a comparison before the replay was given a chance")
		}
		settle(10 * time.Second)
		if !r.asked("compare") {
			r.Error("a replay did not help and no comparison was asked for")
		}
		r.wantMirrored()
		if _, left := r.Get(outs, key("ghost")); left {
			r.Error("the ghost has an out")
		}
	})
}

func (r *rig) asked(what string) bool {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return slices.ContainsFunc(r.Asked, func(s string) bool { return strings.Contains(s, "."+what+" ") })
}

// 6.1. A half-filled cache must never shrink anything: the wide inputs count.
func TestRule1NoKeyIsDecidedBeforeTheWideInputsHaveSynced(t *testing.T) {
	play(t, 2, func(r *rig) {
		r.Put(nodes, event.Key{Name: "n1"}, "")
		r.Put(things, key("a"), "x")
		r.nodes.SetMute(true)
	}, func(r *rig) {
		r.lease.Claim(0)
		r.lease.Claim(1)
		settle(time.Minute)
		r.wantRuns(key("a"), 0)
		select {
		case <-r.c.Joinable():
			r.Error("joinable without wide inputs")
		default:
		}
		r.nodes.SetMute(false)
		settle(2 * time.Second)
		<-r.c.Joinable()
		r.wantMirrored()
	})
}

// 6.1. A kind that the API server does not serve is complete and empty.
func TestRule1AnAbsentKindIsSyncedAndEmpty(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.nodes.Absent()
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.wantMirrored()
		if !r.c.Status().GetKinds()[0].GetAbsent() {
			r.Errorf("status does not say that nodes are absent: %v", r.c.Status().GetKinds())
		}
	})
}

// 6.1. Nobody watches: /readyz names the kind.
func TestRule1AKindThatNobodyWatchesIsNamed(t *testing.T) {
	play(t, 1, func(r *rig) { r.things.SetMute(true) }, func(r *rig) {
		r.lease.Claim(0)
		settle(6 * time.Second)
		err := r.c.Ready()
		if err == nil || !strings.Contains(err.Error(), "things: no bookmark ever came, nobody watches it") {
			r.Errorf("Ready() = %v", err)
		}
		r.things.SetMute(false)
		settle(2 * time.Second)
		if err := r.c.Ready(); err != nil {
			r.Errorf("Ready() = %v, want nil", err)
		}
	})
}

// 6.1. What a complete replay did not deliver is deleted: a deletion that
// happened while nobody listened, and whose tombstone is gone.
func TestRule1WhatAReplayDoesNotDeliverIsGone(t *testing.T) {
	play(t, 1, func(r *rig) { r.Put(things, key("a"), "x") }, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.things.Pause()
		r.Delete(things, key("a"))
		r.things.Resume()
		r.Vanish(things, key("a")) // the tombstone expired
		r.Break()
		settle(5 * time.Second)
		r.wantMirrored()
	})
}

// 6.2. Inputs and outputs: the out of a thing that went while nobody ran.
func TestRule2EveryKeyIsLookedAtOnceInputsAndOutputs(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "x")
		r.Put(outs, key("orphan"), "x/0")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(5 * time.Second)
		r.wantMirrored()
		if n := r.ran(key("orphan")); n == 0 {
			r.Error("the orphan was not looked at")
		}
	})
}

// 6.2. While everything is looked at, a live change passes; while live changes
// never end, the look at everything does.
func TestRule2LiveChangesPassAndTheSweepGoesOn(t *testing.T) {
	slow := func(r *rig) {
		r.cfg.Workers = 1
		r.reconcile = sleeper(100 * time.Millisecond)
		for i := range 200 {
			r.Put(things, key("t"+string(rune('a'+i%26))+string(rune('a'+i/26))), "x")
		}
	}
	t.Run("a live change waits for a key, not for all", func(t *testing.T) {
		play(t, 1, slow, func(r *rig) {
			r.lease.Claim(0)
			settle(3 * time.Second)
			r.Put(things, key("new"), "x")
			settle(250 * time.Millisecond)
			r.wantRuns(key("new"), 1)
		})
	})
	t.Run("a flood of live changes does not stop the sweep", func(t *testing.T) {
		play(t, 1, slow, func(r *rig) {
			r.lease.Claim(0)
			settle(3 * time.Second)
			for range 1200 { // as fast as the worker, for two minutes
				r.Put(things, key("hot1"), time.Now().String())
				r.Put(things, key("hot2"), time.Now().String())
				settle(100 * time.Millisecond)
			}
			for k := range r.Objects(things) {
				if r.ran(k) == 0 {
					r.Fatalf("%s was never looked at", k)
				}
			}
		})
	})
}

// 6.10, 6.6. Wide inputs are as fresh as the oldest of their slices.
func TestRule10WideInputsSyncWhenAllSlicesDo(t *testing.T) {
	play(t, 4, func(r *rig) {
		r.Put(nodes, event.Key{Name: "n1"}, "")
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		for i := range 4 {
			r.lease.Claim(i)
		}
		settle(3 * time.Second)
		r.wantMirrored()
		r.Put(nodes, event.Key{Name: "n2"}, "")
		settle(3 * time.Second)
		r.wantMirrored()
	})
}

// 6.11. Without the rule a new controller would read fields that an old watcher
// left out.
func TestRule11AnOldProjectionDoesNotSync(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.def.Inputs[0].Projection = 2
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(10 * time.Second)
		r.wantRuns(key("a"), 0)
		if err := r.c.Ready(); err == nil || !strings.Contains(err.Error(), "version 2 is needed") {
			r.Errorf("Ready() = %v", err)
		}
		r.Watch(things, 2) // the watcher is upgraded
		settle(3 * time.Second)
		r.wantMirrored()
		r.Watch(things, 1) // and rolled back: what it publishes is opaque
		r.Put(things, key("a"), "y")
		settle(time.Minute)
		if o, _ := r.Get(outs, key("a")); o.Body != "x/0" {
			r.Errorf("out is %q: decided on a projection that is too old", o.Body)
		}
	})
}

// 5, 6.1. The daily sweep reads everything anew, and writes nothing.
func TestTheSlowSweepReadsEverythingAnew(t *testing.T) {
	play(t, 1, func(r *rig) { r.Put(things, key("a"), "x") }, func(r *rig) {
		r.lease.Claim(0)
		settle(5 * time.Second)
		writes, runs := r.written(), r.ran(key("a"))
		r.c.cfg.SweepEvery = 24 * time.Hour
		settle(30 * time.Hour)
		if r.value("millrace_controller_replays_total", "reason=sweep") == 0 {
			r.Error("no sweep within 30 hours")
		}
		if r.ran(key("a")) <= runs {
			r.Error("the sweep did not look at the key")
		}
		if got := r.written(); got != writes {
			r.Errorf("%d writes of what had not changed", got-writes)
		}
	})
}
