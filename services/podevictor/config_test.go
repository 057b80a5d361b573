package podevictor

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kelseyhightower/envconfig"
)

// The names of README.md, and its defaults. Not parallel: the environment is the
// process's.
func TestDefaults(t *testing.T) {
	var got policy
	if err := envconfig.Process("MILLRACE_PODEVICTOR", &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaults(), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	if err := got.validate(); err != nil {
		t.Error(err)
	}
}

// Bad input is one clear line that names the setting. Not parallel: the environment
// is the process's.
func TestValidate(t *testing.T) {
	const prefix = "MILLRACE_PODEVICTOR_"
	tests := map[string]struct {
		setting, value string
		refused        bool
	}{
		"a mode there is not":              {"TAINT_EVICTION_MODE", "on", true},
		"shadow":                           {"TAINT_EVICTION_MODE", "shadow", false},
		"off":                              {"GARBAGE_COLLECTION_MODE", "off", false},
		"no mode":                          {"GARBAGE_COLLECTION_MODE", "", true},
		"another way to evict":             {"EVICTION_MODE", "kill", true},
		"the Eviction API":                 {"EVICTION_MODE", "evict", false},
		"a rate":                           {"POD_EVICTION_QPS", "0.5", false},
		"a negative rate":                  {"POD_EVICTION_QPS", "-1", true},
		"a rate that is no number":         {"POD_EVICTION_QPS", "NaN", true},
		"an endless rate":                  {"POD_EVICTION_QPS", "+Inf", true},
		"a burst of 0 is a second's worth": {"POD_EVICTION_BURST", "0", false},
		"a negative rate of a zone":        {"ZONE_POD_EVICTION_QPS", "-0.1", true},
		"a zone's rate that is no number":  {"ZONE_POD_EVICTION_QPS", "NaN", true},
		"a negative burst of a zone":       {"ZONE_POD_EVICTION_BURST", "-1", true},
		"a threshold of 0 turns it off":    {"TERMINATED_POD_GC_THRESHOLD", "0", false},
		"so does a negative one":           {"TERMINATED_POD_GC_THRESHOLD", "-1", false},
		"no quarantine":                    {"ORPHAN_QUARANTINE", "0s", true},
		"a negative quarantine":            {"ORPHAN_QUARANTINE", "-40s", true},
		"a period of 0":                    {"GC_PERIOD", "0s", true},
		"a negative period":                {"GC_PERIOD", "-1s", true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv(prefix+tt.setting, tt.value)
			var p policy
			if err := envconfig.Process("MILLRACE_PODEVICTOR", &p); err != nil {
				t.Fatal(err)
			}
			err := p.validate()
			switch {
			case (err != nil) != tt.refused:
				t.Errorf("validate() = %v", err)
			case err != nil && (!strings.Contains(err.Error(), prefix+tt.setting) || strings.Contains(err.Error(), "\n")):
				t.Errorf("validate() = %v: it does not name the setting in one line", err)
			}
		})
	}
}

// In evict mode, and only then, the role needs another right.
func TestRights(t *testing.T) {
	t.Parallel()
	if a, b := len(Rights(modeDelete)), len(Rights(modeEvict)); b != a+1 {
		t.Errorf("%d rights, and %d in evict mode", a, b)
	}
}
