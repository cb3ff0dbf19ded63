package observability_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// answering is a fence.Checker that always returns the same.
type answering struct{ err error }

func (a answering) Check(context.Context, string, fence.Token) error { return a.err }

func anyKey() (string, error) { return "key", nil }

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
			var denial *policy.Denial
			fenced := middleware.NewFence(answering{c.err}, setting.Settings{})
			span := newWorld(t).request(func(ctx context.Context) {
				_, denial = fenced.Check(ctx, []string{"1"}, anyKey)
			})
			if (denial == nil) != (c.err == nil) {
				t.Errorf("denied with %+v", denial)
			}
			if got := span.Status.Code; got != c.want {
				t.Errorf("the span's status is %v, want %v", got, c.want)
			}
		})
	}
}

// Each bypassing request is counted by cause, also concurrently.
func TestBypassesAreCountedByCause(t *testing.T) {
	w := newWorld(t)
	settings := setting.Settings{Meter: w.meters, Logger: w.logger(), Open: setting.Open{Passes: true, EvenMisconfigured: true}}
	refused := middleware.NewFence(answering{fmt.Errorf("%w: %w", store.ErrUnavailable, syscall.ECONNREFUSED)}, settings)
	barred := middleware.NewFence(answering{store.Misconfigured(store.Authentication, errors.New("WRONGPASS"))}, settings)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 100 {
				for _, f := range []*middleware.Fence{refused, barred} {
					if passage, denial := f.Check(t.Context(), []string{"1"}, anyKey); denial != nil || passage.Bypassed == nil {
						t.Errorf("%+v, %+v", passage, denial)
					}
				}
			}
		})
	}
	wg.Wait()
	all := w.collect()
	counted := make(map[string]int64)
	for _, point := range all.ScopeMetrics[0].Metrics[0].Data.(metricdata.Sum[int64]).DataPoints {
		cause, _ := point.Attributes.Value("lockkeeper.outage.cause")
		counted[cause.AsString()] = point.Value
	}
	if all.ScopeMetrics[0].Scope.Name != policy.ScopeName || counted["connection_refused"] != 800 || counted["authentication"] != 800 {
		t.Errorf("%s counted %v", all.ScopeMetrics[0].Scope.Name, counted)
	}
}
