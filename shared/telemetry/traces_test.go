package telemetry

import (
	"strings"
	"testing"
)

func TestTracesAreAskedForByTheStandardVariables(t *testing.T) {
	tests := map[string]struct {
		env     map[string]string
		want    bool
		problem string
	}{
		"nothing is set":    {},
		"an endpoint":       {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, want: true},
		"one for traces":    {env: map[string]string{"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, want: true},
		"the SDK is off":    {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}},
		"no traces":         {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "none"}},
		"another exporter":  {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_TRACES_EXPORTER": "zipkin"}, problem: "OTEL_TRACES_EXPORTER"},
		"gRPC":              {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, problem: "http/protobuf"},
		"gRPC for the rest": {env: map[string]string{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}, want: true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, err := traced(func(name string) string { return tt.env[name] })
			if got != tt.want {
				t.Errorf("traced() = %t, want %t", got, tt.want)
			}
			if (err != nil) != (tt.problem != "") || err != nil && !strings.Contains(err.Error(), tt.problem) {
				t.Errorf("traced() fails with %v, want %q in it", err, tt.problem)
			}
		})
	}
}
