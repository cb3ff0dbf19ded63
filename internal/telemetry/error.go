package telemetry

import (
	"context"
	"errors"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// ErrorTypes are all values of error.type. The last one is from the semantic conventions, for other
// errors.
var ErrorTypes = []string{
	"store_unavailable", "store_unconfirmed", "store_full", "store_overloaded", "store_closed", "store_misconfigured", "timeout", "canceled",
	"_OTHER",
}

// ErrorType returns the value of error.type for an error.
func ErrorType(err error) string {
	switch {
	case errors.Is(err, store.ErrFull):
		return "store_full"
	case errors.Is(err, store.ErrClosed):
		return "store_closed"
	case errors.Is(err, store.ErrMisconfigured):
		return "store_misconfigured"
	case errors.Is(err, store.ErrUnconfirmed):
		return "store_unconfirmed"
	case errors.Is(err, store.ErrOverloaded):
		return "store_overloaded"
	case errors.Is(err, store.ErrUnavailable):
		return "store_unavailable"
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	}
	return "_OTHER"
}

// Fail sets the status of the current span, if it is recording, to this error: for a request that
// is refused because of a failure on the server's side. Denials are not failures.
func Fail(ctx context.Context, err error) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		fail(span, err)
	}
}

func fail(span trace.Span, err error) {
	span.SetAttributes(errorTypeKey.String(ErrorType(err)))
	span.SetStatus(codes.Error, "")
}
