package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/shared/event"
	"github.com/millrace-io/millrace/shared/partition"
	"github.com/millrace-io/millrace/shared/protocol"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const pods event.Kind = "pods"

// rig feeds a cache by hand and keeps the sums a watcher would.
type rig struct {
	*testing.T
	*Cache
	scope   protocol.Scope
	seq     uint64
	stream  map[event.Key]event.Message
	changes []Change
	said    []string
}

func newRig(t *testing.T, scope protocol.Scope, needs uint32) *rig {
	r := &rig{T: t, scope: scope, stream: make(map[event.Key]event.Message)}
	in := Input{
		Kind: pods, Projection: needs,
		Decode: func(m event.Message) (any, error) {
			switch string(m.Body) {
			case "bad":
				return nil, errors.New("it is bad")
			case "boom":
				panic("decoder")
			case "nil":
				return nil, nil //nolint:nilnil // that is the case
			}
			return string(m.Body), nil
		},
		Indexes: map[string]func(any) []string{"first": func(obj any) []string {
			if obj == "unindexable" {
				panic("index")
			}
			return []string{obj.(string)[:1]}
		}},
	}
	note := func(what string) { r.said = append(r.said, what) }
	r.Cache = New(scope, []Input{in}, nil, func(c Change) { r.changes = append(r.changes, c) }, Hooks{
		Again:   func(event.Kind, int) { note("again") },
		Compare: func(event.Kind, int) { note("compare") },
		Poison:  func(p Poison) { note("poison " + p.Key.Name + ": " + p.Reason) },
	})
	r.Begin(1)
	return r
}

func one(t *testing.T) *rig {
	return newRig(t, protocol.Scope{By: protocol.ByKey, Partitions: 1}, 1)
}

func (r *rig) deliver(m event.Message) {
	r.seq++
	m.Kind, m.Seq = pods, r.seq
	if m.Projection == 0 {
		m.Projection = 1
	}
	if m.Op == event.Put {
		m.Hash = event.HashBody(m.Body)
	}
	if m.Op != event.Bookmark {
		r.stream[m.Key] = m
	}
	r.Deliver(m)
}

func (r *rig) put(name, uid string, version uint64, body string) {
	r.deliver(event.Message{Key: key(name), Op: event.Put, UID: uid, Version: version, Body: []byte(body)})
}

func (r *rig) del(name, uid string, version uint64) {
	r.deliver(event.Message{Key: key(name), Op: event.Delete, UID: uid, Version: version})
}

// mark delivers a true bookmark of a slice.
func (r *rig) mark(slice int) {
	mark := &event.Mark{}
	upto := uint64(0)
	for k, m := range r.stream {
		if m.Op.Live() && partition.OfKey(k, r.scope.Partitions) == slice {
			mark.ByKey.Add(pods, k, m.UID, m.Version)
		}
		upto = max(upto, m.Version)
	}
	r.deliver(event.Message{Op: event.Bookmark, Epoch: 1, Slice: slice, Upto: upto, Mark: mark})
}

// again replays the stream.
func (r *rig) again() {
	messages := make([]event.Message, 0, len(r.stream))
	for _, m := range r.stream {
		messages = append(messages, m)
	}
	slices.SortFunc(messages, func(a, b event.Message) int { return int(a.Seq) - int(b.Seq) })
	r.Gap("broken")
	r.Begin(2)
	for _, m := range messages {
		r.Deliver(m)
	}
}

// told returns the changes since it was last called.
func (r *rig) told() (out []string) {
	for _, c := range r.changes {
		s := fmt.Sprintf("%s %v→%v", c.Key.Name, c.Old, c.New)
		if c.Opaque {
			s += " opaque"
		}
		if c.Deleted() {
			s += " deleted " + c.Message.UID
		}
		out = append(out, s)
	}
	r.changes = nil
	return out
}

