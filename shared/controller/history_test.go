package controller

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/shared/cache"
	"github.com/millrace-io/millrace/shared/controller/controllertest"
	"github.com/millrace-io/millrace/shared/event"
)

// step is one thing that happens to the world.
type step struct {
	what      string
	kind      event.Kind
	key       event.Key
	body      string
	partition int
	pause     time.Duration
}

const partitions = 3

func drawStep(t *rapid.T) step {
	s := step{
		what: rapid.SampledFrom([]string{
			"put", "put", "put", "put", "delete", "delete", "break", "vanish", "revive",
			"watcher", "pause", "resume", "drain", "lose", "mute", "unmute", "node", "meddle",
		}).Draw(t, "what"),
		kind:      rapid.SampledFrom([]event.Kind{things, outs, nodes}).Draw(t, "kind"),
		body:      rapid.SampledFrom([]string{"x", "y", "z", "bad"}).Draw(t, "body"),
		partition: rapid.IntRange(0, partitions-1).Draw(t, "partition"),
		pause:     time.Duration(rapid.SampledFrom([]int{0, 0, 1, 40, 400, 3000}).Draw(t, "pause")) * time.Millisecond,
	}
	s.key = event.Key{
		Namespace: rapid.SampledFrom([]string{"ns1", "ns2", "ns3", "ns4"}).Draw(t, "namespace"),
		Name:      rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, "name"),
	}
	return s
}

// I4, I7, 6.3. Whatever happens, at rest every cache equals the API, every key
// has been reconciled after its last change, never twice at once, and one more
// replay of everything writes nothing.
func TestAnyHistoryComesToRest(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		steps := rapid.SliceOfN(rapid.Custom(drawStep), 1, 60).Draw(rt, "steps")
		var problem string
		synctest.Test(t, func(t *testing.T) { problem = playHistory(t, steps) })
		if problem != "" {
			rt.Fatal(problem)
		}
	})
}

// playHistory plays a history and returns what is wrong at its end.
func playHistory(t *testing.T, steps []step) (problem string) {
	r := newRig(t, partitions)
	r.flaky()
	stop := r.start()
	defer stop()
	grants := make([]*controllertest.Grant, partitions)
	for i := range grants {
		grants[i] = r.lease.Claim(i)
	}
	for _, s := range steps {
		r.happen(s, grants)
		time.Sleep(s.pause)
	}
	for _, w := range r.watchers() {
		w.Resume()
		w.SetMute(false)
	}
	r.fail(false)
	settle(3 * time.Minute) // drift is found, mended, retried
	if problem := r.unmirrored(); problem != "" {
		return problem
	}
	if problem := r.differs(); problem != "" {
		return problem
	}
	writes := r.written()
	r.Break()
	settle(time.Minute) // it may show what had vanished behind a cache that had it
	if n := r.written() - writes; n != 0 {
		return fmt.Sprintf("%d writes of what had not changed", n)
	}
	if keys := r.value("millrace_controller_backlog"); keys != 0 {
		return fmt.Sprintf("%v keys are not reconciled at rest", keys)
	}
	return ""
}

func (r *rig) watchers() []*controllertest.Watcher {
	return []*controllertest.Watcher{r.things, r.outs, r.nodes}
}

func (r *rig) watcher(kind event.Kind) **controllertest.Watcher {
	return map[event.Kind]**controllertest.Watcher{things: &r.things, outs: &r.outs, nodes: &r.nodes}[kind]
}

func (r *rig) happen(s step, grants []*controllertest.Grant) {
	w := r.watcher(s.kind)
	switch s.what {
	case "put":
		r.Put(things, s.key, s.body)
	case "delete":
		r.Delete(things, s.key)
	case "node":
		if _, there := r.Get(nodes, event.Key{Name: s.key.Name}); there {
			r.Delete(nodes, event.Key{Name: s.key.Name})
		} else {
			r.Put(nodes, event.Key{Name: s.key.Name}, "")
		}
	case "meddle": // another writer, or a predecessor
		r.Put(outs, s.key, "meddled")
	case "break":
		r.Break()
	case "vanish": // a rolled back server
		r.Vanish(s.kind, s.key)
	case "revive": // a killed one
		r.Force(event.Message{
			Kind: things, Key: s.key, Op: event.Put, UID: "ghost", Version: 1, Projection: 1, Epoch: 1, Body: []byte("g"), Hash: 7,
		})
	case "watcher":
		muted := (*w).Mute
		*w = r.Watch(s.kind, 1)
		(*w).SetMute(muted)
	case "pause":
		(*w).Pause()
	case "resume":
		(*w).Resume()
	case "mute":
		(*w).SetMute(true)
	case "unmute":
		(*w).SetMute(false)
	case "drain":
		grants[s.partition].Drain()
		grants[s.partition] = r.lease.Claim(s.partition)
	case "lose":
		grants[s.partition].Lose()
		grants[s.partition] = r.lease.Claim(s.partition)
	}
}

// flaky makes the API fail now and then, take its time, and panic.
func (r *rig) flaky() {
	r.failing = true
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a test repeats
	r.reconcile = func(ctx context.Context, p *Partition, k event.Key) (Result, error) {
		r.mu.Lock()
		dice, failing := random.IntN(20), r.failing
		r.mu.Unlock()
		if failing {
			switch dice {
			case 0:
				return Result{}, errors.New("unavailable")
			case 1:
				panic("at the disco")
			case 2:
				time.Sleep(200 * time.Millisecond)
			case 3:
				return Result{After: time.Second}, nil
			}
		}
		return r.mirror(ctx, p, k)
	}
}

func (r *rig) isFailing() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failing
}

func (r *rig) fail(on bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failing = on
}

// differs compares every cache with the API.
func (r *rig) differs() string {
	for _, p := range r.c.partitions() {
		problem := ""
		p.View(func(v Reader) { problem = r.differsFrom(v, p.Number()) })
		if problem != "" {
			return problem
		}
	}
	return ""
}

func (r *rig) differsFrom(v Reader, number int) string {
	for _, kind := range []event.Kind{things, outs, nodes} {
		want := r.Objects(kind)
		for k := range want {
			if kind != nodes && partitionOf(k) != number {
				delete(want, k)
			}
		}
		for _, k := range v.Keys(kind) {
			o, exists := want[k]
			if !exists {
				return fmt.Sprintf("partition %d: %s %s is cached and does not exist", number, kind, k)
			}
			got, readable := cache.Get[thing](v, kind, k)
			if readable != (o.Body != "bad") || readable && (got.UID != o.UID || got.Body != o.Body) {
				return fmt.Sprintf("partition %d: %s %s is cached as %v, is %v", number, kind, k, got, o)
			}
			delete(want, k)
		}
		for k := range want {
			return fmt.Sprintf("partition %d: %s %s exists and is not cached", number, kind, k)
		}
	}
	return ""
}
