package e2e

import (
	"compress/gzip"
	"encoding/hex"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// collector takes traces as any OTLP collector does.
type collector struct {
	url string

	mu    sync.Mutex
	spans map[string][]span // by trace
}

// span is one span as it was exported.
type span struct {
	service, name, id, parent string
	began, ended              time.Time
	attributes                map[string]string
	failed                    bool
}

func collect(t *testing.T) *collector {
	t.Helper()
	c := &collector{spans: make(map[string][]span)}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := c.take(r); err != nil {
			t.Errorf("reading exported spans: %v", err)
			w.WriteHeader(http.StatusBadRequest)
		}
	}))
	t.Cleanup(server.Close)
	c.url = server.URL
	return c
}

// environment makes a member export here, without the usual wait of 5 s.
func (c *collector) environment() []string {
	return []string{"OTEL_EXPORTER_OTLP_ENDPOINT=" + c.url, "OTEL_BSP_SCHEDULE_DELAY=200"}
}

func (c *collector) take(r *http.Request) error {
	var body io.Reader = r.Body
	if r.Header.Get("Content-Encoding") == "gzip" {
		unzipped, err := gzip.NewReader(r.Body)
		if err != nil {
			return err
		}
		body = unzipped
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return err
	}
	var request collectorv1.ExportTraceServiceRequest
	if err := proto.Unmarshal(data, &request); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.GetResourceSpans() {
		service := ""
		for _, a := range resource.GetResource().GetAttributes() {
			if a.GetKey() == "service.name" {
				service = a.GetValue().GetStringValue()
			}
		}
		for _, scope := range resource.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				trace := hex.EncodeToString(s.GetTraceId())
				c.spans[trace] = append(c.spans[trace], spanOf(service, s))
			}
		}
	}
	return nil
}

func spanOf(service string, s *tracev1.Span) span {
	out := span{
		service: service, name: s.GetName(), id: hex.EncodeToString(s.GetSpanId()), parent: hex.EncodeToString(s.GetParentSpanId()),
		began: time.Unix(0, int64(s.GetStartTimeUnixNano())), ended: time.Unix(0, int64(s.GetEndTimeUnixNano())), //nolint:gosec // of this century
		attributes: make(map[string]string), failed: s.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR,
	}
	for _, a := range s.GetAttributes() {
		out.attributes[a.GetKey()] = a.GetValue().GetStringValue()
	}
	return out
}

// find returns the chain of spans from a change of an object to the write it
// caused: each but the first is a child of the one before.
func (c *collector) find(kind, key, written string) (chain []span) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, spans := range c.spans {
		for _, s := range spans {
			if s.name != "write" || s.failed || !strings.Contains(s.attributes["url.path"], written) {
				continue
			}
			chain := lineage(spans, s)
			if root := chain[0]; root.parent == "" && root.attributes["millrace.kind"] == kind && root.attributes["millrace.key"] == key {
				return chain
			}
		}
	}
	return nil
}

// lineage returns a span's ancestors, the oldest first, and itself.
func lineage(spans []span, s span) []span {
	chain := []span{s}
	for range spans {
		for _, other := range spans {
			if other.id == chain[0].parent {
				chain = append([]span{other}, chain...)
				break
			}
		}
	}
	return chain
}
