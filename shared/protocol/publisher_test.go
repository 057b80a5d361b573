package protocol

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace-io/millrace/shared/event"
)

// rig is a publisher whose effects are compared in short words.
type rig struct{ *Publisher[string] }

var a, b, c = event.Key{Namespace: "ns", Name: "a"}, event.Key{Namespace: "ns", Name: "b"}, event.Key{Namespace: "ns", Name: "c"}

// newRig has epoch 5, projection 2, and window.
func newRig(window int) *rig {
	return &rig{Publisher: NewPublisher[string]("pods", 1, 5, 2, window)}
}

// started is a rig with an empty stream and an empty list at version 10.
func started(t *testing.T) *rig {
	t.Helper()
	r := newRig(10)
	if err := r.Replaced(10, nil); err != nil {
		t.Fatal(err)
	}
	return r
}

func obj(uid string, version, hash uint64) Object {
	return Object{Op: event.Put, UID: uid, Version: version, Hash: hash}
}

func gone(uid string, version uint64) Object {
	return Object{Op: event.Delete, UID: uid, Version: version}
}

// message is what the stream holds: published by an epoch, under projection 2.
func message(key event.Key, o Object, seq, epoch uint64) event.Message {
	return event.Message{Kind: "pods", Key: key, Seq: seq, Op: o.Op, UID: o.UID, Version: o.Version, Hash: o.Hash, Epoch: epoch, Projection: 2}
}

// want drains the effects and compares them: do, key, version, expected sequence.
func (r *rig) want(t *testing.T, want ...[4]any) {
	t.Helper()
	var got [][4]any
	for _, e := range r.Next() {
		what, at := e.Key.Name, e.Object.Version
		if e.Do == DoMark || e.Do == DoReadMark {
			what, at = "~", e.Upto
		}
		got = append(got, [4]any{e.Do, what, at, e.Expect})
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Fatalf("effects (-want +got):\n%s", diff)
	}
}

func publishes(key event.Key, version, expect uint64) [4]any {
	return [4]any{DoPublish, key.Name, version, expect}
}

func reads(key event.Key) [4]any { return [4]any{DoRead, key.Name, uint64(0), uint64(0)} }

func fetches(key event.Key) [4]any { return [4]any{DoFetch, key.Name, uint64(0), uint64(0)} }

func marks(upto, expect uint64) [4]any { return [4]any{DoMark, "~", upto, expect} }

