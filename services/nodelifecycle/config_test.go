package nodelifecycle

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/kelseyhightower/envconfig"
)

// The names of upstream's flags, and its defaults: contract 1, section 2. Not
// parallel: the environment is the process's.
func TestDefaultsAreUpstreams(t *testing.T) {
	var got policy
	if err := envconfig.Process("MILLRACE_NODELIFECYCLE", &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(defaults(), got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// Upstream validates none of its flags. Ours are: bad input is one clear line that
// names the setting. Not parallel: the environment is the process's.
func TestValidate(t *testing.T) {
	const prefix = "MILLRACE_NODELIFECYCLE_"
	tests := map[string]struct {
		setting, value string
		refused        bool
	}{
		"a grace of 0":                          {"NODE_MONITOR_GRACE_PERIOD", "0s", true},
		"a negative grace":                      {"NODE_MONITOR_GRACE_PERIOD", "-1s", true},
		"a small grace is warned about only":    {"NODE_MONITOR_GRACE_PERIOD", "6s", false},
		"a startup grace of 0":                  {"NODE_STARTUP_GRACE_PERIOD", "0s", true},
		"a negative startup grace":              {"NODE_STARTUP_GRACE_PERIOD", "-1s", true},
		"a period of 0":                         {"NODE_MONITOR_PERIOD", "0s", true},
		"a negative period":                     {"NODE_MONITOR_PERIOD", "-5s", true},
		"a rate of 0 taints nobody":             {"NODE_EVICTION_RATE", "0", false},
		"a negative rate":                       {"NODE_EVICTION_RATE", "-0.1", true},
		"a rate that is no number":              {"NODE_EVICTION_RATE", "NaN", true},
		"an endless rate":                       {"NODE_EVICTION_RATE", "+Inf", true},
		"a secondary rate of 0":                 {"SECONDARY_NODE_EVICTION_RATE", "0", false},
		"a negative secondary rate":             {"SECONDARY_NODE_EVICTION_RATE", "-1", true},
		"a secondary rate that is no number":    {"SECONDARY_NODE_EVICTION_RATE", "NaN", true},
		"a negative size":                       {"LARGE_CLUSTER_SIZE_THRESHOLD", "-1", true},
		"a size of 0":                           {"LARGE_CLUSTER_SIZE_THRESHOLD", "0", false},
		"a threshold of 0":                      {"UNHEALTHY_ZONE_THRESHOLD", "0", true},
		"a threshold of 1":                      {"UNHEALTHY_ZONE_THRESHOLD", "1", false},
		"a threshold above 1":                   {"UNHEALTHY_ZONE_THRESHOLD", "1.1", true},
		"a threshold in percent":                {"UNHEALTHY_ZONE_THRESHOLD", "55", true},
		"a threshold that is no number":         {"UNHEALTHY_ZONE_THRESHOLD", "NaN", true},
		"a dead zone's rate: as any other":      {"DEAD_ZONE_EVICTION_RATE", "-1", false},
		"a dead zone's rate of 0":               {"DEAD_ZONE_EVICTION_RATE", "0", false},
		"a dead zone's rate that is no number":  {"DEAD_ZONE_EVICTION_RATE", "NaN", true},
		"pods of not ready nodes may be marked": {"MARK_PODS_OF_NOT_READY_NODES", "true", false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv(prefix+tt.setting, tt.value)
			var cfg Config
			if err := envconfig.Process("MILLRACE", &cfg); err != nil {
				t.Fatal(err)
			}
			cfg.Kube.Kubeconfig = ""
			err := cfg.Validate()
			if (err != nil) != tt.refused {
				t.Fatalf("Validate() = %v, want refused: %v", err, tt.refused)
			}
			if tt.refused && (!strings.Contains(err.Error(), prefix+tt.setting) || strings.Contains(err.Error(), "\n")) {
				t.Errorf("Validate() = %q, want one line that names %s", err, prefix+tt.setting)
			}
		})
	}
}
