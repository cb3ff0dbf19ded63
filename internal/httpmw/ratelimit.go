package httpmw

import (
	"context"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// RateLimit is ratelimit.New.
func RateLimit[C any](
	a Adapter[C], l *tokenbucket.Limiter, key func(C) (string, error), opts []policy.RateLimitOption,
) Middleware[C] {
	if l == nil {
		panic("ratelimit: New: nil limiter")
	}
	if key == nil {
		panic("ratelimit: New: nil key")
	}
	settings := setting.Of(opts)
	b := newBase(a, "ratelimit", settings)
	m := &rateLimit{
		decider: middleware.NewRateLimit(l, settings),
		legacy:  settings.LegacyHeaders,
		status:  settings.StatusHeaders,
	}
	return func(c C, next func(C) error) error {
		if b.skips(c) {
			return next(c)
		}
		k, err := key(c)
		if denial := m.check(b.Request(c).Context(), b.Header(c), k, err); denial != nil {
			return b.refuse(c, *denial)
		}
		return next(c)
	}
}

// rateLimit decides about requests.
type rateLimit struct {
	decider middleware.RateLimit
	legacy  bool
	status  bool
	encoder draft11
}

// check takes a token of the key, or examines why there is no key, sets the header fields of the
// response, and returns nil if the request may pass.
func (m *rateLimit) check(ctx context.Context, h http.Header, key string, keyErr error) *policy.Denial {
	var decision tokenbucket.Decision // without limits, if there is none
	denial, bypassed := m.decider.Check(ctx, key, keyErr, &decision)
	var few [4]tokenbucket.LimitState
	if limits := decision.AppendLimits(few[:0]); len(limits) > 0 {
		m.encoder.encode(h, limits)
		if m.legacy {
			legacy(h, limits)
		}
	}
	if bypassed && m.status {
		h.Set("RateLimit-Status", "bypassed")
	}
	return denial
}
