package process

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type brokerConfig struct {
	URL      string `envconfig:"URL" default:"nats://127.0.0.1:4222"`
	Password string
	Port     int    `default:"4222"`
	Seed     string `secret:"true"`
}

type policyConfig struct {
	MonitorGracePeriod time.Duration `split_words:"true" default:"50s"`
	Burst              int           `default:"3"`
}

func (p *policyConfig) Validate() error {
	if p.Burst > 1000 {
		return fmt.Errorf("MILLRACE_NODE_BURST is %d; it must be at most 1000", p.Burst)
	}
	if p.Burst < 1 {
		return fmt.Errorf("burst is %d; it must be at least 1", p.Burst)
	}
	return nil
}

type nodeConfig struct {
	Bus        brokerConfig `envconfig:"NATS"`
	Policy     policyConfig `envconfig:"NODE"`
	Kubeconfig string       `envconfig:"KUBECONFIG"`
	DryRun     bool         `split_words:"true"`
	Rate       float32      `default:"0.1"`
	Workers    uint         `default:"5"`
}

type quotaConfig struct {
	FullResync time.Duration `envconfig:"QUOTA_FULL_RESYNC" default:"5m"`
}

func TestLoad(t *testing.T) {
	tests := map[string]struct {
		env  map[string]string
		want string // the error; empty for none
	}{
		"an empty environment gives the defaults": {},
		"a setting of our own":                    {env: map[string]string{"MILLRACE_NODE_MONITOR_GRACE_PERIOD": "40s"}},
		"a setting of another role is accepted":   {env: map[string]string{"MILLRACE_QUOTA_FULL_RESYNC": "1m"}},
		"a variable of somebody else is not ours": {env: map[string]string{"NATS_PORT": "tcp://10.0.0.1:4222", "MILLRACES": "x"}},
		"a misspelt setting is refused and the nearest is named": {
			env:  map[string]string{"MILLRACE_NODE_MONITOR_GRACE_PERIDO": "40s"},
			want: "MILLRACE_NODE_MONITOR_GRACE_PERIDO is no setting of any role; did you mean MILLRACE_NODE_MONITOR_GRACE_PERIOD?",
		},
		"a misspelt setting of another role as well": {
			env:  map[string]string{"MILLRACE_QUOTA_FULLRESYNC": "1m"},
			want: "MILLRACE_QUOTA_FULLRESYNC is no setting of any role; did you mean MILLRACE_QUOTA_FULL_RESYNC?",
		},
		"what resembles nothing gets no suggestion": {
			env:  map[string]string{"MILLRACE_ZZZZ": "1"},
			want: "MILLRACE_ZZZZ is no setting of any role",
		},
		"of two mistakes the first in the alphabet is told": {
			env:  map[string]string{"MILLRACE_ZZZZ": "1", "MILLRACE_AAAA": "1"},
			want: "MILLRACE_AAAA is no setting of any role",
		},
		"the links of a Service named like us are ignored": {env: map[string]string{
			"MILLRACE_WATCHER_SERVICE_HOST": "10.0.0.9", "MILLRACE_WATCHER_SERVICE_PORT": "8080",
			"MILLRACE_WATCHER_SERVICE_PORT_HTTP_METRICS": "8080", "MILLRACE_WATCHER_PORT": "tcp://10.0.0.9:8080",
			"MILLRACE_WATCHER_PORT_8080_TCP": "tcp://10.0.0.9:8080", "MILLRACE_WATCHER_PORT_8080_TCP_PROTO": "tcp",
			"MILLRACE_WATCHER_PORT_8080_TCP_PORT": "8080", "MILLRACE_WATCHER_PORT_8080_TCP_ADDR": "10.0.0.9",
			"MILLRACE_WATCHER_PORT_53_UDP_ADDR": "10.0.0.9",
		}},
		"a Service named exactly like us as well": {env: map[string]string{
			"MILLRACE_SERVICE_HOST": "10.0.0.9", "MILLRACE_SERVICE_PORT": "8080", "MILLRACE_PORT": "tcp://10.0.0.9:8080",
		}},
		"a setting that only ends like a link is refused": {
			env:  map[string]string{"MILLRACE_NATZ_PORT": "4222"},
			want: "MILLRACE_NATZ_PORT is no setting of any role; did you mean MILLRACE_NATS_PORT?",
		},
		"a link of another Service does not excuse it": {
			env: map[string]string{
				"MILLRACE_NATZ_PORT": "4222", "MILLRACE_WATCHER_SERVICE_HOST": "10.0.0.9", "MILLRACE_WATCHER_SERVICE_PORT": "80",
			},
			want: "MILLRACE_NATZ_PORT is no setting of any role; did you mean MILLRACE_NATS_PORT?",
		},
		"a duration without a unit": {
			env:  map[string]string{"MILLRACE_NODE_MONITOR_GRACE_PERIOD": "40"},
			want: `MILLRACE_NODE_MONITOR_GRACE_PERIOD is "40"; it must be a duration with a unit, such as 500ms, 40s or 5m`,
		},
		"an empty duration": {
			env:  map[string]string{"MILLRACE_NODE_MONITOR_GRACE_PERIOD": ""},
			want: `MILLRACE_NODE_MONITOR_GRACE_PERIOD is ""; it must be a duration with a unit, such as 500ms, 40s or 5m`,
		},
		"a word for a number": {
			env:  map[string]string{"MILLRACE_NATS_PORT": "many"},
			want: `MILLRACE_NATS_PORT is "many"; it must be a whole number`,
		},
		"a negative count": {
			env:  map[string]string{"MILLRACE_WORKERS": "-1"},
			want: `MILLRACE_WORKERS is "-1"; it must be a whole number, not negative`,
		},
		"a fraction with a comma": {
			env:  map[string]string{"MILLRACE_RATE": "0,1"},
			want: `MILLRACE_RATE is "0,1"; it must be a number`,
		},
		"a yes for a bool": {
			env:  map[string]string{"MILLRACE_DRY_RUN": "yes"},
			want: `MILLRACE_DRY_RUN is "yes"; it must be true or false`,
		},
		"a Validate of an inner struct is asked and its place named": {
			env:  map[string]string{"MILLRACE_NODE_BURST": "0"},
			want: "MILLRACE_NODE: burst is 0; it must be at least 1",
		},
		"a Validate that names the variable is not told twice": {
			env:  map[string]string{"MILLRACE_NODE_BURST": "1001"},
			want: "MILLRACE_NODE_BURST is 1001; it must be at most 1000",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var environ []string
			for k, v := range tt.env {
				t.Setenv(k, v)
				environ = append(environ, k+"="+v)
			}
			var cfg nodeConfig
			err := load(Prefix, &cfg, []any{&quotaConfig{}}, environ)
			got := ""
			if err != nil {
				if !errors.Is(err, ErrConfig) {
					t.Errorf("%v is not ErrConfig", err)
				}
				got = strings.TrimPrefix(err.Error(), ErrConfig.Error()+": ")
			}
			if got != tt.want {
				t.Errorf("error\n got %s\nwant %s", got, tt.want)
			}
		})
	}
}

