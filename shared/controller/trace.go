package controller

import (
	"context"
	"strconv"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/shared/event"
)

// tracer is that of the process; without a provider its spans are nothing.
var tracer = otel.Tracer("github.com/millrace-io/millrace/shared/controller")

// traced continues the trace of the change that woke key: one span for its wait
// here, one for the reconcile. A change that is not sampled costs nothing. The
// first span begins when the change was received, so that what lies between it
// and the end of the publication is the bus.
func (p *Partition) traced(ctx context.Context, key event.Key, cause *Cause, begun time.Time) (context.Context, trace.Span) {
	if cause == nil || cause.Message.Trace == "" {
		return ctx, trace.SpanFromContext(ctx)
	}
	remote := propagation.TraceContext{}.Extract(ctx, propagation.MapCarrier{"traceparent": cause.Message.Trace})
	attributes := trace.WithAttributes(
		attribute.String("millrace.role", p.c.def.Role), attribute.String("millrace.key", key.String()),
		attribute.Int("millrace.partition", p.Number()), attribute.String("millrace.epoch", strconv.FormatUint(p.Epoch(), 10)),
		attribute.String("millrace.member", p.Member()),
	)
	waited, wait := tracer.Start(remote, "consume", attributes,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithTimestamp(cause.Received))
	wait.End(trace.WithTimestamp(begun))
	return tracer.Start(waited, "reconcile", attributes, trace.WithTimestamp(begun))
}

// told ends the span of a reconcile.
func told(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}
