package middleware_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/labstack/echo/v4"
	"go.opentelemetry.io/contrib/instrumentation/github.com/labstack/echo/otelecho"
	"go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echomw/idempotency"
	"github.com/lockkeeper/lockkeeper/echomw/ratelimit"
)

// Otelecho calls the application's error handler and returns the error, so that echo calls it
// again. A handler that checks whether the answer has begun, as echo documents, answers once.
func TestOneAnswerUnderOtelecho(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	limiter := must(tokenbucket.New(store, "api", tokenbucket.PerHour(1)))
	orders := must(guard.New(store, "orders"))
	fails := func(echo.Context) error { return errors.New("it fails") }
	for name, c := range map[string]struct {
		middleware echo.MiddlewareFunc
		want       string
		code       codes.Code
	}{
		"a denial":                 {ratelimit.New(limiter, echomw.Global()), "denied", codes.Unset},
		"a handler behind a guard": {idempotency.New(orders, echomw.Unscoped()), "failed", codes.Error},
	} {
		t.Run(name, func(t *testing.T) {
			spans := tracetest.NewSpanRecorder()
			provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(spans))
			e := echo.New()
			e.Use(otelecho.Middleware("things", otelecho.WithTracerProvider(provider)))
			e.HTTPErrorHandler = func(err error, c echo.Context) {
				if c.Response().Committed {
					return
				}
				if denial, ok := echomw.DenialOf(err); ok {
					_ = c.String(denial.Status(), "denied")
					return
				}
				_ = c.String(http.StatusInternalServerError, "failed")
			}
			e.POST("/", fails, c.middleware)
			var w *httptest.ResponseRecorder
			for range 2 { // the first uses the limit up, and the second is given the answer of the first
				req := httptest.NewRequest(http.MethodPost, "/", nil)
				req.Header.Set("Idempotency-Key", "k")
				w = httptest.NewRecorder()
				e.ServeHTTP(w, req)
			}
			if got := w.Body.String(); got != c.want {
				t.Errorf("%d %q, want %q", w.Code, got, c.want)
			}
			for _, span := range spans.Ended()[1:] {
				if span.Status().Code != c.code {
					t.Errorf("%v, want %v", span.Status(), c.code)
				}
			}
		})
	}
}
