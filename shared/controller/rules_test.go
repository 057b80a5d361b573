package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/protocol"
)

// withAndWithout plays a story under a rule and without it. Without it the story
// must come out wrong, or the rule closes nothing.
func withAndWithout(t *testing.T, prepare func(r *rig, with bool), story func(r *rig) (problem string)) {
	t.Helper()
	for _, with := range []bool{true, false} {
		name := "with the rule"
		if !with {
			name = "without it the story goes wrong"
		}
		t.Run(name, func(t *testing.T) {
			play(t, 1, func(r *rig) { prepare(r, with) }, func(r *rig) {
				switch problem := story(r); {
				case with && problem != "":
					r.Error(problem)
				case !with && problem == "":
					r.Error("the story comes out right: it does not show what the rule is for")
				}
			})
		})
	}
}

// 6.3. A new UID under a key is a deletion and a creation: without the rule the
// reconciler would see one change and take the new object for the old.
func TestRule3ANewUIDIsADeletionAndACreation(t *testing.T) {
	var seen []string
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "x")
		keys := r.def.Keys
		r.def.Keys = func(p *Partition, c cache.Change) []event.Key {
			if c.Kind == things {
				seen = append(seen, fmt.Sprintf("old=%t new=%t deleted=%t", c.Old != nil, c.New != nil, c.Deleted()))
			}
			return keys(p, c)
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.things.Pause()
		r.Delete(things, key("a"))
		r.Put(things, key("a"), "y")
		r.things.Resume() // the watch saw only the newest state
		settle(3 * time.Second)
		want := "[old=true new=false deleted=true old=false new=true deleted=false]"
		if got := fmt.Sprint(seen); got != want {
			r.Errorf("changes %s, want %s", got, want)
		}
		r.wantMirrored()
	})
}

// 6.3. Serial per key, parallel across keys.
func TestRule3SerialPerKeyParallelAcrossKeys(t *testing.T) {
	play(t, 1, func(r *rig) { r.reconcile = sleeper(time.Second) }, func(r *rig) {
		r.lease.Claim(0)
		settle(2 * time.Second)
		for i := range 5 {
			r.Put(things, key(fmt.Sprint("k", i)), "x")
		}
		for range 9 { // while they are in hand
			settle(100 * time.Millisecond)
			r.Put(things, key("k0"), time.Now().String())
		}
		settle(50 * time.Millisecond)
		for i := range 5 {
			r.wantRuns(key(fmt.Sprint("k", i)), 1)
		}
		settle(3 * time.Second)
		r.wantRuns(key("k0"), 2) // nine changes, one run more
	})
}

// 6.4. From current inputs and current outputs: a thing that stopped asking for
// its out while nobody ran. Without the outputs, only the version before would
// say whom that concerns, and a crash forgets it.
func TestRule4MappingKnowsCurrentOutputs(t *testing.T) {
	withAndWithout(t, func(r *rig, with bool) {
		r.Put(things, key("a"), "x")
		if !with {
			r.def.All = func(p *Partition) (keys []event.Key) {
				p.View(func(r Reader) { keys = r.Keys(things) })
				return keys
			}
		}
	}, func(r *rig) string {
		g := r.lease.Claim(0)
		settle(3 * time.Second)
		g.Lose()
		r.Delete(things, key("a"))
		settle(time.Second)
		r.lease.Claim(0)
		settle(5 * time.Second)
		return r.unmirrored()
	})
}

