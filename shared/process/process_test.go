package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// output collects what a process says.
type output struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.Write(b)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.buf.String()
}

func TestServe(t *testing.T) {
	forever := make(chan struct{})
	t.Cleanup(func() { close(forever) })
	untilDone := func(ctx context.Context, _ *Env) error { <-ctx.Done(); return ctx.Err() }
	tests := map[string]struct {
		env     map[string]string
		run     func(context.Context, *Env) error
		signals int
		want    int
		says    string
	}{
		"a role that ends well": {
			run: func(context.Context, *Env) error { return nil }, want: ExitOK, says: `"stopped"`,
		},
		"a role that fails": {
			run: func(context.Context, *Env) error { return errors.New("no luck") }, want: ExitFailure, says: "no luck",
		},
		"a role with a bad configuration says so in one line": {
			run:  func(context.Context, *Env) error { return fmt.Errorf("x: %w", configError("a\nb")) },
			want: ExitConfig, says: "millrace test: x: bad configuration: a; b\n",
		},
		"a bad setting of the process itself": {
			env: map[string]string{"MILLRACE_LOG_LEVEL": "loud"}, run: untilDone, want: ExitConfig,
			says: `log level is "loud"; it must be debug, info, warn or error`,
		},
		"a misspelt setting": {
			env: map[string]string{"MILLRACE_LOG_LEVLE": "info"}, run: untilDone, want: ExitConfig,
			says: "did you mean MILLRACE_LOG_LEVEL?",
		},
		"an address in use": {
			env: map[string]string{"MILLRACE_LISTEN": "256.0.0.1:1"}, run: untilDone, want: ExitFailure,
			says: "millrace test: listening on 256.0.0.1:1",
		},
		"a signal drains": {run: untilDone, signals: 1, want: ExitOK, says: `"draining"`},
		"a drain that fails is a failure": {
			run:     func(ctx context.Context, _ *Env) error { <-ctx.Done(); return errors.New("half done") },
			signals: 1, want: ExitFailure, says: "half done",
		},
		"a drain that takes too long is cut": {
			env:     map[string]string{"MILLRACE_DRAIN_TIMEOUT": "20ms"},
			run:     func(context.Context, *Env) error { <-forever; return nil },
			signals: 1, want: ExitFailure, says: "draining took too long",
		},
		"a second signal leaves at once": {
			run: func(context.Context, *Env) error { <-forever; return nil }, signals: 2, want: ExitSignal, says: "second signal",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MILLRACE_LISTEN", "127.0.0.1:0")
			for k, v := range tt.env {
				t.Setenv(k, v)
			}
			signals := make(chan os.Signal, 2)
			for range tt.signals {
				signals <- syscall.SIGTERM
			}
			var out output
			if got := serve("test", tt.run, nil, signals, &out); got != tt.want {
				t.Errorf("exit code %d, want %d; it said\n%s", got, tt.want, out.String())
			}
			if !strings.Contains(out.String(), tt.says) {
				t.Errorf("it did not say %q, but\n%s", tt.says, out.String())
			}
		})
	}
}

func TestReadinessEndsWithTheFirstSignal(t *testing.T) {
	t.Setenv("MILLRACE_LISTEN", "127.0.0.1:0")
	signals := make(chan os.Signal, 1)
	readyz := func(env *Env) (int, string) {
		resp, err := http.Get("http://" + env.Addr + "/readyz")
		if err != nil {
			t.Error(err)
			return 0, ""
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	code := serve("test", func(ctx context.Context, env *Env) error {
		defer http.DefaultClient.CloseIdleConnections()
		if code, body := readyz(env); code != 503 || body != "process: starting\n" {
			t.Errorf("before anything is named: %d %q", code, body)
		}
		env.Health.Ready("bus", func() error { return nil })
		if code, body := readyz(env); code != 200 || body != "ok\n" {
			t.Errorf("when ready: %d %q", code, body)
		}
		signals <- syscall.SIGINT
		<-ctx.Done()
		if code, body := readyz(env); code != 503 || body != "process: draining\n" {
			t.Errorf("while draining: %d %q", code, body)
		}
		return nil
	}, nil, signals, io.Discard)
	if code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestEnvLoadPrintsOnceWithoutSecrets(t *testing.T) {
	t.Setenv("MILLRACE_LISTEN", "")
	t.Setenv("MILLRACE_NATS_PASSWORD", "hunter2")
	t.Setenv("MILLRACE_QUOTA_FULL_RESYNC", "7m") // another role's
	var out output
	code := serve("test", func(_ context.Context, env *Env) error {
		var cfg nodeConfig
		return env.Load(&cfg)
	}, []any{&nodeConfig{}, &quotaConfig{}}, nil, &out)
	if code != ExitOK {
		t.Fatalf("exit code %d: %s", code, out.String())
	}
	if strings.Contains(out.String(), "hunter2") {
		t.Errorf("a secret was printed:\n%s", out.String())
	}
	if n := strings.Count(out.String(), `"MILLRACE_NODE_MONITOR_GRACE_PERIOD":"50s"`); n != 1 {
		t.Errorf("the setting was printed %d times:\n%s", n, out.String())
	}
}

func TestMainListensToRealSignals(t *testing.T) {
	t.Setenv("MILLRACE_LISTEN", "")
	code := Main("test", func(ctx context.Context, _ *Env) error {
		if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Second):
			return errors.New("no signal came")
		}
	})
	if code != ExitOK {
		t.Errorf("exit code %d", code)
	}
}

func TestCheckSaysNothingButWhatIsWrong(t *testing.T) {
	var out bytes.Buffer
	if code := check("test", &nodeConfig{}, nil, &out); code != ExitOK || out.Len() > 0 {
		t.Errorf("check() = %d, %q; want %d and silence", code, out.String(), ExitOK)
	}
	t.Setenv("MILLRACE_NODE_BURST", "0")
	const want = "millrace test: bad configuration: MILLRACE_NODE: burst is 0; it must be at least 1\n"
	if code := check("test", &nodeConfig{}, nil, &out); code != ExitConfig || out.String() != want {
		t.Errorf("check() = %d, %q; want %d, %q", code, out.String(), ExitConfig, want)
	}
}
