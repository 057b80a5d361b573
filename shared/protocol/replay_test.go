package protocol

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace-io/millrace/shared/event"
)

// feed numbers what it delivers and keeps the sums of a truthful watcher.
type feed struct {
	*Replay
	seq  uint64
	sums event.Sums
}

func newFeed() *feed {
	f := &feed{Replay: NewReplay(Scope{By: ByKey, Partitions: 1}, []Need{{Kind: "pods", Projection: 2}})}
	f.Begin()
	return f
}

func (f *feed) put(key event.Key, uid string, version uint64) Verdict {
	f.seq++
	return f.Deliver(message(key, obj(uid, version, version), f.seq, 5))
}

func (f *feed) delete(key event.Key, uid string, version uint64) Verdict {
	f.seq++
	return f.Deliver(message(key, gone(uid, version), f.seq, 5))
}

// holds counts an object into the next bookmark's sums.
func (f *feed) holds(key event.Key, uid string, version uint64) *feed {
	f.sums.Add("pods", key, uid, version)
	return f
}

func (f *feed) mark(upto uint64, change ...func(*event.Message)) Verdict {
	f.seq++
	m := event.Message{
		Kind: "pods", Seq: f.seq, Op: event.Bookmark, Upto: upto, Epoch: 5, Projection: 2,
		Mark: &event.Mark{ByKey: f.sums},
	}
	for _, c := range change {
		c(&m)
	}
	return f.Deliver(m)
}