func TestPublisher(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *rig){
		"an object that is new is published, expecting nothing": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
		},
		"an equal projected body is not published": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			r.Observe(a, obj("u", 12, 1), "x")
			r.want(t)
			if r.Upto() != 12 {
				t.Errorf("Upto() = %d, want 12: what need not be published is published", r.Upto())
			}
		},
		"an equal body under a new UID is published": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			r.Observe(a, obj("v", 12, 1), "x")
			r.want(t, publishes(a, 12, 100))
		},
		"one message per key is outstanding, and the newest follows": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Observe(a, obj("u", 12, 2), "y")
			r.Observe(a, obj("u", 13, 3), "z")
			r.want(t)
			r.Acked(a, 100)
			r.want(t, publishes(a, 13, 100))
		},
		"a refusal is answered by reading, then with the current object": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Observe(a, obj("u", 12, 2), "y")
			r.Refused(a)
			r.want(t, reads(a))
			m := message(a, obj("u", 9, 9), 50, 4)
			r.Last(a, &m)
			r.want(t, publishes(a, 12, 50))
		},
		"a failure that was none after all is settled by reading": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Failed(a)
			r.want(t, reads(a))
			m := message(a, obj("u", 11, 1), 50, 5)
			r.Last(a, &m)
			r.want(t)
			if r.Upto() != 11 {
				t.Errorf("Upto() = %d, want 11", r.Upto())
			}
		},
		"a higher epoch ends it": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Refused(a)
			r.want(t, reads(a))
			m := message(a, obj("u", 11, 1), 50, 6)
			r.Last(a, &m)
			r.Observe(b, obj("w", 12, 1), "x")
			r.want(t)
			if !r.Lost() {
				t.Error("Lost() = false")
			}
		},
		"what a predecessor saw further is not overwritten with less": func(t *testing.T, r *rig) {
			r.Stored(message(a, obj("u", 20, 2), 50, 4))
			r.want(t)
			r.Observe(a, obj("u", 15, 1), "x")
			r.want(t)
			r.Observe(a, obj("u", 20, 2), "y")
			r.want(t)
			r.Observe(a, obj("u", 21, 3), "z")
			r.want(t, publishes(a, 21, 50))
		},
		"a foreign message for an object that is gone is withdrawn": func(t *testing.T, r *rig) {
			r.Stored(message(a, obj("u", 9, 2), 50, 4))
			r.want(t, publishes(a, 10, 50))
		},
		"a foreign message that was waited for is withdrawn by a list that lacks it": func(t *testing.T, r *rig) {
			r.Stored(message(a, obj("u", 20, 2), 50, 4))
			r.want(t)
			if err := r.Replaced(25, nil); err != nil {
				t.Fatal(err)
			}
			r.want(t, publishes(a, 25, 50))
		},
		"a foreign message is put right from the API, for the body is not kept": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			r.Stored(message(a, obj("u", 9, 9), 101, 4))
			r.want(t, fetches(a))
			r.Fetched(a, obj("u", 14, 7), "f")
			r.want(t, publishes(a, 14, 101))
			if r.Upto() != 11 {
				t.Errorf("Upto() = %d, want 11: other keys' events below 14 may be owed", r.Upto())
			}
		},
		"a fetch that is older than the watch is asked for again": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			r.Stored(message(a, obj("u", 9, 9), 101, 4))
			r.want(t, fetches(a))
			r.Fetched(a, obj("u", 7, 7), "f")
			r.want(t, fetches(a))
		},
		"its own message, delivered by the follower, says nothing": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Stored(message(a, obj("u", 11, 1), 100, 5))
			r.Acked(a, 100)
			r.Stored(message(a, obj("u", 11, 1), 100, 5))
			r.want(t)
		},
		"what the follower saw after the own message is read before the answer is believed": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Stored(message(a, obj("u", 9, 9), 101, 4))
			r.Acked(a, 100)
			r.want(t, reads(a))
			m := message(a, obj("u", 9, 9), 101, 4)
			r.Last(a, &m)
			r.want(t, publishes(a, 11, 101))
		},
		"a deleted record is kept until the follower has passed its tombstone": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			r.Observe(a, gone("u", 12), "")
			r.want(t, publishes(a, 12, 100))
			r.Acked(a, 101)
			r.Stored(message(a, obj("u", 11, 1), 100, 5)) // it lags
			r.want(t)
			if len(r.records) != 1 {
				t.Errorf("%d records, want 1", len(r.records))
			}
			r.Stored(message(a, gone("u", 12), 101, 5))
			if len(r.records) != 0 {
				t.Errorf("%d records, want none", len(r.records))
			}
		},
		"a late message below another key's tombstone is not missed": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			r.Observe(a, gone("u", 12), "")
			r.want(t, publishes(a, 12, 100))
			r.Acked(a, 102)
			r.Stored(message(b, obj("w", 9, 1), 101, 4))
			r.want(t, publishes(b, 12, 101))
		},
		"the deletion of what was never there is nothing": func(t *testing.T, r *rig) {
			r.Observe(a, gone("u", 11), "")
			r.want(t)
			if len(r.records) != 0 || r.Upto() != 11 {
				t.Errorf("%d records, Upto() = %d; want none, 11", len(r.records), r.Upto())
			}
		},
		"a bookmark waits until its slice is quiet, and publications for it": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Mark(0)
			r.Observe(b, obj("w", 12, 1), "x")
			r.want(t)
			r.Acked(a, 100)
			r.want(t, marks(11, 0), publishes(b, 12, 0))
		},
		"a bookmark that was refused is read before the next": func(t *testing.T, r *rig) {
			r.Mark(0)
			r.want(t, marks(10, 0))
			r.MarkRefused(0)
			r.Mark(0)
			r.want(t, [4]any{DoReadMark, "~", uint64(0), uint64(0)})
			m := event.Message{Op: event.Bookmark, Seq: 70, Epoch: 4}
			r.MarkLast(0, &m)
			r.want(t, marks(10, 70))
		},
		"an older list than what is known is refused": func(t *testing.T, r *rig) {
			r.Stored(message(a, obj("u", 20, 2), 50, 4))
			if err := r.Replaced(19, nil); !errors.Is(err, ErrHistory) {
				t.Errorf("Replaced() = %v, want ErrHistory", err)
			}
		},
		"an absent kind is withdrawn, and says so only then": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			r.SetAbsent(0)
			r.Mark(0)
			first := r.Next()
			if len(first) != 2 || first[0].Do != DoMark || first[0].Mark.Absent {
				t.Fatalf("effects %+v, want a bookmark that is not absent yet, then the tombstone", first)
			}
			r.MarkAcked(0, 101)
			r.Acked(a, 102)
			r.Mark(0)
			if second := r.Next(); len(second) != 1 || !second[0].Mark.Absent {
				t.Fatalf("effects %+v, want a bookmark that says absent", second)
			}
		},
		"a kind that comes back holds old objects again": func(t *testing.T, r *rig) {
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			r.SetAbsent(15)
			r.want(t, publishes(a, 15, 100))
			r.Acked(a, 101)
			if err := r.Replaced(20, []Item[string]{{Key: a, Object: obj("u", 11, 1), Body: "x"}}); err != nil {
				t.Fatal(err)
			}
			r.want(t, publishes(a, 11, 101))
			r.Acked(a, 102)
			r.Mark(0)
			if e := r.Next(); len(e) != 1 || e[0].Mark.Absent || e[0].Upto != 20 {
				t.Fatalf("effects %+v, want a bookmark up to 20, not absent", e)
			}
		},
		"of a relist, what is not published yet holds Upto back": func(t *testing.T, r *rig) {
			if err := r.Replaced(20, []Item[string]{{Key: a, Object: obj("u", 15, 1), Body: "x"}}); err != nil {
				t.Fatal(err)
			}
			if r.Upto() != 10 {
				t.Errorf("Upto() = %d, want 10", r.Upto())
			}
			r.want(t, publishes(a, 15, 0))
			r.Acked(a, 100)
			if r.Upto() != 20 {
				t.Errorf("Upto() = %d, want 20", r.Upto())
			}
		},
	} {
		t.Run(name, func(t *testing.T) { test(t, started(t)) })
	}
}

