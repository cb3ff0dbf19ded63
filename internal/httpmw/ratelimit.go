package httpmw

import (
	"net/http"
	"reflect"

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
	m := &rateLimit[C]{
		base:    newBase(a, "ratelimit", settings),
		decider: middleware.NewRateLimit(l, settings),
		key:     key,
		asks:    middleware.Asks(&settings),
		settles: middleware.Settles(&settings),
		charged: settings.Charged,
		shadow:  settings.Shadow,
		hidden:  settings.HideLimits || settings.Shadow,
		legacy:  settings.LegacyHeaders,
		status:  settings.StatusHeaders && !settings.Shadow,
	}
	return m.lending(m.serve)
}

// rateLimit decides about requests.
type rateLimit[C any] struct {
	*base[C]
	decider middleware.RateLimit
	key     func(C) (string, error)
	asks    bool // for more than a token
	settles bool
	charged map[int]bool // the charged statuses, nil for all
	shadow  bool
	hidden  bool // no header field shows the limits
	legacy  bool
	status  bool
	encoder draft11
}

func (m *rateLimit[C]) serve(c C, next func(C) error) error {
	if m.skips(c) {
		return next(c)
	}
	key, err := m.keyOf(c, m.key)
	visit, denial := m.begin(c, key)
	if denial != nil {
		return m.refuse(c, *denial)
	}
	defer visit.End()
	if m.asks {
		return m.serveAsking(c, next, key, err)
	}
	if denial := m.check(c, key, err); denial != nil {
		return m.refuse(c, *denial)
	}
	return next(c)
}

// begin begins the visit of a request. All middleware of a chain see one header.
func (m *rateLimit[C]) begin(c C, key string) (middleware.Visit, *policy.Denial) {
	r := m.Request(c)
	return m.decider.Begin(r.Context(), reflect.ValueOf(r.Header).Pointer(), r.URL.Path, key)
}

// check takes a token of the key, or handles the lack of a key. It returns the result of outcome.
func (m *rateLimit[C]) check(c C, key string, keyErr error) *policy.Denial {
	var decision tokenbucket.Decision // without limits, if there is none
	if m.values == nil || m.decider.Limiter.FixedPlan() {
		denial, verdict := m.decider.Check(m.Request(c).Context(), key, keyErr, nil, &decision)
		return m.outcome(c, denial, verdict, &decision, nil)
	}
	ctx := newPlanContext(m.base, c)
	denial, verdict := m.checkIn(ctx, key, keyErr, &decision)
	return m.outcome(c, denial, verdict, &decision, &ctx.fields)
}

// checkIn makes a decision in its own context, which ends with the decision, even if the PlanFunc
// panics.
func (m *rateLimit[C]) checkIn(
	ctx *planContext[C], key string, keyErr error, decision *tokenbucket.Decision,
) (*policy.Denial, middleware.Verdict) {
	defer ctx.end()
	return m.decider.Check(ctx, key, keyErr, nil, decision)
}

// outcome sets the header fields of the response, in room if that is not nil. It returns nil if the
// request may pass.
func (m *rateLimit[C]) outcome(
	c C, denial *policy.Denial, verdict middleware.Verdict, decision *tokenbucket.Decision, room *[2]string,
) *policy.Denial {
	if !m.hidden {
		m.tell(m.Header(c), decision, room)
	}
	if verdict == middleware.Enforced {
		return denial
	}
	m.pass(c, denial, verdict, decision)
	return nil
}

// pass reports a request that passes although it was not allowed.
func (m *rateLimit[C]) pass(c C, denial *policy.Denial, verdict middleware.Verdict, decision *tokenbucket.Decision) {
	switch {
	case verdict == middleware.Bypassed && m.status && decision.Enforced():
		m.Header(c).Set("RateLimit-Status", "bypassed")
	case verdict == middleware.Shadowed && m.hooks.Report != nil && middleware.IsFailure(*denial):
		m.hooks.Report(c, denial.Err) // not the framework's place for errors: it may answer with one
	}
}

// tell sets the fields about the limits of a decision. room may be nil.
func (m *rateLimit[C]) tell(h http.Header, decision *tokenbucket.Decision, room *[2]string) {
	var few [4]tokenbucket.LimitState
	if limits := m.decider.AppendLimits(few[:0], decision); len(limits) > 0 {
		if room == nil {
			room = new([2]string)
		}
		m.encoder.encode(h, limits, room)
		if m.legacy {
			legacy(h, limits)
		}
	}
}
