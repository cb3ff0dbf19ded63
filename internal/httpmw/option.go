package httpmw

import (
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// Unless is Unless of the package called name, whose functions take requests as an R.
func Unless[R any](name string, skip func(R) bool) setting.HTTPOption {
	return setting.Given(name+": Unless", skip, func(s *setting.Settings) { s.Skip = skip })
}

// OnError is OnError of the package called name, whose functions take requests as an R.
func OnError[R any](name string, report func(R, error)) setting.HTTPOption {
	return setting.Given(name+": OnError", report, func(s *setting.Settings) { s.Report = report })
}

// KeyFrom is idempotency.KeyFrom.
func KeyFrom[R any](key func(R) (string, error)) policy.IdempotencyOption {
	if key == nil {
		panic("idempotency: KeyFrom: nil key")
	}
	return setting.Func(func(s *setting.Settings) { s.Key = key })
}

// Costs is ratelimit.Costs of a framework whose functions take requests as an R.
func Costs[R any](estimate func(R) tokenbucket.Cost) policy.RateLimitOption {
	return setting.Given("ratelimit: Costs", estimate, func(s *setting.Settings) { s.Costs = estimate })
}

// Tiers is concurrency.Tiers of a framework whose functions take requests as an R.
func Tiers[R any](tier func(R) policy.Tier) policy.ConcurrencyOption {
	return setting.Given("concurrency: Tiers", tier, func(s *setting.Settings) { s.Tiers = tier })
}

// HooksOf returns the hooks of a framework whose functions take requests as a C, except Deny.
func HooksOf[C any](name string, s setting.Settings) Hooks[C] {
	return Hooks[C]{
		Skip:   setting.Hook[func(C) bool](name, s.Skip),
		Report: setting.Hook[func(C, error)](name, s.Report),
		Key:    setting.Hook[func(C) (string, error)](name, s.Key),
		Costs:  setting.Hook[func(C) tokenbucket.Cost](name, s.Costs),
		Tier:   setting.Hook[func(C) policy.Tier](name, s.Tiers),
	}
}
