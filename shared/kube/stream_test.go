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
		ago := func() time.Duration { return time.Since(s.heard(conn, false)) }

		go read() // the reader waits
		time.Sleep(10 * time.Second)
		arrive() // the answer to a ping
		if got := ago(); got != 0 {
			t.Errorf("while the reader waits, the proof is %s old", got)
		}
		if got := time.Since(s.heard(conn, true)); got != 10*time.Second {
			t.Errorf("while the last event is being passed on, the proof is %s old; want that of the last read", got)
		}
		if _, err := writer.Write([]byte("ab")); err != nil { // two events
			t.Fatal(err)
		}
		synctest.Wait()
		time.Sleep(30 * time.Second)
		arrive()
		if got := ago(); got < 30*time.Second {
			t.Errorf("an event waits since 30s, the proof is %s old", got)
		}
		read()    // the second
		go read() // and the reader waits again
		time.Sleep(time.Second)
		arrive()
		if got := ago(); got != 0 {
			t.Errorf("everything has been taken, the proof is %s old", got)
		}
		_ = writer.Close()
		synctest.Wait()
	})
}
