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

// OnDeny is OnDeny of the package called name.
func OnDeny[C Context](name string, deny func(C, policy.Denial) error) setting.Option {
	if deny == nil {
		panic(name + ": OnDeny: nil function")
	}
	return func(s *setting.Common) { s.Deny = deny }
}
