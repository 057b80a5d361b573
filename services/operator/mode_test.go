package operator

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	millracev1 "github.com/millrace-io/millrace/proto/millrace/v1"
	"github.com/millrace-io/millrace/shared/bus"
	"github.com/millrace-io/millrace/shared/bus/bustest"
	"github.com/millrace-io/millrace/shared/controller"
	"github.com/millrace-io/millrace/shared/lease"
	"github.com/millrace-io/millrace/shared/process"
)

// rolesOfTests are one role with a part and one without.
var rolesOfTests = map[string][]string{"podevictor": {"taint-eviction"}, "endpoints": nil}

// ran runs a command as main does, as a user of the server.
func ran(t *testing.T, s *bustest.Server, user string, args ...string) (code int, out, complaints string) {
	t.Helper()
	cfg := s.Config()
	t.Setenv("MILLRACE_NATS_URL", strings.Replace(cfg.URL, "nats://", "nats://"+user+":"+user+"@", 1))
	t.Setenv("MILLRACE_NATS_CLUSTER", cfg.Cluster)
	var said, complained bytes.Buffer
	code, ok := Run(rolesOfTests, args[0], args[1:], &said, &complained, &Config{}, &probeConfig{})
	if !ok {
		t.Fatalf("there is no command %q", args)
	}
	return code, said.String(), complained.String()
}

// wantRun runs a command that may only read, and must succeed.
func wantRun(t *testing.T, s *bustest.Server, args ...string) string {
	t.Helper()
	code, out, complaints := ran(t, s, "operator", args...)
	if code != process.ExitOK {
		t.Errorf("%q: exit code %d: %s", args, code, complaints)
	}
	return out
}

// obedient answers as a member of podevictor whose part is in the mode that is set.
func obedient(ctx context.Context, t *testing.T, b *bus.Bus) {
	t.Helper()
	key := controller.ModeKey(controller.PartName("podevictor", "taint-eviction"))
	stop, err := b.Answer(lease.StatusSubject(cluster), func([]byte) []byte {
		own := controller.ModeActive
		if set, _, err := b.KV(bus.Facts).Get(ctx, key); err == nil {
			own = string(set)
		}
		m := member("podevictor", "podevictor-1")
		m.Mode, m.Parts = controller.ModeActive, []*millracev1.PartMode{{Part: "taint-eviction", Own: own, Holds: own}}
		answer, err := proto.Marshal(m)
		if err != nil {
			t.Error(err)
		}
		return answer
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
}

// A part is switched and asked for like a role, by the same right; one that does
// not exist is refused before anything is set.
func TestModesOfPartsAreSet(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	s := guardedServer(t)
	all := as(t, s, "all")
	if err := all.Ensure(ctx); err != nil {
		t.Fatal(err)
	}
	obedient(ctx, t, all)
	for _, tt := range []struct {
		args string
		code int
		says string
	}{
		{"mode podevictor/taint-eviction shadow", process.ExitOK, "podevictor/taint-eviction: shadow, 1 of 1 members follow"},
		{"mode podevictor", process.ExitOK, "podevictor/taint-eviction: shadow"},
		{"mode podevictor", process.ExitOK, "podevictor-1 is active (taint-eviction shadow)"},
		{"mode", process.ExitOK, "podevictor/taint-eviction: shadow"},
		{"mode", process.ExitOK, "endpoints: none is set"},
		{"mode podevictor/taint-eviction", process.ExitOK, "podevictor-1 is shadow"},
		{"status", process.ExitOK, "active (taint-eviction shadow)"},
		{"mode podevictor/taint-eviction default", process.ExitOK, "1 of 1 members follow"},
		{"mode podevictor/taint-eviction", process.ExitOK, "podevictor/taint-eviction: none is set"},
		{"mode podevictor/taint off", process.ExitConfig, `PART is "taint"; parts of podevictor are: taint-eviction`},
		{"mode podevictor/taint", process.ExitConfig, `PART is "taint"`},
		{"mode endpoints/taint off", process.ExitConfig, "endpoints has no parts"},
		{"mode nobody/taint off", process.ExitConfig, "there are: endpoints, podevictor"},
		{"mode podevictor/taint-eviction on", process.ExitConfig, `MODE is "on"`},
	} {
		code, out, complaints := ran(t, s, "command", strings.Fields(tt.args)...)
		if code != tt.code || !strings.Contains(out+complaints, tt.says) || code != process.ExitOK && strings.Count(complaints, "\n") != 1 {
			t.Errorf("%s: exit code %d, want %d, and to hear %q:\n%s%s", tt.args, code, tt.code, tt.says, out, complaints)
		}
	}
	if code, _, _ := ran(t, s, "operator", "mode", "podevictor/taint-eviction", "off"); code == process.ExitOK {
		t.Error("who may only read has set a mode")
	}
}