func TestReplay(t *testing.T) {
	synced := Verdict{Synced: true, Matched: true}
	for name, test := range map[string]func(*testing.T, *feed) (got, want Verdict){
		"it has synced at a bookmark that holds what was delivered": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.put(a, "u", 3)
			return f.holds(a, "u", 3).mark(3), synced
		},
		"it has not synced while an object is ahead of the cursor": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			return f.holds(a, "u", 3).mark(3), Verdict{}
		},
		"it has not synced while a revived ghost is there": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.put(a, "u", 3)
			return f.mark(4), Verdict{}
		},
		"it has not synced with an older version than the bookmark says": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.put(a, "u", 3)
			return f.holds(a, "u", 4).mark(4), Verdict{}
		},
		"an empty kind syncs at an empty bookmark": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			return f.mark(3), synced
		},
		"the second bookmark that agrees has an age": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.mark(3)
			return f.mark(4), Verdict{Matched: true, Later: true}
		},
		"what the next replay does not deliver is gone": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.put(a, "u", 3)
			f.holds(a, "u", 3).mark(3)
			f.Begin()
			f.sums = event.Sums{}
			want := synced
			want.Swept = []Change{{Kind: "pods", Key: a, Gone: true, Old: "u"}}
			return f.mark(5), want
		},
		"a new UID is a deletion and a creation": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.put(a, "u", 3)
			return f.put(a, "v", 4), Verdict{Change: Change{Kind: "pods", Key: a, Put: true, Gone: true, Old: "u"}}
		},
		"a tombstone of nothing says nothing": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			return f.delete(a, "u", 3), Verdict{Ignored: true}
		},
		"a bookmark of a lower epoch is not listened to": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.mark(3)
			return f.mark(9, func(m *event.Message) { m.Epoch = 4 }), Verdict{Ignored: true}
		},
		"nor is one of an older projection": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			return f.mark(9, func(m *event.Message) { m.Projection = 1 }), Verdict{Ignored: true}
		},
		"a sequence at or below the last one says nothing": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.put(a, "u", 3)
			f.seq--
			return f.put(a, "u", 4), Verdict{Ignored: true}
		},
		"after a gap nothing counts before the next replay": func(_ *testing.T, f *feed) (Verdict, Verdict) {
			f.mark(3)
			f.Gap()
			return f.mark(4), Verdict{Ignored: true}
		},
		"an object of an older projection ends being synced": func(t *testing.T, f *feed) (Verdict, Verdict) {
			f.mark(3)
			f.seq++
			m := message(a, obj("u", 4, 4), f.seq, 6)
			m.Projection = 1
			f.Deliver(m)
			if f.Synced("pods") {
				t.Error("synced with an object of an older projection")
			}
			f.holds(a, "u", 4)
			if v := f.mark(4); v.Matched {
				t.Error("a bookmark matched an object of an older projection")
			}
			f.put(a, "u", 4)
			return f.mark(4), Verdict{Synced: true, Matched: true, Later: true}
		},
		"ten contradictions in a row are drift": func(t *testing.T, f *feed) (Verdict, Verdict) {
			f.holds(a, "u", 3)
			for range driftLimit - 1 {
				if v := f.mark(3); v.Drifted {
					t.Error("drift too early")
				}
			}
			return f.mark(3), Verdict{Drifted: true}
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, want := test(t, newFeed())
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("verdict (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSeen(t *testing.T) {
	for name, tt := range map[string]struct {
		then  func(*feed)
		write Write
		want  bool
	}{
		"a write is not seen before it comes by":    {func(*feed) {}, Write{Kind: "pods", Key: a, UID: "u", Version: 5}, false},
		"it is seen with the version it returned":   {func(f *feed) { f.put(a, "u", 5) }, Write{Kind: "pods", Key: a, UID: "u", Version: 5}, true},
		"it is seen with a later object at its key": {func(f *feed) { f.put(a, "v", 7) }, Write{Kind: "pods", Key: a, UID: "u", Version: 5}, true},
		"a write that published nothing is seen with a bookmark": {
			func(f *feed) { f.holds(a, "u", 3).mark(5) }, Write{Kind: "pods", Key: a, UID: "u", Version: 5}, true,
		},
		"but not with one that contradicts":             {func(f *feed) { f.holds(a, "u", 4).mark(5) }, Write{Kind: "pods", Key: a, UID: "u", Version: 5}, false},
		"a deletion is not seen while the object is":    {func(*feed) {}, Write{Kind: "pods", Key: a, UID: "u", Deleted: true}, false},
		"a deletion is seen with the tombstone":         {func(f *feed) { f.delete(a, "u", 6) }, Write{Kind: "pods", Key: a, UID: "u", Deleted: true}, true},
		"a deletion is seen with another object":        {func(f *feed) { f.put(a, "v", 7) }, Write{Kind: "pods", Key: a, UID: "u", Deleted: true}, true},
		"a creation that was deleted meanwhile is seen": {func(f *feed) { f.delete(a, "u", 6); f.mark(6) }, Write{Kind: "pods", Key: a, UID: "u", Version: 5}, true},
		"a kind that is not followed is not waited for": {func(*feed) {}, Write{Kind: "nodes", Key: a, Version: 5}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFeed()
			f.put(a, "u", 3)
			tt.then(f)
			if got := f.Seen(tt.write); got != tt.want {
				t.Errorf("Seen() = %v, want %v", got, tt.want)
			}
		})
	}
}

func TestWholeSyncsWhenEverySliceHas(t *testing.T) {
	f := &feed{Replay: NewReplay(Scope{By: Whole, Partitions: 2}, []Need{{Kind: "pods"}})}
	f.Begin()
	slice := func(i int) func(*event.Message) {
		return func(m *event.Message) { m.Slice, m.Mark.Absent = i, i == 0 }
	}
	if v := f.mark(7, slice(0)); v.Synced || !v.Matched {
		t.Errorf("after slice 0: %+v", v)
	}
	if v := f.mark(5, slice(1)); !v.Synced {
		t.Errorf("after slice 1: %+v", v)
	}
	if f.Upto("pods") != 5 || f.Absent("pods") {
		t.Errorf("Upto() = %d, Absent() = %v; want 5, false", f.Upto("pods"), f.Absent("pods"))
	}
}

func BenchmarkDeliver(bench *testing.B) {
	r := NewReplay(Scope{By: ByKey, Partitions: 1}, []Need{{Kind: "pods"}})
	r.Begin()
	m := message(a, obj("u", 1, 1), 0, 1)
	bench.ReportAllocs()
	for bench.Loop() {
		m.Seq++
		m.Version++
		r.Deliver(m)
	}
}
