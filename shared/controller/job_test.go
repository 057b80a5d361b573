package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/protocol"
)

// turn is one member's right to a job.
type turn struct{ invalid atomic.Bool }

func (*turn) Index() int                { return 0 }
func (*turn) Epoch() uint64             { return 77 }
func (*turn) Member() string            { return "m7" }
func (*turn) Draining() <-chan struct{} { return nil }
func (g *turn) Valid() error {
	if g.invalid.Load() {
		return errors.New("lease may have run out")
	}
	return nil
}

// counting is a job that reads all things.
type counting struct {
	*Job
	r      *rig
	g      *turn
	cancel context.CancelFunc
}

// playJob runs a story with a job that is held from its beginning.
func playJob(t *testing.T, prepare func(r *rig), story func(r *rig, j *counting)) {
	t.Helper()
	play(t, 4, func(r *rig) {
		r.def.Parts = map[string]string{"count": ModeActive, "other": ModeOff}
		for i := range 10 {
			r.Put(things, event.Key{Namespace: fmt.Sprint("ns", i), Name: "x"}, "x")
		}
		if prepare != nil {
			prepare(r)
		}
	}, func(r *rig) {
		ctx, cancel := context.WithCancel(context.Background())
		g := &turn{}
		def := JobDefinition{Name: "count", Part: "count", Inputs: []cache.Input{{Kind: things, Projection: 1, Decode: decode}}}
		j := &counting{r.c.NewJob(ctx, def, g), r, g, cancel}
		done := make(chan struct{})
		go func() { defer close(done); j.Follow(ctx) }()
		defer func() { cancel(); <-done; j.Close() }()
		story(r, j)
	})
}

// sees looks, for at most that long.
func (j *counting) sees(within time.Duration) (keys []event.Key, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	err = j.Look(ctx, func(r Reader) { keys = r.Keys(things) })
	slices.SortFunc(keys, event.Key.Compare)
	return keys, err
}

func (j *counting) wantSees(n int) []event.Key {
	j.r.Helper()
	keys, err := j.sees(10 * time.Second)
	if err != nil || len(keys) != n {
		j.r.Fatalf("the job sees %d things, %v, want %d", len(keys), err, n)
	}
	return keys
}

// remove deletes one thing as the job would, if it may.
func (j *counting) remove(key event.Key) error {
	if err := j.Guard(context.Background(), key, Evicting); err != nil {
		return err
	}
	j.r.Delete(things, key)
	j.Wrote(key, protocol.Write{Kind: things, Key: key, Deleted: true})
	return nil
}

// A job reads every partition of its kinds.
func TestAJobSeesTheWholeCluster(t *testing.T) {
	playJob(t, nil, func(r *rig, j *counting) {
		keys := j.wantSees(10)
		parts := map[int]bool{}
		for _, k := range keys {
			parts[partition.OfNamespace(k, 4)] = true
		}
		if len(parts) < 2 {
			r.Error("all are of one partition: the test shows nothing")
		}
		if s := r.c.Status().GetJobs(); len(s) != 1 || s[0].GetName() != "count" || s[0].GetEpoch() != 77 || !s[0].GetSynced() || s[0].GetObjects() != 10 || s[0].GetMode() != ModeActive {
			r.Errorf("status is %v", s)
		}
	})
}

// ⚠ What another holder did before the claim and the stream does not show yet is
// waited for: the last bookmark may be of any age.
func TestAJobDoesNotCountWhatItsPredecessorRemoved(t *testing.T) {
	playJob(t, func(r *rig) {
		r.things.Mark()
		r.things.Pause()
		r.Delete(things, event.Key{Namespace: "ns3", Name: "x"})
	}, func(r *rig, j *counting) {
		if keys, err := j.sees(4 * time.Second); err == nil {
			r.Errorf("it sees %d things by a bookmark of before", len(keys))
		}
		if s := r.c.Status().GetJobs(); s[0].GetWaitsFor() == "" {
			r.Error("status does not say what the job waits for")
		}
		r.things.Resume()
		j.wantSees(9)
	})
}

// ⚠ What the pass before wrote is not counted as there, though the input is fresh
// enough for a write.
func TestAJobDoesNotCountWhatItRemoved(t *testing.T) {
	playJob(t, nil, func(r *rig, j *counting) {
		keys := j.wantSees(10)
		r.things.Pause()
		if err := j.remove(keys[0]); err != nil {
			r.Fatal(err)
		}
		if keys, err := j.sees(2 * time.Second); err == nil {
			r.Errorf("it sees %d things by a bookmark of before its write", len(keys))
		}
		r.things.Resume()
		j.wantSees(9)
		// A write of which the answer never came may have been done too.
		r.things.Pause()
		r.Delete(things, keys[1])
		j.Record(keys[1], Decision{Object: Ref{Kind: things, Key: keys[1]}, Err: errors.New("no answer")})
		if keys, err := j.sees(2 * time.Second); err == nil {
			r.Errorf("it sees %d things by a bookmark of before a write that may have been done", len(keys))
		}
		r.things.Resume()
		j.wantSees(8)
	})
}