func (r *rig) want(what string, want ...string) {
	r.Helper()
	if diff := cmp.Diff(want, r.told()); diff != "" {
		r.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func key(name string) event.Key { return event.Key{Namespace: "ns", Name: name} }

func TestChanges(t *testing.T) {
	r := one(t)
	r.put("a", "u1", 1, "x")
	r.put("a", "u1", 2, "y")
	r.want("a creation and an update", "a <nil>→x", "a x→y")
	r.Deliver(r.stream[key("a")])
	r.want("the same sequence again")
	r.put("a", "u2", 3, "z")
	r.want("another UID", "a y→<nil> deleted u1", "a <nil>→z")
	r.del("a", "u2", 4)
	r.want("a tombstone", "a z→<nil> deleted u2")
	r.del("a", "u2", 5)
	r.want("a tombstone of nothing")
	r.Deliver(event.Message{Kind: "nodes", Op: event.Put, Seq: 99})
	r.want("a kind that is no input")
}

func TestAReplay(t *testing.T) {
	r := one(t)
	r.put("a", "u1", 1, "x")
	r.put("b", "u2", 2, "x")
	if r.mark(0); !r.Synced() || r.Generation() != 1 {
		t.Fatal("not synced")
	}
	r.told()
	t.Run("repeats what is cached: no change, no decoding, old objects stay", func(t *testing.T) {
		r.again()
		r.want("changes")
		if r.Synced() {
			t.Error("synced without a bookmark")
		}
		r.View(func(v Reader) {
			if n := len(v.List(pods, "")); n != 2 {
				t.Errorf("%d objects during the replay, want 2", n)
			}
		})
		if r.mark(0); !r.Synced() || r.Generation() != 2 {
			t.Error("not synced")
		}
	})
	t.Run("lacks what is gone", func(t *testing.T) {
		delete(r.stream, key("b"))
		r.again()
		r.want("before the bookmark")
		r.mark(0)
		r.want("after it", "b x→<nil> deleted u2")
	})
}

func TestFind(t *testing.T) {
	r := one(t)
	r.put("a", "u1", 1, "xa")
	r.put("b", "u2", 2, "yb")
	r.deliver(event.Message{Key: event.Key{Namespace: "other", Name: "c"}, Op: event.Put, UID: "u3", Version: 3, Body: []byte("xc")})
	r.deliver(event.Message{Key: event.Key{Name: "d"}, Op: event.Put, UID: "u4", Version: 4, Body: []byte("xd")})
	want := func(what string, got []string, want ...string) {
		t.Helper()
		slices.Sort(got)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", what, diff)
		}
	}
	r.View(func(v Reader) {
		want("all", List[string](v, pods, ""), "xa", "xc", "xd", "yb")
		want("a namespace", List[string](v, pods, "ns"), "xa", "yb")
		want("an index", ByIndex[string](v, pods, "first", "x"), "xa", "xc", "xd")
		if got, ok := Get[string](v, pods, key("a")); !ok || got != "xa" {
			t.Errorf("Get = %q, %t", got, ok)
		}
		if _, ok := Get[int](v, pods, key("a")); ok {
			t.Error("Get of another type")
		}
		if _, ok := v.Get("nodes", key("a")); ok || len(v.List("nodes", "")) > 0 || len(v.Keys("nodes")) > 0 {
			t.Error("a kind that is no input has objects")
		}
	})
	r.put("a", "u1", 5, "ya")
	r.del("b", "u2", 6)
	r.View(func(v Reader) {
		want("an index after changes", ByIndex[string](v, pods, "first", "x"), "xc", "xd")
		want("the other value", ByIndex[string](v, pods, "first", "y"), "ya")
		want("a namespace after changes", List[string](v, pods, "ns"), "ya")
	})
}

func TestWhatCannotBeReadIsOpaque(t *testing.T) {
	for body, reason := range map[string]string{
		"bad": "it is bad", "boom": "panic: decoder", "nil": "no object", "unindexable": "panic: index",
	} {
		t.Run(body, func(t *testing.T) {
			r := one(t)
			r.put("a", "u1", 1, "x")
			r.put("a", "u1", 2, body)
			r.put("b", "u2", 3, "x")
			r.want("changes", "a <nil>→x", "a x→<nil> opaque", "b <nil>→x")
			if len(r.said) != 1 || !strings.Contains(r.said[0], reason) {
				t.Errorf("said %q, want %q", r.said, reason)
			}
			r.View(func(v Reader) {
				_, ok := v.Get(pods, key("a"))
				if ok || !v.Opaque(pods, key("a")) || len(v.Opaques(pods, "ns")) != 1 || len(v.List(pods, "ns")) != 1 || len(v.Keys(pods)) != 2 {
					t.Error("the entry is not opaque, or not there")
				}
			})
			if r.mark(0); !r.Synced() {
				t.Error("one object that cannot be read stops the kind")
			}
			r.put("a", "u1", 4, "y")
			if got := r.said[len(r.said)-1]; got != "poison a: " {
				t.Errorf("said %q, want that it is over", got)
			}
		})
	}
	t.Run("a marker of the watcher", func(t *testing.T) {
		r := one(t)
		r.deliver(event.Message{Key: key("a"), Op: event.Opaque, UID: "u1", Version: 1})
		r.want("changes", "a <nil>→<nil> opaque")
		r.del("a", "u1", 2)
		r.want("its end", "a <nil>→<nil> deleted u1")
		if len(r.said) != 2 {
			t.Errorf("said %q", r.said)
		}
	})
}

// 6.11. Neither its bookmarks nor its objects count.
func TestAnOlderProjectionIsNotRead(t *testing.T) {
	r := newRig(t, protocol.Scope{By: protocol.ByKey, Partitions: 1}, 2)
	r.put("a", "u1", 1, "x")
	r.mark(0)
	r.want("changes", "a <nil>→<nil> opaque")
	if r.Synced() || len(r.said) > 0 {
		t.Errorf("synced %t, said %q", r.Synced(), r.said)
	}
	r.deliver(event.Message{Key: key("a"), Op: event.Put, UID: "u1", Version: 1, Body: []byte("x"), Projection: 2})
	r.want("the same object of a newer watcher", "a <nil>→x")
}

// A broken message is poison, and the watcher is asked to put it right.
func TestABrokenMessage(t *testing.T) {
	r := one(t)
	r.Broken(event.Subject(event.Root("c1"), pods, key("a"), 0, 0), 7, errors.New("no UID"))
	r.Broken("nonsense", 8, errors.New("no UID"))
	if len(r.said) != 2 || !strings.HasPrefix(r.said[0], "poison a: message 7") || r.said[1] != "compare" {
		t.Errorf("said %q", r.said)
	}
}

func TestDriftTriesOneRemedyAfterTheOther(t *testing.T) {
	r := one(t)
	r.put("a", "u1", 1, "x")
	r.mark(0)
	r.stream[key("lost")] = event.Message{Key: key("lost"), Op: event.Put, UID: "u2", Version: 2}
	for range 9 {
		r.mark(0)
	}
	if !r.Synced() {
		t.Error("nine mismatches are no drift")
	}
	for range 15 {
		r.mark(0)
	}
	if got := fmt.Sprint(r.said); got != "[again]" || r.Synced() {
		t.Errorf("said %s, synced %t", got, r.Synced())
	}
	lost := r.stream[key("lost")]
	delete(r.stream, key("lost"))
	r.again()
	r.stream[key("lost")] = lost
	for range 30 {
		r.mark(0)
	}
	if got := fmt.Sprint(r.said); got != "[again compare again]" {
		t.Errorf("said %s", got)
	}
	r.put("lost", "u2", 2, "x")
	before := r.Generation()
	if r.mark(0); !r.Synced() || r.Generation() != before+1 {
		t.Error("not complete after the stream was put right")
	}
}

// 6.6. Whole scopes are as fresh as the oldest slice; the first bookmark of a
// replay does not count for what is destructive, and later ones are as old as
// the one before them.
func TestAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, protocol.Scope{By: protocol.Whole, Partitions: 2}, 1)
		want := func(what string, harmless, destructive time.Duration) {
			t.Helper()
			for name, age := range map[string]func(event.Kind) (time.Duration, bool){"Age": r.Age, "AgeDestructive": r.AgeDestructive} {
				w := harmless
				if name == "AgeDestructive" {
					w = destructive
				}
				got, known := age(pods)
				if known != (w >= 0) || known && got != w {
					t.Errorf("%s: %s = %s, %t, want %s", what, name, got, known, w)
				}
			}
		}
		want("nothing came", -1, -1)
		r.mark(0)
		want("one slice", -1, -1)
		time.Sleep(time.Second)
		r.mark(1)
		want("the other a second later", time.Second, -1)
		time.Sleep(time.Second)
		r.mark(0)
		time.Sleep(time.Second)
		r.mark(1)
		want("two of each", time.Second, 3*time.Second)
		time.Sleep(time.Minute)
		want("silence", 61*time.Second, 63*time.Second)
		r.Gap("broken")
		want("a gap", -1, -1)
	})
}

func TestWaitAndChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := one(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := r.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Wait = %v", err)
		}
		done := make(chan error)
		go func() { done <- r.Wait(t.Context()) }()
		r.put("a", "u1", 1, "x")
		r.mark(0)
		if err := <-done; err != nil {
			t.Errorf("Wait = %v", err)
		}
		changed := r.Changed()
		if r.Seen(protocol.Write{Kind: pods, Key: key("a"), UID: "u1", Version: 5}) {
			t.Error("seen before it came")
		}
		r.put("a", "u1", 5, "y")
		<-changed
		if !r.Seen(protocol.Write{Kind: pods, Key: key("a"), UID: "u1", Version: 5}) {
			t.Error("not seen")
		}
	})
}

// The cache, its lists and its indexes equal a model, whatever comes.
func TestCacheEqualsItsModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := one(t)
		model := map[event.Key]string{}
		for i := range rapid.IntRange(1, 200).Draw(rt, "steps") {
			name := rapid.SampledFrom([]string{"a", "b", "c", "d"}).Draw(rt, "name")
			uid := rapid.SampledFrom([]string{"u1", "u2"}).Draw(rt, "uid")
			body := rapid.SampledFrom([]string{"x", "y", "bad"}).Draw(rt, "body")
			switch rapid.IntRange(0, 4).Draw(rt, "what") {
			case 0, 1:
				r.put(name, uid, uint64(i), body)
				model[key(name)] = body
			case 2:
				r.del(name, uid, uint64(i))
				delete(model, key(name))
			case 3:
				r.mark(0)
			case 4: // a tombstone expires, and is found out by a replay
				if m := r.stream[key(name)]; m.Op == event.Delete {
					delete(r.stream, key(name))
				}
				r.again()
				r.mark(0)
			}
			var all, x []string
			for _, body := range model {
				if body != "bad" {
					all = append(all, body)
				}
				if body == "x" {
					x = append(x, body)
				}
			}
			r.View(func(v Reader) {
				got := List[string](v, pods, "ns")
				slices.Sort(got)
				slices.Sort(all)
				if !slices.Equal(got, all) || len(v.Keys(pods)) != len(model) {
					rt.Fatalf("objects %v, want %v", got, all)
				}
				if got := ByIndex[string](v, pods, "first", "x"); len(got) != len(x) {
					rt.Fatalf("index %v, want %v", got, x)
				}
				if got := len(v.Opaques(pods, "")); got != len(model)-len(all) {
					rt.Fatalf("%d opaque, want %d", got, len(model)-len(all))
				}
			})
		}
	})
}