// 6.5. The next run waits until the write has come back: without it the run
// decides on a cache that does not show what the key has just done.
func TestRule5TheNextRunSeesWhatTheKeyWrote(t *testing.T) {
	withAndWithout(t, func(r *rig, with bool) {
		// A reconciler that appends: it must never decide on its old out.
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			p.ReadLive(k)
			if s := r.cached(p, k); s.hasOut && s.out.Body != "1" || !s.hasThing {
				return Result{}, nil
			} else if !s.hasOut {
				o := r.Put(outs, k, "1")
				r.mu.Lock()
				r.writes++
				r.mu.Unlock()
				if with {
					p.Wrote(k, protocol.Write{Kind: outs, Key: k, UID: o.UID, Version: o.Version})
				}
			}
			return Result{}, nil
		}
	}, func(r *rig) string {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.outs.Pause() // the way back takes a second
		r.Put(things, key("a"), "x")
		settle(time.Millisecond)
		r.Put(things, key("a"), "y")
		settle(time.Second)
		runs := r.ran(key("a"))
		r.outs.Resume()
		settle(time.Second)
		if n := r.written(); n != 1 {
			return fmt.Sprintf("%d writes, want 1", n)
		}
		if runs != 1 || r.ran(key("a")) != 2 {
			return fmt.Sprintf("%d runs before the write came back and %d in all, want 1 and 2", runs, r.ran(key("a")))
		}
		return ""
	})
}

// 6.5. No event need follow a write: a bookmark tells of it.
func TestRule5ABookmarkTellsOfAWriteThatNoEventFollows(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.reconcile = func(_ context.Context, p *Partition, k event.Key) (Result, error) {
			o, _ := r.Get(outs, k)
			o = r.Put(outs, k, o.Body) // the projection hides what changed
			p.Wrote(k, protocol.Write{Kind: outs, Key: k, UID: o.UID, Version: o.Version})
			return Result{}, nil
		}
		r.Put(things, key("a"), "x")
		r.Put(outs, key("a"), "same")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("a"), "y")
		settle(time.Millisecond)
		before := r.ran(key("a"))
		r.Put(things, key("a"), "z")
		settle(2 * time.Second)
		r.wantRuns(key("a"), before+1)
		if r.c.partitions()[0].LiveFirst(key("b")) {
			r.Error("a live read is asked for although the bookmark told of the write")
		}
	})
}

// 6.5. The same of a wide kind.
func TestRule5ABookmarkTellsOfAWriteToAWideKind(t *testing.T) {
	node := event.Key{Name: "n1"}
	play(t, 1, func(r *rig) {
		r.Put(nodes, node, "same")
		r.reconcile = func(_ context.Context, p *Partition, k event.Key) (Result, error) {
			o := r.Put(nodes, node, "same")
			p.Wrote(k, protocol.Write{Kind: nodes, Key: node, UID: o.UID, Version: o.Version})
			return Result{}, nil
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3500 * time.Millisecond)
		r.things.SetMute(true) // so that only the wide bookmark can tell
		r.outs.SetMute(true)
		r.Put(things, key("a"), "x")
		settle(time.Millisecond)
		r.Put(things, key("a"), "y")
		settle(100 * time.Millisecond)
		r.wantRuns(key("a"), 1)
		settle(time.Second)
		r.wantRuns(key("a"), 2)
	})
}

// 6.5. Bounded, with the live read as the way out.
func TestRule5TheWaitEndsInALiveRead(t *testing.T) {
	var live []bool
	play(t, 1, func(r *rig) {
		r.reconcile = func(_ context.Context, p *Partition, k event.Key) (Result, error) {
			live = append(live, p.LiveFirst(k))
			p.ReadLive(k)
			p.Wrote(k, protocol.Write{Kind: outs, Key: k, UID: "u", Version: 1 << 60})
			return Result{}, nil
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("a"), "x")
		settle(time.Second)
		r.Put(things, key("a"), "y")
		settle(3900 * time.Millisecond)
		r.wantRuns(key("a"), 1)
		settle(200 * time.Millisecond)
		if got := fmt.Sprint(live); got != "[false true]" {
			r.Errorf("LiveFirst was %s, want [false true]", got)
		}
	})
}

