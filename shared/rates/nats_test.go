package rates_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/clock"
	"github.com/millrace-io/millrace/shared/rates"
)

// These are the interfaces' only real implementations.
var (
	_ rates.Store = (*bus.KV)(nil)
	_ rates.Wire  = (*bus.Bus)(nil)
)

// Environment of a taker: the test binary itself, run again.
const (
	takerURL   = "MILLRACE_RATES_TEST_URL"
	takerRate  = "MILLRACE_RATES_TEST_RATE"
	takerBurst = "MILLRACE_RATES_TEST_BURST"
)

func TestMain(m *testing.M) {
	if url := os.Getenv(takerURL); url != "" {
		os.Exit(take(url))
	}
	os.Exit(m.Run())
}

// take does what its parent writes, a line each: how many workers take how many
// tokens each, and for how many milliseconds they hold each before they use it. It
// writes a line for each act: when it was, by a clock that all processes of a
// machine share.
func take(url string) int {
	rate, err := strconv.ParseFloat(os.Getenv(takerRate), 64)
	if err != nil {
		return 2
	}
	burst, err := strconv.Atoi(os.Getenv(takerBurst))
	if err != nil {
		return 2
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	b, err := bus.Connect(ctx, bustest.ConfigFor(url), "taker", nil, nil)
	if err != nil {
		return 1
	}
	defer b.Close()
	r := rates.New(rates.Config{Role: "evictor", Taker: strconv.Itoa(os.Getpid())}, b.KV(bus.Rates), b, nil, nil)
	bucket := r.Bucket("write", rate, burst)
	go r.Run(ctx)
	var out sync.Mutex
	var workers sync.WaitGroup
	act := func(held time.Duration) bool {
		token, err := bucket.Take(ctx)
		if err != nil {
			return false
		}
		<-time.After(held)
		// The signal may stop us anywhere: what counts is when the token was found
		// good.
		if at := clock.Boot(); token.Valid() == nil {
			out.Lock()
			fmt.Fprintln(os.Stdout, int64(at))
			out.Unlock()
		}
		return true
	}
	// The parent's end closes when the parent dies in any way.
	for orders := bufio.NewScanner(os.Stdin); orders.Scan(); {
		var count, times, held int
		if _, err := fmt.Sscan(orders.Text(), &count, &times, &held); err != nil {
			return 2
		}
		for range count {
			workers.Go(func() {
				for i := 0; i < times && act(time.Duration(held)*time.Millisecond); i++ {
				}
			})
		}
	}
	cancel()
	workers.Wait()
	return 0
}

// taker is a child process.
type taker struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	done  chan struct{}
}

// order makes a taker take; see take.
func (p *taker) order(workers, times, heldMillis int) {
	_, _ = fmt.Fprintln(p.stdin, workers, times, heldMillis) // a dead one does nothing
}

// ledger is what all children have done.
type ledger struct {
	t     *testing.T
	url   string
	rate  float64
	burst int
	mu    sync.Mutex
	acts  []time.Duration
}

func (l *ledger) start() *taker {
	l.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), takerURL+"="+l.url, takerRate+"="+fmt.Sprint(l.rate), takerBurst+"="+strconv.Itoa(l.burst))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		l.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	p := &taker{cmd: cmd, stdin: stdin, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			at, err := strconv.ParseInt(strings.TrimSpace(lines.Text()), 10, 64)
			if err != nil {
				continue // killed in the middle of a line
			}
			l.mu.Lock()
			l.acts = append(l.acts, time.Duration(at))
			l.mu.Unlock()
		}
	}()
	l.t.Cleanup(func() { p.end(syscall.SIGKILL) })
	return p
}

func (p *taker) end(s syscall.Signal) {
	_ = p.cmd.Process.Signal(s)
	_ = p.cmd.Process.Signal(syscall.SIGCONT)
	_ = p.stdin.Close()
	<-p.done
	_ = p.cmd.Wait()
}

// between returns how many acts were between two instants.
func (l *ledger) between(from, to time.Duration) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, at := range l.acts {
		if at >= from && at < to {
			n++
		}
	}
	return n
}

// awaitActs waits until there have been n acts more.
func (l *ledger) awaitActs(n int) {
	l.t.Helper()
	from := clock.Boot()
	deadline := time.After(30 * time.Second)
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	for l.between(from, 1<<62) < n {
		select {
		case <-ticker.C:
		case <-deadline:
			l.t.Fatal("no acts for 30 s")
		}
	}
}

// excess is the most by which any window had more acts than it may.
func (l *ledger) excess() float64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.acts)
	excess, least := -1e9, 1e18
	for i, at := range l.acts {
		flowed := l.rate * (at - l.acts[0]).Seconds()
		least = min(least, float64(i)-flowed)
		excess = max(excess, float64(i+1)-flowed-least-l.rate-float64(l.burst))
	}
	return excess
}

