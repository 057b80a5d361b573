package standalone

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/process"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Contract: issue 3, part 8: a NATS of one's own beside it is refused.
func TestSettingsOfAnotherNATSAreRefused(t *testing.T) {
	for _, name := range []string{"URL", "CREDS_FILE", "USER", "PASSWORD_FILE", "CA_FILE", "CERT_FILE", "KEY_FILE", "REPLICAS", "STORAGE"} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MILLRACE_NATS_"+name, "x")
			err := process.Load(process.Prefix, &Config{}, &struct {
				Bus bus.Config `envconfig:"NATS"`
			}{})
			if want := "MILLRACE_NATS_" + name + " is set; standalone runs a NATS of its own"; !errors.Is(err, process.ErrConfig) || !strings.Contains(err.Error(), want) {
				t.Errorf("%v, want %q", err, want)
			}
		})
	}
}

// What is refused must be what the roles read: a renamed setting would slip by.
func TestRefusedSettingsAreThoseOfTheBus(t *testing.T) {
	names := func(spec any) (out []string) {
		settings, err := process.SettingsOf(process.Prefix, spec)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range settings {
			out = append(out, s.Name)
		}
		return out
	}
	theirs := names(&struct {
		Bus bus.Config `envconfig:"NATS"`
	}{})
	for _, name := range names(&Config{}) {
		if name != "MILLRACE_STANDALONE_DIR" && !slices.Contains(theirs, name) {
			t.Errorf("%s is refused, but no role reads it", name)
		}
	}
}

func TestFolderHasOneUser(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	first, err := occupy(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := occupy(dir); !errors.Is(err, errInUse) || !errors.Is(err, process.ErrConfig) {
		t.Errorf("a second one got %v", err)
	}
	if err := first.tell("nats://u:p@127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(filepath.Join(dir, urlFile))
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the address is readable by others: %v %v", info, err)
	}
	first.leave()
	if _, err := os.Stat(filepath.Join(dir, urlFile)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the address outlives the process: %v", err)
	}
	second, err := occupy(dir)
	if err != nil {
		t.Fatalf("after the first has left: %v", err)
	}
	second.leave()
}

// Contract: issue 3, part 8: roles find the embedded NATS by the configuration
// they read anyway; nobody else gets in; NATS outlives the watcher; and what a
// folder holds is there again.
func TestWith(t *testing.T) {
	tests := map[string]struct {
		dir   string
		again bool // the second start finds the first one's streams
	}{
		"in memory":   {"", false},
		"in a folder": {filepath.Join(t.TempDir(), "folder"), true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			for round := range 2 {
				t.Run(fmt.Sprint(round), func(t *testing.T) {
					t.Setenv("MILLRACE_LISTEN", "")
					t.Setenv("MILLRACE_NATS_URL", "") // set from inside, restored after the test
					t.Setenv("MILLRACE_NATS_STORAGE", "")
					t.Setenv("MILLRACE_STANDALONE_DIR", tt.dir)
					p := &players{t: t, dir: tt.dir, found: round == 1 && tt.again}
					code := process.Main("standalone", With(process.Role{Name: "watcher", Run: p.watcher},
						process.Role{Name: "controller", Run: p.controller}), &Config{}, &settings{})
					if code != process.ExitOK {
						t.Errorf("exit code %d", code)
					}
				})
			}
		})
	}
}

type settings struct {
	Bus bus.Config `envconfig:"NATS"`
}

// players are two roles that look at the NATS they are given.
type players struct {
	t     *testing.T
	dir   string
	found bool
}

func (p *players) watcher(ctx context.Context, env *process.Env) error {
	var cfg settings
	if err := env.Load(&cfg); err != nil {
		return err
	}
	b, err := p.connect(ctx, env, cfg.Bus)
	if err != nil {
		return err
	}
	defer b.Close()
	if err := b.Verify(ctx); (err == nil) != p.found {
		p.t.Errorf("streams before anybody made them: %v", err)
	}
	if err := b.Ensure(ctx); err != nil {
		return err
	}
	p.strangers(ctx, env, cfg.Bus)
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		return err
	}
	<-ctx.Done()
	if err := b.Verify(context.WithoutCancel(ctx)); err != nil {
		p.t.Errorf("NATS has gone before the watcher: %v", err)
	}
	return nil
}

func (p *players) controller(ctx context.Context, _ *process.Env) error { <-ctx.Done(); return nil }

func (p *players) connect(ctx context.Context, env *process.Env, cfg bus.Config) (*bus.Bus, error) {
	b, err := bus.Connect(ctx, cfg, "test", env.Log, nil)
	if err != nil {
		return nil, err
	}
	changes, stop := b.Changes()
	defer stop()
	for !b.State().Connected {
		select {
		case <-changes:
		case <-time.After(10 * time.Second):
			return b, errors.New("not connected")
		}
	}
	return b, nil
}

// strangers: without the password, and from elsewhere, there is no way in.
func (p *players) strangers(ctx context.Context, env *process.Env, cfg bus.Config) {
	u, err := url.Parse(cfg.URL)
	if err != nil || u.Hostname() != "127.0.0.1" {
		p.t.Errorf("NATS listens at %s: %v", u.Redacted(), err)
	}
	told, err := os.ReadFile(filepath.Join(p.dir, urlFile))
	if p.dir != "" && strings.TrimSpace(string(told)) != cfg.URL {
		p.t.Errorf("the folder tells another address: %v", err)
	}
	u.User = nil
	cfg.URL = u.String()
	b, err := bus.Connect(ctx, cfg, "stranger", env.Log, nil)
	if err != nil {
		p.t.Error(err)
		return
	}
	defer b.Close()
	select { // it tries again and again; a login that works takes milliseconds
	case <-time.After(300 * time.Millisecond):
	case <-ctx.Done():
	}
	if b.State().Connected {
		p.t.Error("NATS lets strangers in")
	}
}