// 6.6. Input older than 30 s stops everything, 5 s what is destructive; keys
// wait, which is no error, and it is said once.
func TestRule6StaleInputsMakeKeysWait(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "x")
		r.Put(things, key("b"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(5 * time.Second)
		r.nodes.SetMute(true)
		settle(10 * time.Second)
		r.Put(things, key("a"), "harmless") // 10 s: still allowed
		r.Delete(things, key("b"))          // destructive: not
		settle(5 * time.Second)
		if o, _ := r.Get(outs, key("a")); o.Body != "harmless/0" {
			r.Errorf("out of a is %q after 15 s of silence", o.Body)
		}
		if _, there := r.Get(outs, key("b")); !there {
			r.Error("a destructive write on an input 15 s old")
		}
		settle(20 * time.Second)
		runs := r.ran(key("a"))
		r.Put(things, key("a"), "late")
		settle(time.Minute)
		r.wantRuns(key("a"), runs)
		if err := r.c.Ready(); err == nil || !strings.Contains(err.Error(), "nodes: no bookmark for") {
			r.Errorf("Ready() = %v", err)
		}
		if n := r.logs.count("input is too old"); n != 1 {
			r.Errorf("%d log lines about it, want 1", n)
		}
		if r.value("millrace_controller_guard_refusals_total", "reason=stale") == 0 {
			r.Error("the refusal was not counted")
		}
		if n := r.value("millrace_controller_reconciles_total", "result=error"); n != 0 {
			r.Errorf("%v errors; waiting is none", n)
		}
		r.nodes.SetMute(false)
		settle(5 * time.Second)
		r.wantMirrored()
		if n := r.logs.count("inputs are fresh again"); n != 1 {
			r.Errorf("%d log lines about the end of it, want 1", n)
		}
	})
}

// 6.6. The first bookmark after a start may be of any age.
func TestRule6TheFirstBookmarkDoesNotCountForWhatIsDestructive(t *testing.T) {
	play(t, 1, func(r *rig) { r.Put(things, key("a"), "x") }, func(r *rig) {
		settle(3 * time.Second) // a bookmark stands in the stream
		for _, w := range []interface{ SetMute(bool) }{r.things, r.outs, r.nodes} {
			w.SetMute(true)
		}
		r.lease.Claim(0)
		settle(time.Second)
		p := r.c.partitions()[0]
		ctx := context.Background()
		p.ReadLive(key("a"))
		if err := p.Guard(ctx, key("a"), Harmless); err != nil {
			r.Errorf("harmless: %v", err)
		}
		if err := p.Guard(ctx, key("a"), Destructive); !errors.Is(err, ErrStale) {
			r.Errorf("destructive: %v, want ErrStale", err)
		}
		for _, w := range []interface{ SetMute(bool) }{r.things, r.outs, r.nodes} {
			w.SetMute(false)
		}
		settle(2 * time.Second)
		if err := p.Guard(ctx, key("a"), Destructive); err != nil {
			r.Errorf("destructive after two bookmarks: %v", err)
		}
	})
}

// 6.6 ⚠. A watcher that carried two kinds dies, a node is added, a thing changes
// because of it. The next watcher takes the things first: nobody may decide on
// the thing of now and the nodes of before, which never stood together.
func TestRule6NoDecisionBetweenTwoWatchers(t *testing.T) {
	play(t, 1, func(r *rig) { r.Put(things, key("a"), "one") }, func(r *rig) {
		r.lease.Claim(0)
		settle(3300 * time.Millisecond) // no bookmark comes at the same moment
		r.things.Pause()
		r.nodes.Pause()
		r.Put(nodes, event.Key{Name: "n"}, "")
		r.Put(things, key("a"), "two")
		r.things = r.Watch(things, 1)
		settle(1500 * time.Millisecond)
		p := r.c.partitions()[0]
		if s := r.cached(p, key("a")); s.thing.Body != "two" || s.nodes != 0 {
			r.Fatalf("the cache shows %q and %d nodes, want two and none", s.thing.Body, s.nodes)
		}
		if o, _ := r.Get(outs, key("a")); o.Body != "one/0" {
			r.Errorf("out is %q while the nodes have no watcher", o.Body)
		}
		if err := p.Guard(context.Background(), key("a"), Harmless); !errors.Is(err, ErrNotSynced) {
			r.Errorf("Guard() = %v, want ErrNotSynced", err)
		}
		r.nodes = r.Watch(nodes, 1)
		settle(2 * time.Second)
		if o, _ := r.Get(outs, key("a")); o.Body != "two/1" {
			r.Errorf("out is %q once the nodes have one too", o.Body)
		}
		if n := r.value("millrace_controller_reconciles_total", "result=error"); n != 0 {
			r.Errorf("%v errors; waiting is none", n)
		}
	})
}

