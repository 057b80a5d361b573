package controller

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// What waits for long must not hold up a hand-over.
func TestUntilDraining(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t, 1)
		var err error
		if r.c, err = New(r.cfg, r.def, r.World, nil, nil); err != nil {
			t.Fatal(err)
		}
		defer r.c.work.close()
		lease, lose := context.WithCancel(t.Context())
		defer lose()
		p := newPartition(lease, r.c, &benchGrant{})
		waiting, cancel := UntilDraining(p.ctx)
		given, giveUp := UntilDraining(p.ctx)
		giveUp()
		synctest.Wait()
		if waiting.Err() != nil || given.Err() == nil {
			t.Errorf("before the hand-over: %v, given up: %v", waiting.Err(), given.Err())
		}
		<-p.stop()
		synctest.Wait()
		if err := context.Cause(waiting); !errors.Is(err, ErrNotHolder) {
			t.Errorf("the wait ended with %v, want ErrNotHolder", err)
		}
		if p.ctx.Err() != nil {
			t.Error("what is in hand was cut off")
		}
		cancel()

		elsewhere, cancel := UntilDraining(t.Context())
		time.Sleep(time.Hour)
		if elsewhere.Err() != nil {
			t.Error("a context of no partition ended by itself")
		}
		cancel()
	})
}
