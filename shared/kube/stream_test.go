package kube

import (
	"io"
	"testing"
	"testing/synctest"
	"time"
)

// TestProofWaitsForWhatWasSent: bytes that arrive prove nothing while what came
// before them has not been read. Without that a process that was frozen would
// take a minute of waiting beats for a minute of silence.
func TestProofWaitsForWhatWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		defer func(before time.Time) { started = before }(started)
		started = time.Now() // of this bubble
		conn := &heardConn{}
		arrive := func() { conn.last.Store(int64(time.Since(started))) }
		reader, writer := io.Pipe()
		s := newHeardStream()
		s.body = reader
		one := make([]byte, 1)
		read := func() { _, _ = s.Read(one) }
		// ago is how old the proof is, when somebody goes on looking.
		ago := func(busy bool) time.Duration {
			for range 2 {
				s.heard(conn, busy)
				time.Sleep(sampleEvery)
			}
			return time.Since(started.Add(s.heard(conn, busy))).Truncate(100 * time.Millisecond)
		}

		if s.heard(conn, false) >= 0 {
			t.Error("a proof before anything was read")
		}
		go read() // the reader waits
		synctest.Wait()
		time.Sleep(10 * time.Second)
		arrive() // the answer to a ping
		if got := ago(false); got != 0 {
			t.Errorf("while the reader waits, the proof is %s old", got)
		}
		// The process stands still, and bytes have come when it goes on.
		time.Sleep(30 * time.Second)
		arrive()
		if got := time.Since(started.Add(s.heard(conn, false))); got < 30*time.Second {
			t.Errorf("bytes that nobody has looked at yet prove up to %s ago", got)
		}
		if _, err := writer.Write([]byte("ab")); err != nil { // two events
			t.Fatal(err)
		}
		synctest.Wait()
		if got := ago(false); got < 30*time.Second {
			t.Errorf("an event waits behind another, the proof is %s old", got)
		}
		read()    // the second
		go read() // and the reader waits again
		synctest.Wait()
		time.Sleep(time.Second)
		arrive()
		if got := ago(true); got < time.Second {
			t.Errorf("while the last event is being passed on, the proof is %s old", got)
		}
		if got := ago(false); got != 0 {
			t.Errorf("everything has been taken, the proof is %s old", got)
		}
		_ = writer.Close()
		synctest.Wait()
	})
}