// 6.6 ⚠. The same for a key in hand: it looked before the new watcher had told
// everything, and asks when it has.
func TestRule6AKeyInHandBetweenTwoWatchers(t *testing.T) {
	var said []error
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "one")
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			if r.cached(p, k).thing.Body == "two" {
				time.Sleep(5 * time.Second)
				err := p.Guard(ctx, k, Harmless)
				said = append(said, err)
				return Result{}, err
			}
			p.ReadLive(k)
			return Result{}, nil
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("a"), "two")
		settle(time.Second)
		r.nodes = r.Watch(nodes, 1)
		settle(20 * time.Second)
		if len(said) != 2 || !errors.Is(said[0], ErrNotSynced) || said[1] != nil {
			r.Errorf("Guard() said %v, want ErrNotSynced and then nothing", said)
		}
	})
}

// 6.6. What a replay tells of watchers that were is no reason to wait: a claim
// would last until the next bookmarks.
func TestRule6AReplayTellsOfNoNewWatcher(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "x")
		r.things = r.Watch(things, 1)
		r.Put(things, key("b"), "x") // the first is of the first watcher, this of the second
	}, func(r *rig) {
		settle(3 * time.Second)
		r.nodes.SetMute(true)
		settle(100 * time.Millisecond)
		r.lease.Claim(0)
		settle(500 * time.Millisecond)
		r.wantMirrored()
	})
}

// 6.1, 6.7 ⚠. After a replay the first write of a key is decided on a live read,
// as after a claim: what proved the inputs complete may be of any age.
func TestRule7TheFirstWriteAfterAReplayIsDecidedOnALiveRead(t *testing.T) {
	var live []bool
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "x")
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			live = append(live, p.LiveFirst(k))
			return r.mirror(ctx, p, k)
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		live = nil
		r.Put(things, key("a"), "y")
		settle(3 * time.Second)
		if slices.Contains(live, true) {
			r.Errorf("LiveFirst was %v before there was a replay", live)
		}
		live = nil
		r.Break()
		settle(3 * time.Second)
		if len(live) == 0 || !live[0] {
			r.Errorf("LiveFirst was %v after a replay, want true", live)
		}
	})
}

// 5, 6.7. The predecessor's last write is not in the stream yet: without the
// live read the successor writes a second time, from what it does not see.
func TestRule7TheFirstWriteAfterAClaimIsDecidedOnALiveRead(t *testing.T) {
	withAndWithout(t, func(r *rig, with bool) {
		r.Put(things, key("a"), "x")
		if !with {
			r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
				p.ReadLive(k) // it says so, and has not
				return Result{}, r.apply(ctx, p, k, r.cached(p, k))
			}
		}
	}, func(r *rig) string {
		settle(3 * time.Second)
		r.outs.Pause()
		r.Put(outs, key("a"), "x/0") // the predecessor's
		r.lease.Claim(0)
		settle(3 * time.Second)
		if n := r.value("millrace_controller_conflicts_total"); n > 0 {
			return fmt.Sprintf("%v conflicts with what a predecessor wrote", n)
		}
		return ""
	})
}

