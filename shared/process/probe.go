package process

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
)

// Probe asks the process of this machine that has the same settings whether it
// is well: path is "livez" or "readyz". It is the health check of an image that
// holds nothing but this binary.
func Probe(ctx context.Context, path string, known ...any) error {
	var settings Settings
	if err := Load(Prefix, &settings, known...); err != nil {
		return err
	}
	host, port, err := net.SplitHostPort(settings.Listen)
	if err != nil {
		return configError("MILLRACE_LISTEN is %q; there is nobody to ask", settings.Listen)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "localhost" // it listens everywhere
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(host, port)+"/"+path, http.NoBody)
	if err != nil {
		return fmt.Errorf("forming the request: %w", err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return fmt.Errorf("asking: %w", err)
	}
	defer func() { _ = resp.Body.Close() }() // read to its end or given up
	reasons, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return fmt.Errorf("reading the answer: %w", err)
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("/%s: %s", path, strings.Join(strings.Split(strings.TrimSpace(string(reasons)), "\n"), "; "))
	}
	return nil
}
