package middleware_test

import (
	"context"
	"errors"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// answering is a fence.Checker that replies with an error.
type answering struct{ err error }

func (a answering) Check(context.Context, string, fence.Token) error { return a.err }

func anyKey() (string, error) { return "key", nil }

// A request of a disconnected client does not run, and is no outage.
func TestDisconnectedClientDoesNotRunUnfenced(t *testing.T) {
	left, leave := context.WithCancel(t.Context())
	leave()
	m := middleware.NewFence(answering{store.ErrUnavailable}, setting.Settings{Open: setting.Open{Passes: true}})
	if passage, denial := m.Check(t.Context(), []string{"1"}, anyKey); denial != nil || !errors.Is(passage.Bypassed, store.ErrUnavailable) {
		t.Errorf("a client that waits: %+v, %+v", passage, denial)
	}
	if passage, denial := m.Check(left, []string{"1"}, anyKey); denial == nil || denial.Reason != policy.ReducedCapacity {
		t.Errorf("a client that has left: %+v, %+v", passage, denial)
	}
	m = middleware.NewFence(answering{context.Canceled}, setting.Settings{Open: setting.Open{Passes: true}})
	if passage, denial := m.Check(left, []string{"1"}, anyKey); denial == nil || denial.Reason != policy.ReducedCapacity {
		t.Errorf("a checker that gave up with it: %+v, %+v", passage, denial)
	}
}

// The span of a refusal fails for a server error, whatever the answer of a Deny hook.
func TestFenceOnTheSpan(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want codes.Code
	}{
		"it passes":               {nil, codes.Unset},
		"it is stale":             {fence.ErrStale, codes.Unset},
		"the key has no place":    {fence.ErrInvalidKey, codes.Unset},
		"the store is not there":  {store.ErrUnavailable, codes.Error},
		"the program is mistaken": {errors.New("mistake"), codes.Error},
	} {
		t.Run(name, func(t *testing.T) {
			spans := tracetest.NewSpanRecorder()
			provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
			t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })
			ctx, span := provider.Tracer("test").Start(t.Context(), "request")
			_, denial := middleware.NewFence(answering{c.err}, setting.Settings{}).Check(ctx, []string{"1"}, anyKey)
			span.End()
			if (denial == nil) != (c.err == nil) {
				t.Errorf("denied with %+v", denial)
			}
			if got := spans.Ended()[0].Status().Code; got != c.want {
				t.Errorf("the span's status is %v, want %v", got, c.want)
			}
		})
	}
}