// 6.7. Guard itself holds the rule: a key known at the claim is refused until
// it was read live, one first seen later is not.
func TestRule7GuardAsksForTheLiveRead(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.reconcile = sleeper(0)
		r.Put(things, key("old"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("new"), "x")
		settle(time.Second)
		p, ctx := r.c.partitions()[0], context.Background()
		if err := p.Guard(ctx, key("old"), Harmless); !errors.Is(err, ErrLiveFirst) {
			r.Errorf("Guard of a key known at the claim: %v, want ErrLiveFirst", err)
		}
		p.ReadLive(key("old"))
		if err := p.Guard(ctx, key("old"), Harmless); err != nil {
			r.Errorf("Guard after the live read: %v", err)
		}
		if p.LiveFirst(key("new")) || p.Guard(ctx, key("new"), Harmless) != nil {
			r.Error("a key first seen live needs no live read")
		}
	})
}

// 6.7. A conflict is answered on a live read, at once, then with backoff. Without
// the live read no event would ever mend it: the change that caused it is one
// that the projection hides.
func TestRule7AConflictIsAnsweredOnALiveRead(t *testing.T) {
	withAndWithout(t, func(r *rig, with bool) {
		r.Put(things, key("a"), "x")
		if !with {
			r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
				p.ReadLive(k)
				return Result{}, r.apply(ctx, p, k, r.cached(p, k))
			}
		}
	}, func(r *rig) string {
		r.lease.Claim(0)
		settle(3 * time.Second)
		o, _ := r.Get(outs, key("a"))
		r.Put(outs, key("a"), o.Body) // another version, no event
		r.Put(things, key("a"), "y")
		settle(10 * time.Minute)
		if n := r.value("millrace_controller_conflicts_total"); n > 1 {
			return fmt.Sprintf("%v conflicts, want 1", n)
		}
		return r.unmirrored()
	})
}

// 6.7. Everything else is retried for as long as it takes, at most 30 s apart.
func TestRule7FailuresAreRetriedForAsLongAsItTakes(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.fail(true)
		mirror := r.reconcile
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			if r.isFailing() && k == key("a") {
				return Result{}, errors.New("refused by policy")
			}
			return mirror(ctx, p, k)
		}
		r.Put(things, key("a"), "x")
		r.Put(things, key("b"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(2 * time.Hour)
		r.mu.Lock()
		runs := r.runs[key("a")]
		r.mu.Unlock()
		for i := 1; i < len(runs); i++ {
			if gap := runs[i].Sub(runs[i-1]); gap > 30*time.Second {
				r.Fatalf("retry %d came after %s", i, gap)
			}
		}
		if n := len(runs); n < 240 || n > 520 {
			r.Errorf("%d tries in two hours", n)
		}
		if o, _ := r.Get(outs, key("b")); o.Body != "x/0" {
			r.Error("another key was held up")
		}
		r.fail(false)
		settle(30 * time.Second)
		r.wantMirrored()
	})
}

// 6.7. What was to be written is gone: its tombstone is waited for.
func TestRule7WhatIsGoneWaitsForItsTombstone(t *testing.T) {
	errGone := errors.New("gone")
	play(t, 1, func(r *rig) {
		r.def.Classify = func(error) Class { return Gone }
		r.reconcile = func(_ context.Context, p *Partition, k event.Key) (Result, error) {
			if _, exists := r.Get(things, k); !exists && r.cached(p, k).hasThing {
				return Result{}, errGone
			}
			return Result{}, nil
		}
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.things.Pause()
		r.Delete(things, key("a"))
		r.Put(outs, key("a"), "wakes the key")
		settle(10 * time.Second)
		r.wantRuns(key("a"), 2)
		r.things.Resume()
		settle(time.Second)
		r.wantRuns(key("a"), 3)
	})
}

