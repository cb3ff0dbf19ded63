package middleware

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

// RateLimit decides whether requests are within a limit.
type RateLimit struct {
	Limiter  *tokenbucket.Limiter
	FailOpen bool
}

// Check takes a token of the key, or looks at why there is no key. It returns what is known of the
// limits, nothing if nothing was decided, and nil if the request may go on.
func (m *RateLimit) Check(ctx context.Context, key string, keyErr error) ([]tokenbucket.LimitState, *policy.Denial) {
	limits, denial := m.check(ctx, key, keyErr)
	if denial != nil {
		Fail(ctx, *denial)
	}
	return limits, denial
}

func (m *RateLimit) check(ctx context.Context, key string, keyErr error) ([]tokenbucket.LimitState, *policy.Denial) {
	if keyErr != nil || key == "" {
		d := NoKey(keyErr)
		return nil, &d
	}
	decision, err := m.Limiter.Allow(ctx, key)
	switch {
	case err == nil:
	case errors.Is(err, tokenbucket.ErrInvalidKey):
		return nil, &policy.Denial{Reason: policy.KeyMalformed, Err: err}
	case errors.Is(err, outage.ErrUnavailable) && m.FailOpen && ctx.Err() == nil:
		return nil, nil
	case errors.Is(err, outage.ErrUnavailable), ctx.Err() != nil:
		d := unavailable(err)
		return nil, &d
	default:
		return nil, &policy.Denial{Reason: policy.InternalError, Err: err}
	}
	if decision.Allowed {
		return decision.Limits, nil
	}
	d := &policy.Denial{Reason: policy.QuotaExceeded, RetryAfter: decision.RetryAfter}
	for _, l := range decision.Limits {
		if l.RetryAfter > 0 {
			d.ViolatedPolicies = append(d.ViolatedPolicies, l.Name)
		}
	}
	return decision.Limits, d
}
