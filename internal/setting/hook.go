package setting

import "fmt"

// Hook returns a function in a framework's own types that a middleware was given, or nil. It panics,
// as the New of the package called name, if the function was made for another framework.
func Hook[F any](name string, given any) F {
	hook, ok := given.(F)
	if !ok && given != nil {
		panic(fmt.Sprintf("%s: New: an option of another framework (%T)", name, given))
	}
	return hook
}

// Option sets something that every policy has, in HTTP.
type Option func(*Common)

// ApplyRateLimit implements RateLimitOption.
func (o Option) ApplyRateLimit(s *RateLimit) { o(&s.Common) }

// ApplyIdempotency implements IdempotencyOption.
func (o Option) ApplyIdempotency(s *Idempotency) { o(&s.Common) }

// ApplyExclusive implements ExclusiveOption.
func (o Option) ApplyExclusive(s *Exclusive) { o(&s.Common) }

// ApplyConcurrency implements ConcurrencyOption.
func (o Option) ApplyConcurrency(s *Concurrency) { o(&s.Common) }

// ApplyFenced implements FencedOption.
func (o Option) ApplyFenced(s *Fenced) { o(&s.Common) }

// RPCOption sets something that every policy has, in gRPC.
type RPCOption func(*Common)

// ApplyRPCRateLimit implements RPCRateLimitOption.
func (o RPCOption) ApplyRPCRateLimit(s *RPCRateLimit) { o(&s.Common) }

// ApplyRPCIdempotency implements RPCIdempotencyOption.
func (o RPCOption) ApplyRPCIdempotency(s *RPCIdempotency) { o(&s.Common) }

// ApplyExclusive implements ExclusiveOption.
func (o RPCOption) ApplyExclusive(s *Exclusive) { o(&s.Common) }

// ApplyConcurrency implements ConcurrencyOption.
func (o RPCOption) ApplyConcurrency(s *Concurrency) { o(&s.Common) }

// ApplyFenced implements FencedOption.
func (o RPCOption) ApplyFenced(s *Fenced) { o(&s.Common) }
