package protocol

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// twoMembers is p's view of itself and q over one unit, all told.
func twoMembers(holder string) *Ownership {
	o := NewOwnership("p", "role", []string{"u"})
	o.Begin()
	o.MemberSeen("p", 1, false, 0)
	o.MemberSeen("q", 2, false, 0)
	if holder != "" {
		o.LeaseSeen("u", holder, 3, 0)
	}
	o.Caught(0)
	return o
}

func TestOwnership(t *testing.T) {
	const ttl = MemberTTL
	for name, tt := range map[string]struct {
		view *Ownership
		then func(*Ownership)
		now  time.Duration
		want []Intent
	}{
		"what a living member holds is left to it": {twoMembers("q"), func(*Ownership) {}, ttl - 1, nil},
		"a silent member is evicted before its lease is touched": {
			twoMembers("q"), func(*Ownership) {}, ttl,
			[]Intent{{Wish: WishEvict, Member: "q", Revision: 2}},
		},
		"an evicted member's lease is taken": {
			twoMembers("q"), func(o *Ownership) { o.MemberSeen("q", 9, true, 1) }, 1,
			[]Intent{{Wish: WishClaim, Unit: "u", Revision: 3}},
		},
		"an expired member's lease waits until it cannot trust itself": {
			twoMembers("q"), func(o *Ownership) { o.MemberExpired("q") }, ttl - 1, nil,
		},
		"then it is taken": {
			twoMembers("q"), func(o *Ownership) { o.MemberExpired("q") }, ttl,
			[]Intent{{Wish: WishClaim, Unit: "u", Revision: 3}},
		},
		"a renewal counts from when it was seen": {
			twoMembers("q"), func(o *Ownership) { o.MemberSeen("q", 9, false, 2) }, ttl, nil,
		},
		"an old revision is no renewal": {
			twoMembers("q"), func(o *Ownership) { o.MemberSeen("q", 2, false, 2) }, ttl,
			[]Intent{{Wish: WishEvict, Member: "q", Revision: 2}},
		},
		"silence counts from the last complete view": {
			twoMembers("q"), func(o *Ownership) {
				o.Gap()
				o.Begin()
				o.MemberSeen("p", 1, false, ttl)
				o.LeaseSeen("u", "q", 3, ttl)
				o.Caught(ttl)
			}, 2*ttl - 1, nil,
		},
		"nothing is wished while the view is incomplete": {
			twoMembers("q"), func(o *Ownership) { o.MemberSeen("q", 9, true, 1); o.Gap() }, 1, nil,
		},
		"nor by who is no member any more": {
			twoMembers("q"), func(o *Ownership) { o.MemberSeen("q", 9, true, 1); o.MemberSeen("p", 10, true, 1) }, 1, nil,
		},
		"a holder whose key was never told is evicted first, too": {
			twoMembers(""), func(o *Ownership) { o.LeaseSeen("u", "r", 7, 0) }, ttl,
			[]Intent{{Wish: WishEvict, Member: "q", Revision: 2}, {Wish: WishEvict, Member: "r"}},
		},
		"a bucket that was rolled back is believed": {
			twoMembers("q"), func(o *Ownership) {
				o.Begin()
				o.MemberSeen("p", 1, false, 0)
				o.MemberSeen("q", 1, false, 0)
				o.LeaseSeen("u", "", 1, 0)
				o.Caught(0)
			}, 1, claimIfWinner(1),
		},
	} {
		t.Run(name, func(t *testing.T) {
			tt.then(tt.view)
			if diff := cmp.Diff(tt.want, tt.view.Step(tt.now)); diff != "" {
				t.Errorf("intents (-want +got):\n%s", diff)
			}
		})
	}
}

// claimIfWinner is what p wishes of a free unit beside q.
func claimIfWinner(revision uint64) []Intent {
	o := NewOwnership("p", "role", []string{"u"})
	o.MemberSeen("p", 1, false, 0)
	o.MemberSeen("q", 1, false, 0)
	o.Caught(0)
	if len(o.Step(0)) == 0 {
		return nil
	}
	return []Intent{{Wish: WishClaim, Unit: "u", Revision: revision}}
}

func TestAHolderAboveTheCapGivesUpWhatItIsNotTheWinnerOf(t *testing.T) {
	units := []string{"u0", "u1", "u2", "u3"}
	o := NewOwnership("p", "role", units)
	o.MemberSeen("p", 1, false, 0)
	for i, u := range units {
		o.LeaseSeen(u, "p", uint64(i)+2, 0) //nolint:gosec // small
	}
	o.Caught(0)
	if got := o.Step(0); got != nil {
		t.Fatalf("alone it wishes %+v", got)
	}
	o.MemberSeen("q", 9, false, 0)
	got := o.Step(0)
	if len(got) != 2 || got[0].Wish != WishRelease || got[1].Wish != WishRelease {
		t.Fatalf("beside another it wishes %+v, want two releases", got)
	}
	for _, in := range got {
		o.LeaseSeen(in.Unit, "", 20, 0)
	}
	if got := o.Step(0); got != nil {
		t.Errorf("after releasing it wishes %+v", got)
	}
}

func TestForgetKeepsWhoHoldsSomething(t *testing.T) {
	o := twoMembers("q")
	o.MemberExpired("q")
	o.Forget()
	if holder, _ := o.Holder("u"); holder != "q" || len(o.members) != 2 {
		t.Errorf("holder %q, %d members; want q, 2", holder, len(o.members))
	}
	o.LeaseSeen("u", "p", 12, 0)
	o.Forget()
	if len(o.members) != 1 {
		t.Errorf("%d members, want 1", len(o.members))
	}
}

func BenchmarkStep(bench *testing.B) {
	units := make([]string, 32)
	for i := range units {
		units[i] = string(rune('a' + i))
	}
	o := NewOwnership("p", "role", units)
	for i, id := range []string{"p", "q", "r", "s"} {
		o.MemberSeen(id, uint64(i)+1, false, 0) //nolint:gosec // small
	}
	o.Caught(0)
	bench.ReportAllocs()
	for bench.Loop() {
		o.Step(0)
	}
}