// 6.7. Terminal: dead letter, no retry, cleared on success.
func TestRule7TerminalIsDeadLettered(t *testing.T) {
	play(t, 1, func(r *rig) {
		mirror := r.reconcile
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			if r.cached(p, k).thing.Body == "unformable" {
				return Result{}, fmt.Errorf("reconciling: %w", Terminal(errors.New("cannot form the write")))
			}
			return mirror(ctx, p, k)
		}
		r.Put(things, key("a"), "unformable")
	}, func(r *rig) {
		g := r.lease.Claim(0)
		settle(time.Hour)
		r.wantRuns(key("a"), 1)
		if l := r.letter("things a/a"); !strings.Contains(l, "cannot form the write") {
			r.Errorf("letter %q", l)
		}
		g.Drain()
		r.Put(things, key("a"), "x") // mended while nobody held it
		r.lease.Claim(0)
		settle(5 * time.Second)
		if l := r.letter("things a/a"); l != "" {
			r.Errorf("letter %q was not cleared", l)
		}
		r.wantMirrored()
	})
}

func (r *rig) letter(at string) string {
	r.Mu.Lock()
	defer r.Mu.Unlock()
	return r.Letters[at].GetReason()
}

// 6.7, I10. A panic is contained to its key.
func TestRule7APanicIsContainedToItsKey(t *testing.T) {
	play(t, 1, func(r *rig) {
		mirror := r.reconcile
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			if r.cached(p, k).thing.Body == "boom!" {
				panic("at the disco")
			}
			return mirror(ctx, p, k)
		}
		r.Put(things, key("a"), "boom!")
		r.Put(things, key("b"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(time.Minute)
		if o, _ := r.Get(outs, key("b")); o.Body != "x/0" {
			r.Error("another key was held up")
		}
		if r.value("millrace_controller_panics_total") == 0 || r.value("millrace_controller_reconciles_total", "result=panic") == 0 {
			r.Error("panics were not counted")
		}
		if r.logs.count("rules_test.go") == 0 {
			r.Error("no stack was logged")
		}
		r.Put(things, key("a"), "y")
		settle(time.Second)
		r.wantMirrored()
	})
}

// I10. So is one in the mapping: whom it concerned is not known, so everything
// is looked at.
func TestRule7APanicInTheMappingLosesNothing(t *testing.T) {
	play(t, 1, func(r *rig) {
		keys := r.def.Keys
		r.def.Keys = func(p *Partition, c cache.Change) []event.Key {
			if c.Kind == things && c.New != nil && c.New.(thing).Body == "y" {
				panic("mapping")
			}
			return keys(p, c)
		}
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.Put(things, key("a"), "y")
		settle(10 * time.Second)
		r.wantMirrored()
	})
}

// I10. An object that cannot be read: dead letter, one line, nothing else stops;
// cleared when it can be read again.
func TestRule7APoisonObjectStopsNothingElse(t *testing.T) {
	for _, body := range []string{"bad", "boom"} {
		t.Run(body, func(t *testing.T) {
			play(t, 1, func(r *rig) {
				r.Put(things, key("a"), body)
				r.Put(things, key("b"), "x")
			}, func(r *rig) {
				r.lease.Claim(0)
				settle(3 * time.Second)
				r.wantMirrored()
				r.Break()
				settle(5 * time.Second)
				if n := r.logs.count("object cannot be read"); n != 1 {
					r.Errorf("%d log lines, want 1", n)
				}
				if r.letter("things a/a") == "" {
					r.Error("no dead letter")
				}
				p := r.c.partitions()[0]
				p.View(func(v Reader) {
					if !v.Opaque(things, key("a")) || len(v.Opaques(things, "a")) != 1 {
						r.Error("the entry is not opaque")
					}
				})
				r.Put(things, key("a"), "y")
				settle(3 * time.Second)
				r.wantMirrored()
				if l := r.letter("things a/a"); l != "" {
					r.Errorf("letter %q was not cleared", l)
				}
			})
		})
	}
}

// 6.8, I7. The whole stream once more: every key is reconciled, nothing written.
func TestRule8TheWholeStreamAgainWritesNothing(t *testing.T) {
	play(t, 2, func(r *rig) {
		for i := range 50 {
			r.Put(things, event.Key{Namespace: fmt.Sprint("ns", i%7), Name: fmt.Sprint("t", i)}, "x")
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		r.lease.Claim(1)
		settle(5 * time.Second)
		r.wantMirrored()
		writes := r.written()
		runs := r.value("millrace_controller_reconciles_total", "result=ok")
		r.Break()
		settle(5 * time.Second)
		if got := r.value("millrace_controller_reconciles_total", "result=ok"); got < runs+50 {
			r.Errorf("%v reconciles after the replay, %v before it", got, runs)
		}
		if got := r.written(); got != writes {
			r.Errorf("%d writes of what had not changed", got-writes)
		}
	})
}

// 6.9. Shadow: everything runs, nothing is written.
func TestRule9ShadowModeWritesNothing(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.cfg.Mode = ModeShadow
		r.Put(things, key("a"), "x")
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(time.Minute)
		r.wantRuns(key("a"), 1)
		if n := r.written(); n != 0 {
			r.Errorf("%d writes", n)
		}
		if r.value("millrace_controller_reconciles_total", "result=shadow") != 1 {
			r.Error("the held back write was not counted")
		}
	})
}