// Real processes on a real server: stopped and continued, killed and started,
// while NATS is restarted, killed, frozen and wiped.
func TestRealBound(t *testing.T) {
	if testing.Short() {
		t.Skip("runs eight processes for half a minute")
	}
	server := bustest.StartProcess(t)
	b := bustest.Connect(t, server.Config(), "watcher")
	l := &ledger{t: t, url: server.URL(), rate: 40, burst: 1}
	takers := make([]*taker, 8)
	always := func() *taker {
		p := l.start()
		p.order(3, 1<<30, 0)
		return p
	}
	for i := range takers {
		takers[i] = always()
	}
	l.awaitActs(40)

	// Nothing is wrong: 95 % of what flows in.
	calm, from := 5*time.Second, clock.Boot()
	<-time.After(calm)
	least := 0.5 // eight processes share two busy cores with other tests
	if os.Getenv("LONG") == "1" {
		least = 0.95
	}
	if n := l.between(from, from+calm); float64(n) < least*l.rate*calm.Seconds() {
		t.Errorf("%d acts in %s at %g a second, want %.0f %%", n, calm, l.rate, 100*least)
	} else {
		t.Logf("calm: %.1f %% of the rate", 100*float64(n)/l.rate/calm.Seconds())
	}

	for round := range 3 {
		for i := range 4 {
			_ = takers[(round+2*i)%8].cmd.Process.Signal(syscall.SIGSTOP)
		}
		l.awaitActs(30) // by the other four
		takers[round].end(syscall.SIGKILL)
		takers[round] = always()
		for _, p := range takers {
			_ = p.cmd.Process.Signal(syscall.SIGCONT)
		}
		l.awaitActs(30)
		switch round {
		case 0:
			server.Kill()
			server.Restart()
		case 1:
			server.Wipe()
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			bustest.AwaitConnected(t, b)
			if err := b.Ensure(ctx); err != nil {
				t.Fatal(err)
			}
			cancel()
		case 2:
			server.Freeze()
			<-time.After(2 * time.Second)
			server.Thaw()
		}
		l.awaitActs(60)
	}
	for _, p := range takers {
		p.end(syscall.SIGTERM)
	}
	excess := l.excess()
	t.Logf("%d acts; the worst window was %.1f acts below its bound", len(l.acts), -excess)
	if excess > 0 {
		t.Errorf("a window has %.1f acts more than it may", excess)
	}
}

// A process that is stopped with the whole burst in hand, and continued when the
// bucket has filled again and another spends that.
func TestRealFreezeWithTokensInHand(t *testing.T) {
	if testing.Short() {
		t.Skip("runs two processes for ten seconds")
	}
	server := bustest.StartProcess(t)
	kv := bustest.Connect(t, server.Config(), "watcher").KV(bus.Rates)
	l := &ledger{t: t, url: server.URL(), rate: 10, burst: 30}
	stopped, other := l.start(), l.start()
	stopped.order(1, 1, 0) // makes the bucket, which is empty
	l.awaitActs(1)
	fill := time.Duration(float64(l.burst)/l.rate*1.1*float64(time.Second)) + 200*time.Millisecond
	<-time.After(fill)

	stopped.order(l.burst, 1, 500)
	spent := func() uint64 {
		var m millracev1.TokenBucket
		value, _, err := kv.Get(t.Context(), "evictor.write")
		if err == nil {
			err = proto.Unmarshal(value, &m)
		}
		if err != nil {
			t.Fatal(err)
		}
		return m.GetSpent()
	}
	for begun := time.Now(); spent() < uint64(l.burst); {
		if time.Since(begun) > 30*time.Second {
			t.Fatal("the burst was not taken")
		}
	}
	<-time.After(200 * time.Millisecond) // the answer has come, and nobody has acted
	if err := stopped.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	before, held := l.between(0, 1<<62), spent()
	<-time.After(fill)
	thawed := clock.Boot()
	other.order(l.burst, 1, 0)
	if err := stopped.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	for begun := time.Now(); l.between(thawed, 1<<62) < l.burst; {
		if time.Since(begun) > 30*time.Second {
			t.Fatalf("the other acted %d times", l.between(thawed, 1<<62))
		}
	}
	<-time.After(time.Second) // what the stopped one still does
	t.Logf("%d acts, %d tokens held at the stop, then %d acts", before, held, l.between(thawed, 1<<62))
	if excess := l.excess(); excess > 0 {
		t.Errorf("a window has %.1f acts more than it may", excess)
	}
}

// What a token costs on a real server: a write each where callers come one at a
// time and slowly, and next to nothing where they come fast.
func BenchmarkTake(b *testing.B) {
	server := bustest.Start(b)
	for name, bench := range map[string]struct {
		rate    float64
		workers int
	}{
		"a write each":                {3, 1}, // nothing is taken ahead at so low a rate
		"a write for five callers":    {3, 5},
		"ahead, one caller at once":   {10_000, 1},
		"ahead, five callers at once": {10_000, 5},
	} {
		b.Run(name, func(b *testing.B) {
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			nats := bustest.Connect(b, server.Config(), "taker")
			kv, role := nats.KV(bus.Rates), fmt.Sprintf("bench-%d-%d", int(bench.rate), bench.workers)
			full, err := proto.Marshal(&millracev1.TokenBucket{Serial: 1, Rate: bench.rate, Burst: 1e9})
			if err != nil {
				b.Fatal(err)
			}
			_, rev, err := kv.Get(ctx, role+".write")
			if err != nil && !errors.Is(err, bus.ErrNone) {
				b.Fatal(err)
			}
			if _, err := kv.Put(ctx, role+".write", full, rev, 0); err != nil {
				b.Fatal(err)
			}
			r := rates.New(rates.Config{Role: role, Taker: "me"}, kv, nats, nil, nil)
			bucket := r.Bucket("write", bench.rate, 1e9)
			done := make(chan struct{})
			go func() { defer close(done); r.Run(ctx) }()
			defer func() { cancel(); <-done }()
			b.ResetTimer()
			var all sync.WaitGroup
			for range bench.workers {
				all.Go(func() {
					for range b.N / bench.workers {
						if _, err := bucket.Take(ctx); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}
