package lock

import (
	"context"
	"encoding/hex"
	"strings"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// What others are told of a holder ends, if it is traced, in the span under which it asked for the lock, so
// that the spans of those who wait can link to it: a line feed, the trace, and the span, in hexadecimal.
const (
	spanMark  = "\n"
	spanBytes = len(spanMark) + 2*(len(trace.TraceID{})+len(trace.SpanID{}))
)

// withSpan returns what others are told of a holder that asks under a context.
func withSpan(ctx context.Context, holder string) string {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsSampled() || !span.IsValid() {
		return holder
	}
	return holder + spanMark + span.TraceID().String() + span.SpanID().String()
}

// cutSpan is the reverse of withSpan. The span is not valid if there is none.
func cutSpan(told string) (holder string, span trace.SpanContext) {
	at := len(told) - spanBytes
	if at < 0 || !strings.HasPrefix(told[at:], spanMark) {
		return told, span
	}
	config := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled, Remote: true}
	ids, err := hex.DecodeString(told[at+len(spanMark):])
	if err != nil {
		return told, span
	}
	copy(config.TraceID[:], ids)
	copy(config.SpanID[:], ids[len(config.TraceID):])
	return told[:at], trace.NewSpanContext(config)
}

// holder says who has the hold, in this process.
func (h *hold) holder() (string, trace.SpanContext) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.asked == nil {
		return h.config.holder, trace.SpanContext{}
	}
	return h.config.holder, trace.SpanContextFromContext(h.asked)
}

// A label and its span fit into a request.
var _ [store.MaxHolder - maxMeta - spanBytes]struct{}