func TestPublisherStart(t *testing.T) {
	r := newRig(10)
	r.Stored(message(a, obj("u", 3, 1), 50, 4)) // still there, unchanged
	r.Stored(message(b, obj("v", 4, 1), 51, 4)) // gone
	r.Stored(event.Message{Kind: "pods", Key: c, Seq: 52, Op: event.Put, UID: "w", Version: 5, Hash: 1, Epoch: 4, Projection: 1})
	r.StoredMark(event.Message{Op: event.Bookmark, Seq: 53, Epoch: 4})
	r.Mark(0)
	r.want(t)
	if err := r.Replaced(10, []Item[string]{
		{Key: a, Object: obj("u", 3, 1), Body: "x"}, {Key: c, Object: obj("w", 5, 1), Body: "z"},
	}); err != nil {
		t.Fatal(err)
	}
	// c was projected by an older release.
	r.want(t, publishes(c, 5, 52), publishes(b, 10, 51))
	if r.Started() {
		t.Error("Started() before the difference was acknowledged")
	}
	r.Acked(c, 60)
	r.want(t)
	r.Acked(b, 61)
	r.want(t, marks(10, 53))
}

func TestComparison(t *testing.T) {
	for name, test := range map[string]func(*testing.T, *rig){
		"needs no bodies, and finds nothing where nothing differs": func(t *testing.T, r *rig) {
			c := r.BeginCompare()
			c.Found(message(a, obj("u", 11, 1), 100, 5))
			if n := r.EndCompare(c); n != 0 {
				t.Errorf("%d differences", n)
			}
			r.want(t)
		},
		"what the stream lost is published again": func(t *testing.T, r *rig) {
			if n := r.EndCompare(r.BeginCompare()); n != 1 {
				t.Errorf("%d differences, want 1", n)
			}
			r.want(t, fetches(a))
			r.Fetched(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
		},
		"what the stream brought back is withdrawn": func(t *testing.T, r *rig) {
			c := r.BeginCompare()
			c.Found(message(a, obj("u", 11, 1), 100, 5))
			c.Found(message(b, obj("w", 5, 1), 40, 3))
			if n := r.EndCompare(c); n != 1 {
				t.Errorf("%d differences, want 1", n)
			}
			r.want(t, publishes(b, 11, 40))
		},
		"a sequence that was given again does not pass for the same message": func(t *testing.T, r *rig) {
			c := r.BeginCompare()
			c.Found(message(a, obj("u", 10, 7), 100, 4))
			r.EndCompare(c)
			r.want(t, fetches(a))
		},
		"a key that was published meanwhile is left alone": func(t *testing.T, r *rig) {
			c := r.BeginCompare()
			c.Found(message(a, obj("u", 11, 1), 100, 5))
			r.Observe(a, obj("u", 12, 2), "y")
			r.want(t, publishes(a, 12, 100))
			r.Acked(a, 101)
			if n := r.EndCompare(c); n != 0 {
				t.Errorf("%d differences", n)
			}
			r.want(t)
		},
		"an event that publishes nothing does not hide a difference": func(t *testing.T, r *rig) {
			c := r.BeginCompare()
			r.Observe(a, obj("u", 12, 1), "x")
			if n := r.EndCompare(c); n != 1 {
				t.Errorf("%d differences, want 1", n)
			}
		},
		"what the follower saw after the snapshot counts": func(t *testing.T, r *rig) {
			c := r.BeginCompare()
			r.Stored(message(a, obj("u", 11, 1), 100, 5))
			if n := r.EndCompare(c); n != 0 {
				t.Errorf("%d differences", n)
			}
		},
		"a higher epoch in it ends the publisher": func(t *testing.T, r *rig) {
			c := r.BeginCompare()
			c.Found(message(b, obj("w", 5, 1), 140, 6))
			r.EndCompare(c)
			r.want(t)
			if !r.Lost() {
				t.Error("Lost() = false")
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := started(t)
			r.Observe(a, obj("u", 11, 1), "x")
			r.want(t, publishes(a, 11, 0))
			r.Acked(a, 100)
			test(t, r)
		})
	}
}

// Before the first list a comparison must not withdraw what it does not know.
func TestAComparisonBeforeTheFirstListOnlyLearns(t *testing.T) {
	r := newRig(10)
	r.Stored(message(a, obj("u", 3, 1), 50, 4))
	r.Stored(message(b, obj("v", 4, 1), 51, 4))
	c := r.BeginCompare()
	c.Found(message(a, obj("u", 3, 1), 50, 4))
	if n := r.EndCompare(c); n != 0 {
		t.Errorf("%d differences", n)
	}
	r.want(t)
	if r.Objects() != 1 {
		t.Errorf("%d objects, want 1", r.Objects())
	}
}

func BenchmarkPublish(bench *testing.B) {
	p := NewPublisher[[]byte]("pods", 32, 1, 1, 256)
	_ = p.Replaced(1, nil)
	keys := make([]event.Key, 10_000)
	for i := range keys {
		keys[i] = event.Key{Namespace: "ns", Name: string(rune('a'+i%26)) + string(rune('0'+i/26%10)) + string(rune('A'+i/260%60))}
	}
	body := make([]byte, 0)
	seq := uint64(0)
	bench.ReportAllocs()
	for bench.Loop() {
		seq++
		key := keys[seq%uint64(len(keys))]
		p.Observe(key, obj("u", seq+1, seq), body)
		for _, e := range p.Next() {
			p.Acked(e.Key, seq)
		}
	}
}
