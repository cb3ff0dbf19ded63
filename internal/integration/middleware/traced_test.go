package middleware_test

import (
	"net/http"
	"testing"

	"go.opentelemetry.io/contrib/instrumentation/github.com/gin-gonic/gin/otelgin"
	"go.opentelemetry.io/contrib/instrumentation/github.com/labstack/echo/otelecho"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
)

// A denial is no error of the server's span under the tracing middleware of each framework.
func TestTraced(t *testing.T) {
	for name, f := range map[string]traced{
		"gin": func(provider trace.TracerProvider, handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
			return serveGin(handler, middleware, otelgin.Middleware("things", otelgin.WithTracerProvider(provider)))
		},
		"echo v4": func(provider trace.TracerProvider, handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
			return serveEchoV4(handler, middleware, otelecho.Middleware("things", otelecho.WithTracerProvider(provider)))
		},
		// There is otelecho for echo v4 only: what traces net/http goes round the server.
		"echo v5":  byOtelHTTP(onEchoV5),
		"ServeMux": byOtelHTTP(onServeMux),
		"chi":      byOtelHTTP(onChi),
		"gorilla":  byOtelHTTP(onGorilla),
	} {
		t.Run(name, func(t *testing.T) { mwtest.RunTraced(t, f) })
	}
}

// traced is a mwtest.Traced.
type traced func(trace.TracerProvider, http.HandlerFunc, ...mwtest.Middleware) http.Handler

func (f traced) ServeTraced(handler http.HandlerFunc, middleware ...mwtest.Middleware) (http.Handler, func() (mwtest.Span, bool)) {
	spans := tracetest.NewSpanRecorder()
	return f(sdk.NewTracerProvider(sdk.WithSpanProcessor(spans)), handler, middleware...), func() (mwtest.Span, bool) {
		ended := spans.Ended()
		if len(ended) == 0 {
			return mwtest.Span{}, false
		}
		last := ended[len(ended)-1]
		return mwtest.Span{Kind: last.SpanKind(), Code: last.Status().Code, Status: statusOf(last)}, true
	}
}

// statusOf returns the status attribute of the answer, which has had two names.
func statusOf(span sdk.ReadOnlySpan) int64 {
	for _, a := range span.Attributes() {
		if a.Key == "http.response.status_code" || a.Key == "http.status_code" {
			return a.Value.AsInt64()
		}
	}
	return 0
}

func byOtelHTTP(f mwtest.Framework) traced {
	return func(provider trace.TracerProvider, handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
		return otelhttp.NewHandler(f.Serve(handler, middleware...), "things", otelhttp.WithTracerProvider(provider))
	}
}
