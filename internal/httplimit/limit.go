// Package httplimit is the rate limit middleware of every HTTP framework, but for the framework.
package httplimit

import (
	"context"
	"errors"
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/httpdenial"
	"github.com/lockkeeper/lockkeeper/internal/outage"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Middleware decides over requests.
type Middleware struct {
	limiter  *tokenbucket.Limiter
	settings setting.RateLimit
	encoder  encoder
}

// New returns a middleware with a limiter that is not nil.
func New(l *tokenbucket.Limiter, s setting.RateLimit) *Middleware {
	return &Middleware{limiter: l, settings: s, encoder: new(draft11)}
}

// Check takes a token of the key, or looks at why there is no key, sets the header fields of the
// response, and returns nil if the request may go on.
func (m *Middleware) Check(ctx context.Context, h http.Header, key string, keyErr error) *policy.Denial {
	if keyErr == nil && key == "" {
		keyErr = policy.ErrNoKey
	}
	if keyErr != nil {
		return refuse(h, httpdenial.NoKey(keyErr))
	}
	decision, err := m.limiter.Allow(ctx, key)
	switch {
	case err == nil:
	case errors.Is(err, tokenbucket.ErrInvalidKey):
		return refuse(h, policy.Denial{Reason: policy.KeyMalformed, Err: err})
	case errors.Is(err, outage.ErrUnavailable) && m.settings.FailOpen && ctx.Err() == nil:
		return nil
	case errors.Is(err, outage.ErrUnavailable), ctx.Err() != nil:
		return refuse(h, httpdenial.Unavailable(err))
	default:
		return refuse(h, policy.Denial{Reason: policy.InternalError, Err: err})
	}
	m.encoder.encode(h, decision.Limits)
	if m.settings.LegacyHeaders {
		legacy(h, decision.Limits)
	}
	if decision.Allowed {
		return nil
	}
	d := policy.Denial{Reason: policy.QuotaExceeded, RetryAfter: decision.RetryAfter}
	for _, l := range decision.Limits {
		if l.RetryAfter > 0 {
			d.ViolatedPolicies = append(d.ViolatedPolicies, l.Name)
		}
	}
	return refuse(h, d)
}

func refuse(h http.Header, d policy.Denial) *policy.Denial {
	httpdenial.SetHeader(h, d)
	return &d
}
