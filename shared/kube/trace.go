package kube

import (
	"context"
	"net/http"
	"strconv"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/util/flowcontrol"
)

var tracer = otel.Tracer("github.com/millrace-io/millrace/shared/kube")

// spanOf starts the span of a request, if its caller is traced: lists and
// watches, which nobody waits for, have none.
func spanOf(req *http.Request) (*http.Request, trace.Span) {
	if !trace.SpanFromContext(req.Context()).IsRecording() {
		return req, nil
	}
	name := "read"
	if isWrite(req.Method) {
		name = "write"
	}
	ctx, span := tracer.Start(req.Context(), name, trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		attribute.String("http.request.method", req.Method),
		attribute.String("url.path", req.URL.Path),
		attribute.String("server.address", req.URL.Hostname()),
	))
	return req.WithContext(ctx), span
}

// answered ends the span of a request.
func answered(span trace.Span, resp *http.Response, err error) {
	if span == nil {
		return
	}
	switch {
	case err != nil:
		span.SetStatus(codes.Error, err.Error())
	default:
		span.SetAttributes(attribute.Int("http.response.status_code", resp.StatusCode))
		if resp.StatusCode >= http.StatusBadRequest {
			span.SetStatus(codes.Error, strings.TrimSpace(strconv.Itoa(resp.StatusCode)+" "+http.StatusText(resp.StatusCode)))
		}
	}
	span.End()
}

// tracedLimiter shows in a trace what a request waits for its turn.
type tracedLimiter struct{ flowcontrol.RateLimiter }

func (l tracedLimiter) Wait(ctx context.Context) error {
	if hasTurn(ctx) {
		return nil
	}
	if !trace.SpanFromContext(ctx).IsRecording() {
		return l.RateLimiter.Wait(ctx) //nolint:wrapcheck // it is the limiter
	}
	began := time.Now()
	err := l.RateLimiter.Wait(ctx)
	if time.Since(began) > time.Millisecond || err != nil {
		_, span := tracer.Start(ctx, "rate limit", trace.WithTimestamp(began))
		span.End()
	}
	return err //nolint:wrapcheck // as above
}
