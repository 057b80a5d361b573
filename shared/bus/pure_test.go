package bus

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kelseyhightower/envconfig"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

func TestVerifyVersion(t *testing.T) {
	for version, ok := range map[string]bool{
		"2.14.0": true, "2.15.2": true, "2.15.0-dev": true, "2.14": true, "3.0.0": true,
		"2.13.9": false, "2.9.25": false, "1.99.0": false, "": false, "x": false,
	} {
		if err := verifyVersion(version); (err == nil) != ok || err != nil && !errors.Is(err, ErrServerTooOld) {
			t.Errorf("verifyVersion(%q) = %v", version, err)
		}
	}
}

func validConfig(t *testing.T) Config {
	t.Helper()
	var outer struct {
		Bus Config `envconfig:"NATS"`
	}
	if err := envconfig.Process("millrace", &outer); err != nil {
		t.Fatal(err)
	}
	return outer.Bus
}

func TestDefaultsAreValid(t *testing.T) {
	if err := validConfig(t).Validate(); err != nil {
		t.Error(err)
	}
}

func TestConfigIsReadFromTheEnvironment(t *testing.T) {
	t.Setenv("MILLRACE_NATS_URL", "tls://nats.example.org:4222")
	t.Setenv("MILLRACE_NATS_CA_FILE", "/ca.pem")
	t.Setenv("MILLRACE_NATS_MAX_BYTES", "123")
	t.Setenv("MILLRACE_NATS_DECISIONS_MAX_AGE", "2h")
	c := validConfig(t)
	if c.URL != "tls://nats.example.org:4222" || c.CAFile != "/ca.pem" || c.MaxBytes != 123 || c.DecisionsMaxAge != 2*time.Hour {
		t.Errorf("read %+v", c)
	}
}

func TestValidateNamesTheSetting(t *testing.T) {
	for setting, spoil := range map[string]func(*Config){
		"MILLRACE_NATS_URL":                  func(c *Config) { c.URL = "http://x" },
		"MILLRACE_NATS_CLUSTER":              func(c *Config) { c.Cluster = "No Dots." },
		"MILLRACE_NATS_PARTITIONS":           func(c *Config) { c.Partitions = 257 },
		"MILLRACE_NATS_REPLICAS":             func(c *Config) { c.Replicas = 2 },
		"MILLRACE_NATS_STORAGE":              func(c *Config) { c.Storage = "tape" },
		"MILLRACE_NATS_MAX_BYTES":            func(c *Config) { c.MaxBytes = 0 },
		"MILLRACE_NATS_DECISIONS_MAX_AGE":    func(c *Config) { c.DecisionsMaxAge = -1 },
		"MILLRACE_NATS_DECISIONS_PER_OBJECT": func(c *Config) { c.DecisionsPerObject = 0 },
		"MILLRACE_NATS_PASSWORD_FILE":        func(c *Config) { c.User = "u" },
		"MILLRACE_NATS_KEY_FILE":             func(c *Config) { c.CertFile = "c" },
	} {
		c := validConfig(t)
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), setting) {
			t.Errorf("Validate() = %v, want it to name %s", err, setting)
		}
	}
}

func TestPasswordsStayOutOfMessages(t *testing.T) {
	c := validConfig(t)
	c.URL = "nats://u:secret@h:4222,nats://u:secret@i:4222"
	if s := c.redactedURL(); strings.Contains(s, "secret") {
		t.Errorf("redactedURL() = %q", s)
	}
}

func TestReadAck(t *testing.T) {
	tests := map[string]struct {
		data   string
		status string
		seq    uint64
		is     error
	}{
		"the common answer":              {data: `{"stream":"K8S_default","seq":1764493200000001}`, seq: 1764493200000001},
		"the common answer, spaced":      {data: `{"stream":"K8S_default", "seq": 5}`, seq: 5},
		"a domain after the sequence":    {data: `{"stream":"K8S_default","seq":7,"domain":"hub"}`, seq: 7},
		"a wrong last sequence":          {data: `{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 5"},"stream":"S","seq":0}`, is: ErrRefused},
		"a wrong last sequence on peers": {data: `{"error":{"code":400,"err_code":10164,"description":"wrong last sequence"},"stream":"S","seq":0}`, is: ErrRefused},
		"a full stream":                  {data: `{"error":{"code":503,"err_code":10077,"description":"maximum bytes exceeded"},"stream":"S","seq":0}`, is: ErrFull},
		"a large message":                {data: `{"error":{"code":400,"err_code":10054,"description":"message size exceeds maximum allowed"},"stream":"S","seq":0}`, is: ErrTooLarge},
		"nobody":                         {status: "503", is: ErrNoResponders},
		"no answer at all":               {data: `{}`, is: jetstream.ErrInvalidJSAck},
		"something else":                 {data: `oops`, is: jetstream.ErrInvalidJSAck},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			msg := &nats.Msg{Data: []byte(tt.data), Header: nats.Header{}}
			if tt.status != "" {
				msg.Header.Set("Status", tt.status)
			}
			seq, err := readAck(msg)
			if seq != tt.seq || !errors.Is(err, tt.is) {
				t.Errorf("readAck() = %d, %v, want %d, %v", seq, err, tt.seq, tt.is)
			}
		})
	}
}

// The connected clock judges the silence of others, so it must stand still when
// we are the ones who heard nothing.
func TestConnectedTime(t *testing.T) {
	start := time.Now()
	at := start.Add
	l := newLink()
	read := func(d, want time.Duration) {
		t.Helper()
		if got := l.now(at(d)); got != want {
			t.Errorf("at %s the clock shows %s, want %s", d, got, want)
		}
	}
	read(time.Hour, 0) // never connected
	l.set(true, "s", 1)
	read(time.Hour, 0) // connected, not proven
	l.prove(at(0), 1)
	l.prove(at(proofInterval), 1)
	read(proofInterval, proofInterval)
	read(proofInterval+100*time.Millisecond, proofInterval+100*time.Millisecond)
	read(time.Hour, 2*proofInterval) // frozen: it runs on for one interval
	l.prove(at(time.Hour), 1)        // thawed: the frozen hour counts for two
	read(time.Hour, 3*proofInterval)
	l.set(false, "", 0)
	read(2*time.Hour, 3*proofInterval)
	l.prove(at(2*time.Hour), 1) // an answer that came late
	read(3*time.Hour, 3*proofInterval)
	l.set(true, "s", 1)
	l.prove(at(2*time.Hour), 1) // of the connection before
	read(3*time.Hour, 3*proofInterval)
	l.prove(at(3*time.Hour), 2)
	read(3*time.Hour, 3*proofInterval)
}

func TestValidKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"watcher.m.abc": true, "a/b=3A_c-d": true,
		"": false, ".a": false, "a.": false, "a..b": false, "a b": false, "a*": false, "a:b": false, "ä": false,
	} {
		if err := validKey(key); (err == nil) != ok {
			t.Errorf("validKey(%q) = %v", key, err)
		}
	}
}
