package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// asked notes in which order a write asks.
type asked struct {
	said                string
	guard, wait, atWire error
	shadowAfterWait     bool
}

func (a *asked) options() WriteOptions {
	return WriteOptions{
		Guard: func(context.Context) error {
			a.said += "guard "
			if a.shadowAfterWait && strings.Contains(a.said, "wait") {
				return ErrShadow
			}
			return a.guard
		},
		Allowance: func(context.Context) (func() error, error) {
			a.said += "wait "
			return func() error { a.said += "valid "; return a.atWire }, a.wait
		},
	}
}

// A write waits once, after the guard has let it pass, and asks both again when
// it leaves.
func TestAllowance(t *testing.T) {
	no := errors.New("no")
	for name, tt := range map[string]struct {
		asked asked
		want  string
		err   error
		left  int
	}{
		"all say yes":                         {asked{}, "guard wait guard guard valid ", nil, 1},
		"what the guard refuses costs none":   {asked{guard: no}, "guard ", ErrRefused, 0},
		"nothing leaves without an allowance": {asked{wait: no}, "guard wait ", ErrRefused, 0},
		"one that ran out is worth nothing":   {asked{atWire: no}, "guard wait guard guard valid ", ErrRefused, 0},
		"what is held back costs none":        {asked{guard: ErrShadow}, "guard ", nil, 0},
		"what is held back after the wait":    {asked{shadowAfterWait: true}, "guard wait guard ", nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			api, wire := answering(t, Config{QPS: -1}, http.StatusOK, nil)
			err := api.Writer(tt.asked.options()).Delete(t.Context(), somePod, nil)
			if !errors.Is(err, tt.err) || tt.err == nil && err != nil {
				t.Errorf("Delete() = %v, want %v", err, tt.err)
			}
			if tt.asked.said != tt.want {
				t.Errorf("asked %q, want %q", tt.asked.said, tt.want)
			}
			if left := wire.take(); len(left) != tt.left {
				t.Errorf("these left: %q, want %d", left, tt.left)
			}
		})
	}
}

// A wait for an allowance is not bounded by the time that a write may take.
func TestAWaitForAnAllowanceEndsWithItsContext(t *testing.T) {
	api, wire := answering(t, Config{QPS: -1}, http.StatusOK, nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("gone")
	w := api.Writer(WriteOptions{Timeout: 1, Allowance: func(ctx context.Context) (func() error, error) {
		if _, bounded := ctx.Deadline(); bounded {
			t.Error("the wait is bounded")
		}
		cancel(gone)
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}})
	if err := w.Delete(ctx, somePod, nil); !errors.Is(err, gone) {
		t.Errorf("Delete() = %v", err)
	}
	if left := wire.take(); len(left) != 0 {
		t.Errorf("these left: %q", left)
	}
}

// Each write of a session waits for itself; what changes nothing does not wait.
func TestAllowanceOfSlices(t *testing.T) {
	t.Parallel()
	waits, valid := 0, error(nil)
	b := newBench(t, WriteOptions{Allowance: func(context.Context) (func() error, error) {
		waits++
		return func() error { return valid }, nil
	}})
	var counts []int
	note := func() { counts = append(counts, waits); waits = 0 }
	if _, err := b.reconcile(nil, 3, 80); err != nil { // two slices
		t.Fatal(err)
	}
	note()
	made := b.slices()
	if _, err := b.reconcile(made, 3, 80); err != nil { // nothing
		t.Fatal(err)
	}
	note()
	valid = errors.New("too late")
	s, err := b.reconcile(made, 1, 80)
	if err == nil || !errors.Is(s.Err(), ErrRefused) || !errors.Is(s.Err(), valid) {
		t.Errorf("a write with an allowance that ran out: %v, %v", err, s.Err())
	}
	note()
	if diff := cmp.Diff([]int{2, 0, 1}, counts); diff != "" {
		t.Errorf("waits (-want +got):\n%s", diff)
	}
}

// ⚠ A queue before the client's own limiter is longer than an allowance lives:
// it is waited for first, and once.
func TestTheClientsOwnLimiterIsWaitedForBeforeTheAllowance(t *testing.T) {
	api, wire := answering(t, Config{QPS: 20, Burst: 1}, http.StatusOK, nil)
	const life, writes = 500 * time.Millisecond, 20
	writer := api.Writer(WriteOptions{Allowance: func(context.Context) (func() error, error) {
		taken := time.Now()
		return func() error {
			if old := time.Since(taken); old > life {
				return fmt.Errorf("it is %s old", old)
			}
			return nil
		}, nil
	}})
	var all sync.WaitGroup
	for range writes { // a second in the limiter's queue
		all.Go(func() {
			if err := writer.Delete(t.Context(), somePod, nil); err != nil {
				t.Errorf("Delete() = %v", err)
			}
		})
	}
	all.Wait()
	if left := wire.take(); len(left) != writes {
		t.Errorf("%d writes left, want %d", len(left), writes)
	}
}
