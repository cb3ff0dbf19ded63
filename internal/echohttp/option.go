package echohttp

import (
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/setting"
)

// Unless is Unless of the package called name.
func Unless[C Context](name string, skip func(C) bool) setting.Option {
	if skip == nil {
		panic(name + ": Unless: nil function")
	}
	return func(s *setting.Common) { s.Skip = skip }
}

// OnError is OnError of the package called name.
func OnError[C Context](name string, report func(C, error)) setting.Option {
	if report == nil {
		panic(name + ": OnError: nil function")
	}
	return func(s *setting.Common) { s.Report = report }
}

// KeyFrom is idempotency.KeyFrom.
func KeyFrom[C Context](key func(C) (string, error)) policy.IdempotencyOption {
	if key == nil {
		panic("idempotency: KeyFrom: nil key")
	}
	return keyFrom(func(s *setting.Idempotency) { s.Key = key })
}

type keyFrom func(*setting.Idempotency)

func (f keyFrom) ApplyIdempotency(s *setting.Idempotency) { f(s) }

// deny sets the Deny hook. It is an option of one policy alone when it is returned as such.
func deny[C Context](name string, deny func(C, policy.Denial) error) setting.Option {
	if deny == nil {
		panic(name + ": Deny: nil function")
	}
	return func(s *setting.Common) { s.Deny = deny }
}

// DenyRateLimit is ratelimit.Deny.
func DenyRateLimit[C Context](f func(C, policy.Denial) error) policy.RateLimitOption {
	return deny("ratelimit", f)
}

// DenyIdempotency is idempotency.Deny.
func DenyIdempotency[C Context](f func(C, policy.Denial) error) policy.IdempotencyOption {
	return deny("idempotency", f)
}

// DenyExclusive is exclusive.Deny.
func DenyExclusive[C Context](f func(C, policy.Denial) error) policy.ExclusiveOption {
	return deny("exclusive", f)
}

// DenyConcurrency is concurrency.Deny.
func DenyConcurrency[C Context](f func(C, policy.Denial) error) policy.ConcurrencyOption {
	return deny("concurrency", f)
}

// DenyFenced is fenced.Deny.
func DenyFenced[C Context](f func(C, policy.Denial) error) policy.FencedOption {
	return deny("fenced", f)
}
