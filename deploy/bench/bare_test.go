package bench

import (
	"context"
	"encoding/binary"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
)

// bare is the same server without a stream: what two processes and a message
// cost on this machine, whatever carries it.
type bare struct {
	out, in *nats.Conn
	got     chan time.Duration
	began   time.Time
}

const bareSubject = "bare"

func newBare(t *testing.T, url string) *bare {
	t.Helper()
	b := &bare{got: make(chan time.Duration, 100000), began: time.Now()}
	var err error
	if b.out, err = nats.Connect(url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.out.Close)
	if b.in, err = nats.Connect(url); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.in.Close)
	_, err = b.in.Subscribe(bareSubject, func(m *nats.Msg) {
		sent := time.Duration(binary.LittleEndian.Uint64(m.Data)) //nolint:gosec // we wrote it
		b.got <- time.Since(b.began) - sent
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.in.Flush(); err != nil {
		t.Fatal(err)
	}
	return b
}

// drive sends n messages, one every gap, and returns how old each arrived.
func (b *bare) drive(ctx context.Context, t *testing.T, n int, gap time.Duration) []time.Duration {
	t.Helper()
	next := time.Now()
	for range n {
		if err := sleep(ctx, time.Until(next)); err != nil {
			t.Fatal(err)
		}
		next = next.Add(gap)
		body := make([]byte, bodyBytes)
		binary.LittleEndian.PutUint64(body, uint64(time.Since(b.began))) //nolint:gosec // positive
		if err := b.out.Publish(bareSubject, body); err != nil {
			t.Fatal(err)
		}
	}
	delays := make([]time.Duration, n)
	for i := range delays {
		select {
		case delays[i] = <-b.got:
		case <-ctx.Done():
			t.Fatalf("%d of %d messages have arrived: %v", i, n, ctx.Err())
		}
	}
	return delays
}

func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
