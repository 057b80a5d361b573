package watcher

import (
	"context"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace-io/millrace/shared/event"
)

var tracer = otel.Tracer("github.com/millrace-io/millrace/services/watcher")

// passage is one change on its way through the watcher: a span from its arrival,
// and within it one for its publication.
type passage struct{ whole, publication trace.Span }

// traced begins the trace of a change and writes its name into the message. A
// change that waited for another one of its key shows that as the time before
// its publication.
func traced(ctx context.Context, m *event.Message) passage {
	ctx, whole := tracer.Start(ctx, "watch", trace.WithNewRoot(), trace.WithTimestamp(m.Observed))
	if !whole.IsRecording() {
		return passage{}
	}
	whole.SetAttributes(
		attribute.String("millrace.kind", string(m.Kind)), attribute.String("millrace.key", m.Key.String()),
		attribute.String("millrace.op", m.Op.String()), attribute.Int64("millrace.version", int64(m.Version)), //nolint:gosec // etcd counts in int64
	)
	if !m.Committed.IsZero() {
		whole.SetAttributes(attribute.String("millrace.committed", m.Committed.UTC().Format(time.RFC3339)))
	}
	ctx, publication := tracer.Start(ctx, "publish", trace.WithSpanKind(trace.SpanKindProducer))
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	m.Trace = carrier["traceparent"]
	return passage{whole, publication}
}

// ended is told of the bus's answer.
func (p passage) ended(seq uint64, err error) {
	if p.whole == nil {
		return
	}
	if err != nil {
		p.publication.SetStatus(codes.Error, err.Error())
	} else {
		p.publication.SetAttributes(attribute.Int64("millrace.sequence", int64(seq))) //nolint:gosec // JetStream's fit
	}
	p.publication.End()
	p.whole.End()
}
