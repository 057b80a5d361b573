package controller

import (
	"strings"
	"testing"
	"time"

	"github.com/kelseyhightower/envconfig"
)

func TestTheTagsSayWhatDefaultReturns(t *testing.T) {
	var c Config
	if err := envconfig.Process("millrace_controller", &c); err != nil {
		t.Fatal(err)
	}
	if c != Default() {
		t.Errorf("tags say %+v, Default %+v", c, Default())
	}
}

func TestValidate(t *testing.T) {
	tests := map[string]struct {
		spoil func(*Config)
		want  string
	}{
		"the defaults are valid": {func(*Config) {}, ""},
		"no workers":             {func(c *Config) { c.Workers = 0 }, "WORKERS is 0"},
		"an unknown mode":        {func(c *Config) { c.Mode = "dry" }, `MODE is "dry"`},
		"destructive older than harmless": {
			func(c *Config) { c.DestructiveAge = time.Hour }, "DESTRUCTIVE_AGE is 1h0m0s; it must not exceed",
		},
		"a wait of nothing": {func(c *Config) { c.WriteWait = 0 }, "WRITE_WAIT is 0s"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := Default()
			tt.spoil(&c)
			err := c.Validate()
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Validate() = %v, want %q", err, tt.want)
			}
		})
	}
}
