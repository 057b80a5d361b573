package telemetry

import (
	"context"
	"fmt"
	"os"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// protocolHTTP is the one transport there is here, and the default of the OTLP
// specification.
const protocolHTTP = "http/protobuf"

// traced reports whether the standard variables ask for traces, and what in them
// cannot be served. An endpoint is what asks; nothing is sent to a default one,
// because a collector on the same host is the exception in a cluster.
func traced(env func(string) string) (bool, error) {
	switch {
	case strings.EqualFold(env("OTEL_SDK_DISABLED"), "true"), env("OTEL_TRACES_EXPORTER") == "none":
		return false, nil
	case env("OTEL_EXPORTER_OTLP_ENDPOINT") == "" && env("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") == "":
		return false, nil
	}
	if exporter := env("OTEL_TRACES_EXPORTER"); exporter != "" && exporter != "otlp" {
		return false, fmt.Errorf("OTEL_TRACES_EXPORTER is %q; it must be otlp or none", exporter)
	}
	for _, name := range []string{"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL"} {
		if protocol := env(name); protocol != "" {
			if protocol != protocolHTTP {
				return false, fmt.Errorf("%s is %q; it must be %s", name, protocol, protocolHTTP)
			}
			break
		}
	}
	return true, nil
}

// Trace makes spans go to the collector that the standard OTEL_ variables name;
// without an endpoint there are no spans. Which traces are kept is the standard
// OTEL_TRACES_SAMPLER's to say; all, if it says nothing. stop sends what is left.
//
// The provider is the process's, as the tracing API has it: rooms ask otel for
// their tracer.
func (t *Telemetry) Trace(ctx context.Context, role, version string) (stop func(context.Context) error, err error) {
	nothing := func(context.Context) error { return nil }
	asked, err := traced(os.Getenv)
	if err != nil || !asked {
		return nothing, err
	}
	exporter, err := otlptracehttp.New(ctx)
	if err != nil {
		return nothing, fmt.Errorf("preparing the exporter of traces: %w", err)
	}
	about, err := resource.New(ctx,
		resource.WithAttributes(attribute.String("service.name", "millrace-"+role), attribute.String("service.version", version)),
		resource.WithHost(), resource.WithProcessPID(), resource.WithFromEnv())
	if err != nil {
		return nothing, fmt.Errorf("describing the process to traces: %w", err)
	}
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { t.Log.Debug("exporting traces", "err", err) }))
	otel.SetTextMapPropagator(t.Propagator)
	provider := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	otel.SetTracerProvider(provider)
	t.Tracer = provider
	return provider.Shutdown, nil
}