// An explicit name on a leaf also reads the variable without our prefix, which
// is how KUBECONFIG works; ours wins.
func TestLoadReadsUnprefixedNames(t *testing.T) {
	var cfg nodeConfig
	t.Setenv("KUBECONFIG", "/theirs")
	if err := load(Prefix, &cfg, nil, nil); err != nil || cfg.Kubeconfig != "/theirs" {
		t.Errorf("KUBECONFIG gave %q, %v", cfg.Kubeconfig, err)
	}
	t.Setenv("MILLRACE_KUBECONFIG", "/ours")
	if err := load(Prefix, &cfg, nil, []string{"MILLRACE_KUBECONFIG=/ours"}); err != nil || cfg.Kubeconfig != "/ours" {
		t.Errorf("MILLRACE_KUBECONFIG gave %q, %v", cfg.Kubeconfig, err)
	}
}

func TestSettingsHideSecrets(t *testing.T) {
	cfg := nodeConfig{Bus: brokerConfig{
		URL: "nats://me:hunter2@broker:4222,nats://me:hunter2@other:4222", Password: "hunter2", Seed: "hunter2", Port: 1,
	}}
	settings, err := SettingsOf(Prefix, &cfg)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, s := range settings {
		if strings.Contains(s.Shown(), "hunter2") {
			t.Errorf("%s shows %q", s.Name, s.Shown())
		}
		got[s.Name] = s.Shown()
	}
	want := map[string]string{
		"MILLRACE_NATS_URL":      "nats://(secret)@broker:4222,nats://(secret)@other:4222",
		"MILLRACE_NATS_PASSWORD": "(secret)", "MILLRACE_NATS_SEED": "(secret)", "MILLRACE_NATS_PORT": "1",
		"MILLRACE_NODE_MONITOR_GRACE_PERIOD": "0s", "MILLRACE_NODE_BURST": "0", "MILLRACE_KUBECONFIG": "",
		"MILLRACE_DRY_RUN": "false", "MILLRACE_RATE": "0", "MILLRACE_WORKERS": "0",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// A secret that cannot be parsed is not told either.
func TestParseErrorHidesSecrets(t *testing.T) {
	t.Setenv("MILLRACE_API_TOKEN", "hunter2")
	var cfg struct {
		APIToken int `split_words:"true"`
	}
	err := load(Prefix, &cfg, nil, nil)
	if err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v", err)
	}
}

func FuzzDistance(f *testing.F) {
	f.Add("abc", "acb")
	f.Fuzz(func(t *testing.T, a, b string) {
		if len(a) > 100 || len(b) > 100 {
			return
		}
		d := distance(a, b)
		if d != distance(b, a) || (d == 0) != (a == b) || d > max(len(a), len(b)) {
			t.Fatalf("distance(%q, %q) = %d", a, b, d)
		}
	})
}
