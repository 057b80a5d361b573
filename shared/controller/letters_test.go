package controller

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/controller/controllertest"
)

// others writes a dead letter as another member would.
func (r *rig) others(role, name string) {
	letter := &millracev1.DeadLetter{Role: role, Kind: string(things), Namespace: "a", Name: name, Reason: "another's"}
	if err := r.DeadLetter(context.Background(), letter); err != nil {
		r.Error(err)
	}
}

// 6.7. Cleared on success also where another member wrote it.
func TestRule7ADeadLetterOfAPredecessorIsCleared(t *testing.T) {
	play(t, 1, func(r *rig) {
		r.Put(things, key("a"), "x")
		r.Put(things, key("b"), "x")
		r.others("mirror", "a")
		r.others("another role", "b")
	}, func(r *rig) {
		g := r.lease.Claim(0)
		settle(3 * time.Second)
		if r.letter("things a/a") != "" {
			r.Error("what stood there at the start was not cleared")
		}
		if r.letter("things a/b") == "" {
			r.Error("another role's letter was cleared")
		}
		g.Drain()
		r.others("mirror", "a") // by who held it meanwhile
		r.lease.Claim(0)
		settle(3 * time.Second)
		if r.letter("things a/a") != "" {
			r.Error("what stood there at the claim was not cleared")
		}
	})
}

// A success that comes before the letters have been read counts.
func TestASuccessBeforeTheLettersAreReadClears(t *testing.T) {
	w := controllertest.New(1)
	r := &rig{T: t, World: w}
	r.others("mirror", "a")
	l := newLetters(w, "mirror", nil, newMetrics(nil))
	l.clear(things, key("a"))
	if !l.load(t.Context()) || !l.send(t.Context()) || r.letter("things a/a") != "" {
		t.Error("not cleared")
	}
}

func TestDelays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start, fired := time.Now(), make(chan time.Duration, 4)
		d := newDelays(func(item) { fired <- time.Since(start) })
		a, lost := item{key: key("a")}, item{p: &Partition{}, key: key("a")}
		d.set(a, 50*time.Second)
		d.set(lost, 50*time.Second)
		time.Sleep(30 * time.Second)
		d.set(a, 50*time.Second)
		d.drop(lost.p)
		time.Sleep(time.Hour)
		if got := <-fired; got != 80*time.Second || len(fired) != 0 {
			t.Errorf("fired after %s and %d times more, want once after 80s", got, len(fired))
		}
		d.set(a, time.Second)
		d.close()
		d.set(a, time.Second)
		time.Sleep(time.Hour)
		if len(fired) != 0 {
			t.Error("fired after close")
		}
	})
}
