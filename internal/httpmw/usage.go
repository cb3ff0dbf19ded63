package httpmw

import (
	"encoding/json"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Usage is ratelimit.Usage.
func Usage[C any, O setting.HTTPOption](a Adapter[C], l *tokenbucket.Limiter, key func(C) (string, error), opts []O) func(C) error {
	if l == nil {
		panic("ratelimit: Usage: nil limiter")
	}
	if key == nil {
		panic("ratelimit: Usage: nil key")
	}
	settings := setting.Of(opts)
	if settings.Skip != nil {
		panic("ratelimit: Usage: Unless is for middleware")
	}
	b, decider := newBase(a, "ratelimit", settings), middleware.NewRateLimit(l, settings)
	return func(c C) error {
		b.Header(c).Set("Cache-Control", "no-store")
		k, err := key(c)
		ctx := newPlanContext(b, c)
		defer ctx.end()
		var decision tokenbucket.Decision
		if denial := decider.Peek(ctx, k, err, &decision); denial != nil {
			return b.refuse(c, *denial)
		}
		b.Header(c).Set("Content-Type", "application/json")
		w := b.Writer(c)
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write(usageOf(decider.AppendLimits(nil, &decision))) // fails only if the client has left
		return nil
	}
}

// usageOf returns the body of an answer.
func usageOf(states []tokenbucket.LimitState) []byte {
	type limit struct {
		Name      string `json:"name"`
		Capacity  int64  `json:"capacity"`
		Window    int64  `json:"window"`
		Remaining int64  `json:"remaining"`
		Reset     int64  `json:"reset"`
	}
	usage := struct {
		Limits []limit `json:"limits"`
	}{make([]limit, len(states))}
	for i, s := range states {
		usage.Limits[i] = limit{s.Name, s.Capacity, max(roundUp(s.Window), 1), s.Remaining, roundUp(s.Reset)}
	}
	body, _ := json.Marshal(usage) // strings and numbers only: it cannot fail
	return append(body, '\n')
}
