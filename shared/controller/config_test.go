package controller

import (
	"math"
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
		"the defaults are valid":  {func(*Config) {}, ""},
		"fewer workers than none": {func(c *Config) { c.Workers = -1 }, "WORKERS is -1"},
		"an unknown mode":         {func(c *Config) { c.Mode = "dry" }, `MODE is "dry"`},
		"destructive older than harmless": {
			func(c *Config) { c.DestructiveAge = time.Hour }, "DESTRUCTIVE_AGE is 1h0m0s; it must not exceed",
		},
		"a write limit below nothing":     {func(c *Config) { c.WriteQPS = -1 }, "WRITE_QPS is -1"},
		"a write limit that is no number": {func(c *Config) { c.WriteQPS = math.NaN() }, "WRITE_QPS is NaN"},
		"a write limit of nearly nothing": {func(c *Config) { c.WriteQPS = 1e-9 }, "WRITE_QPS is 1e-09"},
		"a burst below nothing":           {func(c *Config) { c.WriteBurst = -1 }, "WRITE_BURST is -1"},
		"a write limit":                   {func(c *Config) { c.WriteQPS, c.WriteBurst = 0.5, 3 }, ""},
		"a wait of nothing":               {func(c *Config) { c.WriteWait = 0 }, "WRITE_WAIT is 0s"},
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

func TestWriteLimit(t *testing.T) {
	for name, tt := range map[string]struct {
		qps     float64
		burst   int
		want    int
		limited bool
	}{
		"none":                            {0, 0, 1, false},
		"a burst without a limit is none": {0, 7, 7, false},
		"a second's worth":                {20, 0, 20, true},
		"at least one":                    {0.1, 0, 1, true},
		"as it is set":                    {20, 30, 30, true},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			c.WriteQPS, c.WriteBurst = tt.qps, tt.burst
			if rate, burst, limited := c.WriteLimit(); rate != tt.qps || burst != tt.want || limited != tt.limited {
				t.Errorf("WriteLimit() = %g, %d, %t, want %g, %d, %t", rate, burst, limited, tt.qps, tt.want, tt.limited)
			}
		})
	}
}
