package controller

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/millrace-io/millrace/shared/event"
)

func TestPosition(t *testing.T) {
	a, b := key("a"), key("b")
	at := func(seq uint64) wait { return wait{seq: seq, since: time.Unix(int64(seq), 0)} }
	tests := map[string]struct {
		do    func(p *position)
		want  uint64
		known bool
	}{
		"nothing delivered is unknown": {
			do: func(*position) {},
		},
		"everything reconciled is one above the last": {
			do:   func(p *position) { p.add(a, at(5)); p.saw(5); p.take(a); p.done(a) },
			want: 6, known: true,
		},
		"a key in hand is not reconciled": {
			do:   func(p *position) { p.add(a, at(5)); p.saw(5); p.take(a) },
			want: 5, known: true,
		},
		"the oldest change of a key counts": {
			do:   func(p *position) { p.add(a, at(5)); p.add(a, at(7)); p.saw(7) },
			want: 5, known: true,
		},
		"a change while in hand waits anew": {
			do:   func(p *position) { p.add(a, at(5)); p.take(a); p.add(a, at(7)); p.done(a); p.saw(7) },
			want: 7, known: true,
		},
		"a failure waits from where it did": {
			do:   func(p *position) { p.add(a, at(5)); p.take(a); p.add(a, at(7)); p.back(a); p.saw(7) },
			want: 5, known: true,
		},
		"the lowest of several": {
			do: func(p *position) {
				p.add(a, at(5))
				p.add(b, at(6))
				p.add(a, at(7))
				p.saw(9)
				p.take(a)
				p.done(a)
			},
			want: 6, known: true,
		},
		"looking at everything makes it unknown": {
			do: func(p *position) { p.saw(9); p.add(a, wait{}) },
		},
		"until all has been looked at": {
			do:   func(p *position) { p.saw(9); p.add(a, wait{}); p.take(a); p.done(a) },
			want: 10, known: true,
		},
		"what another feed brought stands behind": {
			do:   func(p *position) { p.saw(9); p.add(a, at(12)); p.add(b, at(10)); p.saw(12) },
			want: 10, known: true,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			p := newPosition()
			tt.do(&p)
			if got, known := p.lowest(); got != tt.want || known != tt.known {
				t.Errorf("lowest() = %d, %t, want %d, %t", got, known, tt.want, tt.known)
			}
		})
	}
}

// The position equals a model that looks at everything, whatever happens in
// whatever order.
func TestPositionEqualsItsModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := newPosition()
		waiting, taken := map[event.Key]uint64{}, map[event.Key]uint64{}
		seq := uint64(0)
		names := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		for range rapid.IntRange(1, 300).Draw(t, "steps") {
			k := key(names.Draw(t, "key"))
			switch rapid.IntRange(0, 3).Draw(t, "what") {
			case 0:
				seq++
				p.add(k, wait{seq: seq, since: time.Unix(int64(seq), 0)})
				p.saw(seq)
				if _, waits := waiting[k]; !waits {
					waiting[k] = seq
				}
			case 1:
				if _, inHand := taken[k]; inHand {
					continue
				}
				p.take(k)
				if s, waits := waiting[k]; waits {
					taken[k] = s
					delete(waiting, k)
				}
			case 2:
				p.done(k)
				delete(taken, k)
			case 3:
				p.back(k)
				if s, inHand := taken[k]; inHand {
					waiting[k] = s
					delete(taken, k)
				}
			}
			want, keys := seq+1, map[event.Key]bool{}
			for _, m := range []map[event.Key]uint64{waiting, taken} {
				for k, s := range m {
					want = min(want, s)
					keys[k] = true
				}
			}
			if got, known := p.lowest(); known && got != want {
				t.Fatalf("lowest %d, want %d", got, want)
			}
			if got := p.backlog(); got != len(keys) {
				t.Fatalf("backlog %d, want %d", got, len(keys))
			}
			if oldest := p.oldest(); len(keys) > 0 && oldest != time.Unix(int64(want), 0) {
				t.Fatalf("oldest %s, want that of %d", oldest, want)
			}
			if !slices.IsSortedFunc(p.order, func(a, b place) int { return int(a.seq) - int(b.seq) }) {
				t.Fatalf("order %v", p.order)
			}
		}
	})
}

func TestLanes(t *testing.T) {
	item := func(name string) item { return item{key: key(name)} }
	t.Run("what waits in the sweep and changes is live", func(t *testing.T) {
		w := newWork("")
		defer w.close()
		for _, name := range []string{"a", "b", "c", "d"} {
			w.add(item(name), sweep)
		}
		w.add(item("d"), live)
		if i, _ := w.get(); i != item("d") {
			t.Errorf("got %v first, want d", i.key)
		}
		for _, want := range []string{"a", "b", "c"} {
			if i, _ := w.get(); i != item(want) {
				t.Errorf("got %v, want %s", i.key, want)
			}
		}
		if n := w.queue.Len(); n != 0 {
			t.Errorf("%d left", n)
		}
	})
	t.Run("one in four is of the sweep", func(t *testing.T) {
		w := newWork("")
		defer w.close()
		for i := range 400 {
			w.add(item("l"+string(rune(i))), live)
			w.add(item("s"+string(rune(i))), sweep)
		}
		swept := 0
		for range 400 {
			if i, _ := w.get(); i.key.Name[0] == 's' {
				swept++
			}
		}
		if swept != 100 {
			t.Errorf("%d of 400 were of the sweep, want 100", swept)
		}
	})
}
