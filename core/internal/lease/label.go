package lease

import (
	"context"
	"encoding/hex"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// The label of a traced holder ends with the span of its request, so that the spans of waiters can
// link to it: a line feed, the trace, and the span, in hexadecimal.
const (
	spanMark  = "\n"
	spanBytes = len(spanMark) + 2*(len(trace.TraceID{})+len(trace.SpanID{}))
)

// WithSpan returns the label of a holder with the span of its request's context.
func WithSpan(ctx context.Context, holder string) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsSampled() || !span.IsValid() {
		return holder
	}
	return holder + spanMark + span.TraceID().String() + span.SpanID().String()
}

// CutSpan is the reverse of WithSpan. The span is invalid if there is none.
func CutSpan(label string) (holder string, span trace.SpanContext) {
	at := len(label) - spanBytes
	if at < 0 || !strings.HasPrefix(label[at:], spanMark) {
		return label, span
	}
	config := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled, Remote: true}
	ids, err := hex.DecodeString(label[at+len(spanMark):])
	if err != nil {
		return label, span
	}
	copy(config.TraceID[:], ids)
	copy(config.SpanID[:], ids[len(config.TraceID):])
	return label[:at], trace.NewSpanContext(config)
}

// A label and its span fit into a request.
var _ [store.MaxLabel - maxLabel - spanBytes]struct{}
