package middleware

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// RateLimit decides whether requests are within a limit.
type RateLimit struct {
	*Watch
	Limiter *tokenbucket.Limiter
}

// NewRateLimit returns the decisions of a limiter that is not nil.
func NewRateLimit(l *tokenbucket.Limiter, s setting.Settings) RateLimit {
	return RateLimit{newWatch(s, "rate_limit", l.Name()), l}
}

// Check takes a token of the key, or looks at why there is no key. It returns no denial if the
// request may pass, and bypassed if it passes without the store. The decision is unchanged if there
// is none.
func (m *RateLimit) Check(
	ctx context.Context, key string, keyErr error, decision *tokenbucket.Decision,
) (denial *policy.Denial, bypassed bool) {
	if keyErr != nil || key == "" {
		denial := m.NoKey(ctx, keyErr)
		Fail(ctx, denial)
		return &denial, false
	}
	var err error
	if *decision, err = m.Limiter.Allow(ctx, key); err == nil {
		m.Decided(ctx)
		if decision.Allowed {
			return nil, false
		}
	}
	if denial = m.deny(ctx, decision, err); denial == nil {
		return nil, true
	}
	Fail(ctx, *denial)
	return denial, false
}

// deny returns why a request that was not allowed is refused; nil if it passes all the same.
func (m *RateLimit) deny(ctx context.Context, decision *tokenbucket.Decision, err error) *policy.Denial {
	switch {
	case err == nil:
		d := &policy.Denial{Reason: policy.QuotaExceeded, RetryAfter: decision.RetryAfter}
		for _, l := range decision.Limits() {
			if l.RetryAfter > 0 {
				d.ViolatedPolicies = append(d.ViolatedPolicies, l.Name)
			}
			if l.RetryAfter > d.Limit.RetryAfter {
				d.Limit = l
			}
		}
		return d
	case errors.Is(err, tokenbucket.ErrInvalidKey):
		return &policy.Denial{Reason: policy.KeyMalformed, Err: err}
	case m.Passes(ctx, err):
		return nil
	case errors.Is(err, store.ErrUnavailable), ctx.Err() != nil:
		d := unavailable(err)
		return &d
	}
	return &policy.Denial{Reason: policy.InternalError, Err: err}
}
