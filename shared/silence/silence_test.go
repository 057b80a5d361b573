package silence

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace-io/millrace/shared/beat"
	"github.com/millrace-io/millrace/shared/event"
)

// ear is a Source whose digests the test makes up.
type ear struct {
	sink chan event.DigestSink
	name string
}

func (e *ear) FollowDigests(ctx context.Context, name string, _ []int, sink event.DigestSink) error {
	e.name = name
	sink.Begin(1)
	e.sink <- sink
	<-ctx.Done()
	return ctx.Err()
}

// tell sends a digest of one node.
func tell(t *testing.T, sink event.DigestSink, counter uint64, renewed int64, age time.Duration) {
	t.Helper()
	var e beat.Encoder
	body, err := e.Encode(beat.Digest{
		Epoch: 5, Counter: counter, At: time.Duration(counter) * time.Second,
		Beats: []beat.Beat{{Node: "n", UID: "u", Renewed: renewed, Age: age}},
	})
	if err != nil {
		t.Fatal(err)
	}
	sink.Digest(3, counter, body)
}

func TestPartition(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		source, reg := &ear{sink: make(chan event.DigestSink, 1)}, prometheus.NewRegistry()
		f := New(source, "nodelifecycle-m", nil, reg)
		began := time.Now()
		f.now = func() time.Duration { return time.Hour + time.Since(began) }
		p := f.Partition(3)
		ctx, cancel := context.WithCancel(t.Context())
		go func() { _ = p.Run(ctx) }()
		sink := <-source.sink
		if source.name != "nodelifecycle-m-beats-p3" {
			t.Errorf("the feed is called %s", source.name)
		}
		if why := p.Suspended(); why != beat.NoDigest {
			t.Errorf("before any digest: %q", why)
		}

		tell(t, sink, 0, 7, 8*time.Second)
		time.Sleep(time.Second)
		tell(t, sink, 1, 7, 9*time.Second)
		time.Sleep(time.Second)
		tell(t, sink, 2, 7, 10*time.Second)
		sink.Digest(3, 3, []byte{0xff})
		sink.Digest(4, 3, []byte{0xff}) // another partition's
		<-p.Heard()
		time.Sleep(500 * time.Millisecond)
		if v := p.Of("n", "u"); v.Silence != 10500*time.Millisecond || v.Why != "" {
			t.Errorf("silent for %s, %q; want 10.5s", v.Silence, v.Why)
		}
		grace := func(beat.Beat) time.Duration { return 12 * time.Second }
		if wait, ok := p.Next(grace); !ok || wait != 1500*time.Millisecond {
			t.Errorf("next in %s, %t; want 1.5s", wait, ok)
		}
		time.Sleep(1500 * time.Millisecond)
		if v := p.Of("n", "u"); v.Silence != 12*time.Second {
			t.Errorf("silent for %s at the deadline of 12s", v.Silence)
		}
		if wait, ok := p.Next(grace); ok {
			t.Errorf("next in %s, after it has passed", wait)
		}
		if wait, ok := p.Deadline("n", 12*time.Second); !ok || wait != 0 {
			t.Errorf("deadline in %s, %t; want now", wait, ok)
		}

		if p.Live(p.Of("n", "u").Beat, beat.Beat{Node: "n", UID: "u", Renewed: 8}) || p.Suspended() != beat.Contradicted {
			t.Errorf("after a contradiction: %q", p.Suspended())
		}
		time.Sleep(time.Second)
		tell(t, sink, 5, 8, 0)
		if v := p.Of("n", "u"); v.Why != "" || v.Silence != 0 || len(p.Nodes()) != 1 {
			t.Errorf("after the digest has caught up: %+v", v)
		}
		time.Sleep(4 * time.Second)
		if n := gauge(t, reg, "millrace_silence_suspended_partitions", string(beat.Late)); n != 1 {
			t.Errorf("%v partitions are late, want 1", n)
		}
		cancel()
		synctest.Wait()
	})
}

// gauge reads a series by its reason; -1 if there is none.
func gauge(t *testing.T, reg *prometheus.Registry, name, reason string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == reason {
				return m.GetGauge().GetValue()
			}
		}
	}
	return -1
}
