package middleware

import (
	"context"
	"errors"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/ewma"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// RateLimit decides whether requests are within a limit.
type RateLimit struct {
	*Watch
	Limiter *tokenbucket.Limiter
	// Order spreads the times of refused requests; nil gives all of them the same time.
	Order    *RetryOrder
	hold     *tokenbucket.Escalation // nil unless policy.Hold
	attempts *ewma.Duration          // duration of attempts; nil unless they are charged by their answers
	jitter   time.Duration
	shadow   bool // policy.Shadow
	shadows  *telemetry.Shadows
}

// NewRateLimit returns the decisions of a limiter that is not nil.
func NewRateLimit(l *tokenbucket.Limiter, s setting.Settings) RateLimit {
	m := RateLimit{
		Watch: newWatch(s, "rate_limit", l.Name()), Limiter: l, hold: s.Hold, jitter: s.RetryJitter, shadow: s.Shadow,
		shadows: telemetry.NewShadows(telemetry.Providers{Meter: s.Meter}, policy.ScopeName, l.Name(), "rate_limit"),
	}
	if s.Charged != nil {
		m.attempts = new(ewma.Duration)
	}
	return m
}

// Verdict says whether a request passes, and by which rule.
type Verdict uint8

// The verdicts.
const (
	Enforced Verdict = iota // it passes if there is no denial
	Bypassed                // it passes without the store
	Shadowed                // it passes, and would have been denied
)

// Check takes a token of the key, or the tokens that ask requests; keyErr is the error of the key
// function. The denial is nil for a request that is allowed, bypasses the store, or meets a limiter
// that is off. Check sets decision only if the limiter has decided.
//
// A request passes that the limiter does not decide about, or that has no key, if the limiter does
// not enforce the limits of its key.
func (m *RateLimit) Check(
	ctx context.Context, key string, keyErr error, ask *Ask, decision *tokenbucket.Decision,
) (*policy.Denial, Verdict) {
	if keyErr != nil {
		key = ""
	}
	denial, verdict := m.take(ctx, key, keyErr, ask, decision)
	if denial != nil && verdict == Enforced && !m.Limiter.Enforces(key) {
		if m.Limiter.Enforcement().Mode == tokenbucket.Off {
			return nil, Enforced
		}
		verdict = Shadowed
	}
	switch {
	case denial == nil:
		return nil, verdict
	case m.shadow || verdict == Shadowed:
		m.shadows.Add(ctx, string(denial.Reason))
		return denial, Shadowed
	case denial.Reason == policy.QuotaExceeded && m.Order != nil && !decision.Pending:
		denial.RetryAfter = m.Order.Delay(key, denial.Limit)
	}
	m.Spread(denial)
	Fail(ctx, *denial)
	return denial, Enforced
}

func (m *RateLimit) take(
	ctx context.Context, key string, keyErr error, ask *Ask, decision *tokenbucket.Decision,
) (*policy.Denial, Verdict) {
	if key == "" {
		denial := m.NoKey(ctx, keyErr)
		return &denial, Enforced
	}
	var err error
	if ask == nil || !ask.Settles {
		*decision, err = m.Limiter.Allow(ctx, key)
	} else {
		err = ask.reserve(ctx, m, key, decision)
	}
	if err != nil {
		return m.failed(ctx, err)
	}
	if decision.Shadow {
		return m.shadowed(ctx, decision)
	}
	m.Decided(ctx)
	if decision.Allowed {
		return nil, Enforced
	}
	return m.exceeded(ctx, key, ask, decision), Enforced
}

// shadowed returns the denial of a request that passes since its limiter is in shadow, or the
// verdict that it bypasses the store. It holds no key.
func (m *RateLimit) shadowed(ctx context.Context, decision *tokenbucket.Decision) (*policy.Denial, Verdict) {
	if err := decision.Undecided(); err != nil {
		denial, verdict := m.failed(ctx, err)
		if denial == nil {
			return nil, verdict
		}
		return denial, Shadowed
	}
	m.Decided(ctx)
	if decision.Held > 0 {
		return &policy.Denial{Reason: policy.AbnormalUsage}, Shadowed
	}
	return &policy.Denial{Reason: policy.QuotaExceeded}, Shadowed
}

// Peek returns the limits of the key and charges nothing. It returns a denial if there is no
// decision to report. The decision has no limits if they are not enforced.
func (m *RateLimit) Peek(ctx context.Context, key string, keyErr error, decision *tokenbucket.Decision) (denial *policy.Denial) {
	if keyErr != nil {
		key = ""
	}
	if key == "" {
		d := m.NoKey(ctx, keyErr)
		denial = &d
	} else {
		var err error
		if *decision, err = m.Limiter.Peek(ctx, key); err == nil {
			return nil
		}
		denial, _ = m.failed(ctx, err)
	}
	if !m.Limiter.Enforces(key) {
		*decision = tokenbucket.Decision{Allowed: true}
		return nil
	}
	Fail(ctx, *denial)
	return denial
}

// Spread adds the jitter to the RetryAfter of a denial that has one.
func (m *RateLimit) Spread(d *policy.Denial) {
	if m.jitter > 0 && d.RetryAfter > 0 {
		d.RetryAfter = spread(d.RetryAfter, m.jitter)
	}
}

// exceeded returns the denial of a request over the limit, or of a held key. With policy.Hold, it
// holds the key.
func (m *RateLimit) exceeded(ctx context.Context, key string, ask *Ask, decision *tokenbucket.Decision) *policy.Denial {
	if after, held := m.held(ctx, key, ask, decision); held {
		return &policy.Denial{Reason: policy.AbnormalUsage, RetryAfter: after, ViolatedPolicies: []string{m.Limiter.Name()}}
	}
	d := &policy.Denial{Reason: policy.QuotaExceeded, RetryAfter: decision.RetryAfter}
	if decision.Pending {
		d.RetryAfter = min(d.RetryAfter, m.untilSettled())
	}
	for _, l := range m.AppendLimits(nil, decision) {
		if l.RetryAfter > 0 {
			d.ViolatedPolicies = append(d.ViolatedPolicies, l.Name)
		}
		if l.RetryAfter > d.Limit.RetryAfter {
			d.Limit = l
		}
	}
	return d
}

// AppendLimits appends the limits of a decision as answers report them. The limits of a held key
// have nothing left until the hold ends, even if tokens have come back. Tokens that attempts have
// reserved may come back when these end. Limits that are not enforced are not reported.
func (m *RateLimit) AppendLimits(states []tokenbucket.LimitState, decision *tokenbucket.Decision) []tokenbucket.LimitState {
	if !decision.Enforced() {
		return states
	}
	first := len(states)
	states = decision.AppendLimits(states)
	for i := range states[first:] {
		switch s := &states[first+i]; {
		case decision.Held > 0:
			s.Remaining, s.Reset, s.RetryAfter = 0, max(s.Reset, decision.Held), max(s.RetryAfter, decision.Held)
		case s.Reserved > 0:
			soon := m.untilSettled()
			s.Next, s.Reset = min(s.Next, soon), max(s.Reset, min(s.Next, soon))
			if decision.Pending {
				s.RetryAfter = min(s.RetryAfter, soon)
			}
		}
	}
	return states
}

// maxSettling bounds the RetryAfter of a request that is refused because of others' attempts.
const maxSettling = 30 * time.Second

// untilSettled returns the time until the next attempt may end: their recent duration.
func (m *RateLimit) untilSettled() time.Duration {
	typical := time.Duration(0)
	if m.attempts != nil {
		typical = m.attempts.Get()
	}
	return min(max(typical, time.Second), maxSettling)
}

// failed returns the denial for an error of the limiter, or nil if the request passes all the same.
func (m *RateLimit) failed(ctx context.Context, err error) (*policy.Denial, Verdict) {
	switch {
	case errors.Is(err, tokenbucket.ErrInvalidKey):
		return &policy.Denial{Reason: policy.KeyMalformed, Err: err}, Enforced
	case errors.Is(err, tokenbucket.ErrInvalidCost), errors.Is(err, tokenbucket.ErrUnknownUnit):
		m.Mispriced(ctx, err)
	case m.Passes(ctx, err):
		return nil, Bypassed
	case errors.Is(err, store.ErrUnavailable), ctx.Err() != nil:
		d := unavailable(err)
		return &d, Enforced
	}
	return &policy.Denial{Reason: policy.InternalError, Err: err}, Enforced
}
