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

// Check takes a token of the key, or looks at why there is no key. It returns nil if the request may go on. The
// decision is left as it was if there is none.
func (m *RateLimit) Check(ctx context.Context, key string, keyErr error, decision *tokenbucket.Decision) *policy.Denial {
	if keyErr != nil || key == "" {
		denial := NoKey(keyErr)
		Fail(ctx, denial)
		return &denial
	}
	var err error
	if *decision, err = m.Limiter.Allow(ctx, key); err == nil && decision.Allowed {
		return nil
	}
	denial := m.deny(ctx, decision, err)
	if denial != nil {
		Fail(ctx, *denial)
	}
	return denial
}

// deny says why a request may not go on that was not allowed to; nil if it may all the same.
func (m *RateLimit) deny(ctx context.Context, decision *tokenbucket.Decision, err error) *policy.Denial {
	switch {
	case err == nil:
		d := &policy.Denial{Reason: policy.QuotaExceeded, RetryAfter: decision.RetryAfter}
		for _, l := range decision.Limits() {
			if l.RetryAfter > 0 {
				d.ViolatedPolicies = append(d.ViolatedPolicies, l.Name)
			}
		}
		return d
	case errors.Is(err, tokenbucket.ErrInvalidKey):
		return &policy.Denial{Reason: policy.KeyMalformed, Err: err}
	case errors.Is(err, outage.ErrUnavailable) && m.FailOpen && ctx.Err() == nil:
		return nil
	case errors.Is(err, outage.ErrUnavailable), ctx.Err() != nil:
		d := unavailable(err)
		return &d
	}
	return &policy.Denial{Reason: policy.InternalError, Err: err}
}
