package setting

// Func is an option of every policy. Functions return it to an application as an interface with the
// markers of certain policies only, so that it does not compile on another policy.
type Func func(*Settings)

func (f Func) apply(s *Settings) { f(s) }
func (Func) forRateLimit()       {}
func (Func) forRPCRateLimit()    {}
func (Func) forIdempotency()     {}
func (Func) forRPCIdempotency()  {}
func (Func) forExclusive()       {}
func (Func) forConcurrency()     {}
func (Func) forFenced()          {}
func (Func) forTransport()       {}
func (Func) forRPCClient()       {}

type option interface{ apply(*Settings) }

// The options of each policy. Limits and guards have some options in HTTP alone, and some in gRPC
// alone.
type (
	// RateLimitOption is an option of limits in HTTP.
	RateLimitOption interface {
		option
		forRateLimit()
	}
	// RPCRateLimitOption is an option of limits in gRPC.
	RPCRateLimitOption interface {
		option
		forRPCRateLimit()
	}
	// IdempotencyOption is an option of guards in HTTP.
	IdempotencyOption interface {
		option
		forIdempotency()
	}
	// RPCIdempotencyOption is an option of guards in gRPC.
	RPCIdempotencyOption interface {
		option
		forRPCIdempotency()
	}
	// ExclusiveOption is an option of exclusive.
	ExclusiveOption interface {
		option
		forExclusive()
	}
	// ConcurrencyOption is an option of concurrency.
	ConcurrencyOption interface {
		option
		forConcurrency()
	}
	// FencedOption is an option of fenced.
	FencedOption interface {
		option
		forFenced()
	}
	// TransportOption is an option of limits on the requests of an HTTP client.
	TransportOption interface {
		option
		forTransport()
	}
	// RPCClientOption is an option of limits on the calls of a gRPC client.
	RPCClientOption interface {
		option
		forRPCClient()
	}
)

// HTTPOption is an option of every policy in HTTP.
type HTTPOption interface {
	RateLimitOption
	IdempotencyOption
	ExclusiveOption
	ConcurrencyOption
	FencedOption
}

// RPCOption is an option of every policy in gRPC.
type RPCOption interface {
	RPCRateLimitOption
	RPCIdempotencyOption
	ExclusiveOption
	ConcurrencyOption
	FencedOption
	RPCClientOption
}