// I5. No write of whoever does not hold the partition.
func TestGuardRefusesWhoDoesNotHoldThePartition(t *testing.T) {
	play(t, 1, func(r *rig) { r.Put(things, key("a"), "x") }, func(r *rig) {
		g := r.lease.Claim(0)
		settle(3 * time.Second)
		p, ctx := r.c.partitions()[0], context.Background()
		g.SetValid(false)
		if err := p.Guard(ctx, key("a"), Harmless); !errors.Is(err, ErrNotHolder) {
			r.Errorf("Guard with a lease that may have run out: %v", err)
		}
		r.Put(things, key("a"), "y")
		settle(time.Minute)
		if o, _ := r.Get(outs, key("a")); o.Body != "x/0" {
			r.Errorf("out is %q, written without a lease", o.Body)
		}
		g.SetValid(true)
		settle(2 * time.Second)
		r.wantMirrored()
		for i := range 5 { // however long it was not valid
			g.SetValid(false)
			r.Put(things, key("a"), strconv.Itoa(i))
			settle(100*time.Second + time.Duration(i)*7*time.Second)
			g.SetValid(true)
			settle(2 * time.Second)
			r.wantMirrored()
		}
		g.Lose()
		if err := p.Guard(ctx, key("a"), Harmless); !errors.Is(err, ErrNotHolder) {
			r.Errorf("Guard after the loss: %v", err)
		}
	})
}

// Result.After: a later run replaces the timer.
func TestALaterRunMovesTheTimer(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.reconcile = func(context.Context, *Partition, event.Key) (Result, error) {
			return Result{After: 50 * time.Second}, nil
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(2 * time.Second)
		r.Put(things, key("a"), "x")
		settle(30 * time.Second)
		r.Put(things, key("a"), "y")
		settle(49 * time.Second)
		r.wantRuns(key("a"), 2)
		settle(2 * time.Second)
		r.wantRuns(key("a"), 3)
	})
}

