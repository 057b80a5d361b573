package operator

import (
	"bytes"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace-io/millrace/shared/kube/kubetest"
	"github.com/millrace-io/millrace/shared/process"
)

func TestProbe(t *testing.T) {
	mux := http.NewServeMux()
	mux.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("ok\n")) })
	mux.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = w.Write([]byte("bus: NATS is away\nlease: not a member yet\n"))
	})
	s := httptest.NewServer(mux)
	defer s.Close()
	address := strings.TrimPrefix(s.URL, "http://")
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		listen string
		args   []string
		code   int
		says   string
	}{
		"one that lives":                     {address, []string{"livez"}, process.ExitOK, ""},
		"one that listens everywhere":        {"0.0.0.0:" + port, []string{"livez"}, process.ExitOK, ""},
		"one that lacks something says what": {address, nil, process.ExitFailure, "/readyz: bus: NATS is away; lease: not a member yet"},
		"one that is not there":              {"127.0.0.1:1", nil, process.ExitFailure, "refused"},
		"one that serves nothing":            {"", nil, process.ExitFailure, "there is nobody to ask"},
		"what is nothing":                    {address, []string{"nonsense"}, process.ExitFailure, "it must be readyz, livez or kube"},
		"too much":                           {address, []string{"livez", "x"}, process.ExitFailure, `"x" is not expected`},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Setenv("MILLRACE_LISTEN", tt.listen)
			probes(t, tt.args, tt.code, tt.says)
		})
	}
}

func TestProbeKube(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	probes(t, []string{"kube"}, process.ExitFailure, "kubeconfig")
	cluster := kubetest.Start(t)
	t.Setenv("KUBECONFIG", cluster.Kubeconfig(kubetest.RoleAdmin))
	probes(t, []string{"kube"}, process.ExitOK, "")
	cluster.Kill()
	probes(t, []string{"kube"}, process.ExitFailure, "asking the API server")
}

func probes(t *testing.T, args []string, code int, says string) {
	t.Helper()
	var out bytes.Buffer
	got := Probe(args, &out, settings...)
	if got != code || !strings.Contains(out.String(), says) || strings.Count(out.String(), "\n") > 1 {
		t.Errorf("exit code %d, want %d and %q on one line; it said\n%s", got, code, says, out.String())
	}
}

// settings are those of every process: a role's health check runs in the role's
// environment.
var settings = []any{&process.Settings{}, &Config{}, &probeConfig{}}