// ⚠ Each thing that must hold for a partition's write must hold for a job's.
func TestAJobAsksBeforeItWrites(t *testing.T) {
	pause := &operatorsWord{}
	playJob(t, func(r *rig) { r.def.Pause = pause }, func(r *rig, j *counting) {
		k := event.Key{Namespace: "ns0", Name: "x"}
		refused := func(want error, d Danger) {
			r.Helper()
			if err := j.Guard(context.Background(), k, d); !errors.Is(err, want) || want == nil && err != nil {
				r.Errorf("Guard says %v, want %v", err, want)
			}
		}
		settle(5 * time.Second)
		refused(ErrNotSynced, Harmless) // nothing was looked at
		j.wantSees(10)
		refused(nil, Evicting)

		pause.say(false, true, false)
		refused(ErrPaused, Evicting)
		refused(nil, Harmless)
		pause.say(false, false, false)

		r.clock.set(time.Minute, true)
		refused(ErrClock, Destructive)
		refused(nil, Harmless)
		r.clock.set(0, true)

		for mode, want := range map[string]error{ModeShadow: ErrShadow, ModeOff: ErrNotHolder, ModeActive: nil} {
			r.SetFact(ModeKey("mirror/count"), mode)
			settle(0)
			refused(want, Harmless)
			r.SetFact(ModeKey("mirror/count"), "")
			settle(0)
			r.SetFact(ModeKey("mirror"), mode)
			settle(0)
			refused(want, Harmless)
			r.SetFact(ModeKey("mirror"), "")
			settle(0)
		}
		if err := j.GuardPart(context.Background(), k, "other", Harmless); !errors.Is(err, ErrNotHolder) {
			r.Errorf("a write of a part that is off: %v", err)
		}

		j.g.invalid.Store(true)
		refused(ErrNotHolder, Harmless)
		j.g.invalid.Store(false)
		refused(nil, Harmless)

		// The input stays fresh, but what was looked at grows old.
		settle(6 * time.Second)
		refused(ErrStale, Evicting)
		refused(nil, Harmless)
		j.wantSees(10)
		refused(nil, Evicting)

		// Another watcher may have carried what the look did not show.
		r.Watch(things, 1)
		r.Put(things, key("new"), "x")
		settle(10 * time.Millisecond)
		refused(ErrNotSynced, Harmless)
		j.wantSees(11)
		refused(nil, Evicting)

		j.cancel()
		refused(ErrNotHolder, Harmless)
	})
}

// An input too old holds a look back until it is fresh again.
func TestAJobWaitsForFreshInputs(t *testing.T) {
	playJob(t, nil, func(r *rig, j *counting) {
		j.wantSees(10)
		r.things.SetMute(true)
		settle(10 * time.Second)
		if _, err := j.sees(5 * time.Second); err == nil {
			r.Error("it looked at an input of which nobody tells")
		}
		r.things.SetMute(false)
		j.wantSees(10)
	})
}

// A job's writes are on record with its name; what shadow holds back is recorded
// once, not once a pass.
func TestAJobsWritesAreRecorded(t *testing.T) {
	playJob(t, func(r *rig) { r.def.Host = "replica-1" }, func(r *rig, j *counting) {
		k := event.Key{Namespace: "ns0", Name: "x"}
		d := Decision{Object: Ref{Kind: things, Key: k, UID: "u"}, Verb: "delete", Rule: "too-many", Detail: "1 too many"}
		j.Record(k, d)
		d.Shadow = true
		for range 3 {
			j.Record(k, d)
		}
		d.Object.UID = "another"
		j.Record(k, d)
		j.Begin() // what holds has changed
		j.Record(k, d)
		settle(time.Second)
		all := r.records()
		if len(all) != 4 {
			r.Fatalf("%d records, want 4: %v", len(all), all)
		}
		got := all[0]
		if got.GetJob() != "count" || got.GetEpoch() != 77 || got.GetMember() != "m7" || got.GetHost() != "replica-1" || got.GetRole() != "mirror" ||
			got.GetDetail() != "1 too many" || got.GetKey().GetName() != "x" || got.GetKey().GetKind() != string(things) ||
			got.GetOutcome() != millracev1.Outcome_OUTCOME_TAKEN || all[1].GetOutcome() != millracev1.Outcome_OUTCOME_INTENDED {
			r.Errorf("record is %v", got)
		}
	})
}

// Passes follow each other at their period; one that must look again does so soon.
func TestPassesOfAJob(t *testing.T) {
	playJob(t, nil, func(r *rig, j *counting) {
		var at []time.Duration
		begun := time.Now()
		results := []error{nil, &StaleError{Kind: things}, errors.New("no"), nil}
		ctx, cancel := context.WithCancel(context.Background())
		err := j.Every(ctx, 20*time.Second, func(context.Context) error {
			at = append(at, time.Since(begun).Round(time.Second))
			if len(at) == 4 {
				if s := r.c.Status().GetJobs()[0]; s.GetPasses() != 3 || s.GetLastError() != "no" {
					r.Errorf("status is %v", s)
				}
				cancel()
			}
			return results[len(at)-1]
		})
		want := []time.Duration{0, 20 * time.Second, 21 * time.Second, 41 * time.Second}
		if !slices.Equal(at, want) || !errors.Is(err, context.Canceled) {
			r.Errorf("passes at %v, then %v; want %v", at, err, want)
		}
	})
}
