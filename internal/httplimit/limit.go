// Package httplimit is the ratelimit middleware of every HTTP framework, but for the framework.
package httplimit

import (
	"context"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Middleware decides over requests.
type Middleware struct {
	decider middleware.RateLimit
	legacy  bool
	status  bool
	types   string // of problems
	encoder draft11
}

// New returns a middleware with a limiter that is not nil.
func New(l *tokenbucket.Limiter, s setting.RateLimit) *Middleware {
	return &Middleware{
		decider: middleware.NewRateLimit(l, s.Common, s.Open),
		legacy:  s.LegacyHeaders,
		status:  s.StatusHeaders,
		types:   s.ProblemTypes,
	}
}

// Check takes a token of the key, or looks at why there is no key, sets the header fields of the
// response, and returns nil if the request may go on.
func (m *Middleware) Check(ctx context.Context, h http.Header, key string, keyErr error) *policy.Denial {
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
	if denial != nil {
		httpdenial.SetHeader(h, denial, m.types)
	}
	return denial
}
