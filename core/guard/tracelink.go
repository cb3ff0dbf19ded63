package guard

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/trace"
)

// The data of a stored result begins with a byte that is 1 if the trace and the span of the attempt
// follow, so that a replay can link to them.
const (
	sealedPlain  = 0
	sealedTraced = 1

	traceBytes = len(trace.TraceID{}) + len(trace.SpanID{})
)

var errDamaged = errors.New("guard: the record is damaged")

// seal returns the stored form of a result, with the span of the attempt's context.
func seal(ctx context.Context, data []byte) []byte {
	span := trace.SpanContextFromContext(ctx)
	if !span.IsValid() || !span.IsSampled() {
		return append([]byte{sealedPlain}, data...)
	}
	traceID, spanID := span.TraceID(), span.SpanID()
	b := make([]byte, 0, 1+traceBytes+len(data))
	b = append(b, sealedTraced)
	b = append(b, traceID[:]...)
	b = append(b, spanID[:]...)
	return append(b, data...)
}

// unseal is the reverse of seal.
func unseal(b []byte) (origin trace.SpanContext, data []byte, err error) {
	switch {
	case len(b) > 0 && b[0] == sealedPlain:
		return origin, b[1:], nil
	case len(b) > traceBytes && b[0] == sealedTraced:
		config := trace.SpanContextConfig{TraceFlags: trace.FlagsSampled, Remote: true}
		copy(config.TraceID[:], b[1:])
		copy(config.SpanID[:], b[1+len(config.TraceID):])
		return trace.NewSpanContext(config), b[1+traceBytes:], nil
	}
	return origin, nil, errDamaged
}
