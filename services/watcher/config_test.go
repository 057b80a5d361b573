package watcher

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kelseyhightower/envconfig"

	"github.com/millrace-io/millrace/shared/event"
)

func TestKindsAreRefusedWithOneClearLine(t *testing.T) {
	tests := map[string]struct {
		kinds Kinds
		want  string // in the complaint; empty: none
	}{
		"what the controllers read":     {Kinds{Kinds: []event.Kind{"pods", "nodes"}}, ""},
		"custom resources as metadata":  {Kinds{Kinds: []event.Kind{"pods"}, Metadata: []event.Kind{"widgets.example.com"}}, ""},
		"secrets, which are metadata":   {Kinds{Metadata: []event.Kind{"secrets", "configmaps"}}, ""},
		"nothing":                       {Kinds{}, "is empty"},
		"a kind as Go spells it":        {Kinds{Kinds: []event.Kind{"Pod"}}, `"Pod"`},
		"a kind with its version":       {Kinds{Kinds: []event.Kind{"apps/v1/deployments"}}, "resource.group"},
		"a kind named twice":            {Kinds{Kinds: []event.Kind{"pods", "pods"}}, "named twice"},
		"a kind in both settings":       {Kinds{Kinds: []event.Kind{"jobs.batch"}, Metadata: []event.Kind{"jobs.batch"}}, "named twice"},
		"heartbeats":                    {Kinds{Kinds: []event.Kind{"leases.coordination.k8s.io"}}, "heartbeats"},
		"tombstones of no time":         {Kinds{Kinds: []event.Kind{"pods"}, TombstoneLife: time.Millisecond}, "at least 1s"},
		"pods stripped of their bodies": {Kinds{Metadata: []event.Kind{"pods"}}, "readers need more"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			err := tt.kinds.Validate()
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("Validate() = %v, want none", err)
			case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n")):
				t.Errorf("Validate() = %v, want one line with %q", err, tt.want)
			}
		})
	}
}

func TestTheDefaultKindsAreWhatTheRolesRead(t *testing.T) {
	var cfg Config
	if err := envconfig.Process("millrace", &cfg); err != nil {
		t.Fatal(err)
	}
	if err := cfg.Validate(); err != nil {
		t.Fatal(err)
	}
	for kind := range withBody {
		if !slices.Contains(cfg.Kinds.Kinds, kind) {
			t.Errorf("%s has a projection and is not watched by default", kind)
		}
	}
	for _, d := range positions {
		for _, kind := range d.Kinds {
			if !slices.Contains(cfg.Kinds.Kinds, kind) {
				t.Errorf("%s reads %s, which is not watched by default", d.Role, kind)
			}
		}
	}
	if units := cfg.units(); !slices.IsSorted(units) || len(units) != 11 {
		t.Errorf("units = %v, want 11 in order", units)
	}
}

// Invariant I11, the other half: whatever is configured, only the metadata of
// these is asked for.
func TestSecretsAndConfigMapsAreOnlyEverAskedForAsMetadata(t *testing.T) {
	for name, cfg := range map[string]Kinds{
		"named among the kinds":    {Kinds: []event.Kind{"secrets", "configmaps"}},
		"named among the metadata": {Metadata: []event.Kind{"secrets", "configmaps"}},
	} {
		t.Run(name, func(t *testing.T) {
			for kind, k := range kindsOf(cfg, newMetrics(nil), nil) {
				if !k.metadataOnly {
					t.Errorf("%s would be read whole", kind)
				}
			}
		})
	}
}
