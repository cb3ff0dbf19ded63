package mwtest

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// Cells are what a framework has for each policy, and its builders of keys and scopes: M is the
// type of its middleware, K its KeyFunc, and S its ScopeFunc.
type Cells[M, K, S any] struct {
	RateLimit   func(*tokenbucket.Limiter, K, ...policy.RateLimitOption) M
	Idempotency func(*guard.Guard, S, ...policy.IdempotencyOption) M
	Exclusive   func(*lock.Locker, K, ...policy.ExclusiveOption) M
	Concurrency func(*semaphore.Semaphore, K, ...policy.ConcurrencyOption) M
	Fenced      func(fence.Checker, K, ...policy.FencedOption) M
	KeyFrom     func(K) policy.IdempotencyOption
	Costs       func(func(*http.Request) tokenbucket.Cost) policy.RateLimitOption
	Tiers       func(func(*http.Request) policy.Tier) policy.ConcurrencyOption
	Usage       func(*tokenbucket.Limiter, K, []setting.HTTPOption) M
	Set         func(name, field string) M

	ByHeader   func(name string) K
	ByParam    func(name string) K
	ByContext  func(key any) K
	ByClientIP func(clientip.Resolver) K
	Global     func() K
	ByRequest  func(func(*http.Request) (string, error)) K // a KeyFunc of the application
	ScopeBy    func(K) S
	Unscoped   func() S

	// Options returns the options for Hooks.
	Options func(Hooks) []setting.HTTPOption
}

// Build builds a middleware.
func (c Cells[M, K, S]) Build(m Middleware) M {
	switch m := m.(type) {
	case RateLimit:
		options := with(m.Options, c.Options(m.Hooks))
		if m.Costs != nil {
			options = append(options, c.Costs(m.Costs))
		}
		return c.RateLimit(m.Limiter, c.key(m.By), options...)
	case Usage:
		return c.Usage(m.Limiter, c.key(m.By), c.Options(m.Hooks))
	case Set:
		return c.Set(m.Name, m.Field)
	case Native:
		return m.Of.(M)
	case Idempotency:
		scope := c.Unscoped()
		if m.By.Kind != None {
			scope = c.ScopeBy(c.key(m.By))
		}
		options := with(m.Options, c.Options(m.Hooks))
		if m.KeyFrom.Kind != None {
			options = append(options, c.KeyFrom(c.key(m.KeyFrom)))
		}
		return c.Idempotency(m.Guard, scope, options...)
	case Exclusive:
		return c.Exclusive(m.Locker, c.key(m.By), with(m.Options, c.Options(m.Hooks))...)
	case Concurrency:
		options := with(m.Options, c.Options(m.Hooks))
		if m.Tiers != nil {
			options = append(options, c.Tiers(m.Tiers))
		}
		return c.Concurrency(m.Semaphore, c.key(m.By), options...)
	case Fenced:
		return c.Fenced(m.Checker, c.key(m.By), with(m.Options, c.Options(m.Hooks))...)
	}
	panic("unknown middleware")
}

// Convert returns hooks as a framework's options.
func Convert[O any](hooks []setting.HTTPOption) []O { return with([]O(nil), hooks) }

// with returns options and the hooks, which are options of every policy.
func with[O any](options []O, hooks []setting.HTTPOption) []O {
	for _, h := range hooks {
		options = append(options, any(h).(O))
	}
	return options
}

func (c Cells[M, K, S]) key(k Key) K {
	switch k.Kind {
	case ByHeader:
		return c.ByHeader(k.Name)
	case ByID:
		return c.ByParam(k.Name)
	case ByContext:
		return c.ByContext(k.ContextKey())
	case ByClientIP:
		return c.ByClientIP(clientip.Direct())
	case Global:
		return c.Global()
	case InBody:
		return c.ByRequest(EventID)
	default:
		return c.ByRequest(func(*http.Request) (string, error) { return "", k.Err })
	}
}