// What woke a key is told, the oldest of what was not reconciled.
func TestChangedTellsTheOldestChange(t *testing.T) {
	var versions []uint64
	first := true
	play(t, 1, func(r *rig) {
		r.reconcile = func(_ context.Context, p *Partition, k event.Key) (Result, error) {
			cause, _ := p.Changed(k)
			versions = append(versions, cause.Message.Version)
			if first {
				first = false
				r.Put(things, k, "while in hand")
				return Result{}, errors.New("not yet")
			}
			return Result{}, nil
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(2 * time.Second)
		o := r.Put(things, key("a"), "x")
		settle(time.Second)
		if got, want := fmt.Sprint(versions), fmt.Sprint([]uint64{o.Version, o.Version}); got != want {
			r.Errorf("causes %s, want %s", got, want)
		}
		synctest.Wait()
	})
}

// 6.7 ⚠. What another holder has just written was decided on inputs that this
// one may not have seen: a live read of it next to an older cache would undo it.
// So CatchUp waits for bookmarks that come after it was asked.
func TestRule7ALiveReadWaitsForInputsAsNew(t *testing.T) {
	type seen struct {
		before, after string
		took          time.Duration
		err           error
	}
	var got []seen
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "old")
		r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
			if r.ran(k) != 2 { // the second is the one that the story wakes
				return Result{}, nil
			}
			began := time.Now()
			before := r.cached(p, k).thing.Body
			r.things.Resume() // the change that the other holder saw is on its way
			err := p.CatchUp(ctx)
			r.mu.Lock()
			defer r.mu.Unlock()
			got = append(got, seen{before, r.cached(p, k).thing.Body, time.Since(began), err})
			return Result{}, nil
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.things.Pause()
		r.Put(things, key("a"), "new")
		r.Put(outs, key("a"), "new/0") // by the other holder
		settle(5 * time.Second)
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(got) != 1 || got[0].err != nil || got[0].before != "old" || got[0].after != "new" {
			r.Fatalf("the decision saw %+v, want old before and new after", got)
		}
		if got[0].took > time.Second {
			r.Errorf("it took %s, although bookmarks can be asked for", got[0].took)
		}
	})
}

// 6.7 ⚠. A bookmark that was under way when CatchUp was called says nothing of
// what the other holder has seen since it was made, although it comes later.
func TestRule7ABookmarkUnderWayDoesNotCount(t *testing.T) {
	play(t, 1, func(r *rig) { r.Put(things, key("a"), "old") }, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.nodes.SetMute(true)
		settle(300 * time.Millisecond) // bookmarks by the clock are some way off
		p := r.c.partitions()[0]
		r.Hold(true)
		r.things.Mark()
		r.outs.Mark()
		settle(time.Millisecond)
		r.Put(things, key("a"), "new") // and the other holder acts on it

		done := make(chan error, 1)
		go func() { done <- p.CatchUp(context.Background()) }()
		settle(10 * time.Millisecond)
		r.Release(2)
		settle(10 * time.Millisecond)
		select {
		case err := <-done:
			r.Errorf("CatchUp returned %v on bookmarks that are older than the question; the cache says %q", err, r.cached(p, key("a")).thing.Body)
		default:
		}
		r.Hold(false)
		settle(10 * time.Millisecond)
		select {
		case err := <-done:
			if body := r.cached(p, key("a")).thing.Body; err != nil || body != "new" {
				r.Errorf("CatchUp returned %v, the cache says %q", err, body)
			}
		default:
			r.Error("CatchUp still waits")
		}
	})
}

// 6.7. Where no bookmark comes, nothing is decided.
func TestRule7WithoutBookmarksALiveReadDecidesNothing(t *testing.T) {
	var errs []error
	play(t, 1, func(r *rig) {
		r.reconcile = func(ctx context.Context, p *Partition, _ event.Key) (Result, error) {
			err := p.CatchUp(ctx)
			r.mu.Lock()
			defer r.mu.Unlock()
			errs = append(errs, err)
			return Result{}, err
		}
	}, func(r *rig) {
		r.lease.Claim(0)
		settle(3 * time.Second)
		r.things.SetMute(true)
		r.Put(outs, key("a"), "x")
		settle(catchUpWait + time.Second)
		r.mu.Lock()
		if len(errs) == 0 || !errors.Is(errs[0], ErrNotSynced) {
			r.Errorf("CatchUp returned %v, want ErrNotSynced", errs)
		}
		r.mu.Unlock()
		r.things.SetMute(false)
		settle(3 * time.Second)
		r.mu.Lock()
		defer r.mu.Unlock()
		if last := errs[len(errs)-1]; last != nil {
			r.Errorf("with bookmarks again it returned %v", last)
		}
	})
}
