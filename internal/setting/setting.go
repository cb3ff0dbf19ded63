// Package setting holds what the options of package policy set. Options are sealed: nobody outside
// this module can name the types that they apply to.
package setting

import "time"

// Common is what every policy of every framework has.
type Common struct {
	// Skip, Deny and Report are functions in a framework's own types, such as
	// func(*gin.Context) bool.
	Skip any
	Deny any
	// Report is for frameworks that have no place of their own for a request's errors.
	Report any
}

// RateLimit is what the ratelimit middleware can be told.
type RateLimit struct {
	Common
	FailOpen      bool
	LegacyHeaders bool
}

// RateLimitOption sets something of it.
type RateLimitOption interface{ ApplyRateLimit(*RateLimit) }

// RPCRateLimit is what the ratelimit interceptors of gRPC can be told.
type RPCRateLimit struct {
	Common
	FailOpen bool
	// PerMessage takes a token for each message of a stream, not for the stream alone.
	PerMessage bool
}

// RPCRateLimitOption sets something of it.
type RPCRateLimitOption interface{ ApplyRPCRateLimit(*RPCRateLimit) }

// Idempotency is what the idempotency middleware can be told.
type Idempotency struct {
	Common
	RunUnprotected bool
	Required       bool
	Methods        []string
	MaxBody        int64
	// Keep overrides, by status, whether an answer is kept.
	Keep map[int]bool
}

// IdempotencyOption sets something of it.
type IdempotencyOption interface{ ApplyIdempotency(*Idempotency) }

// RPCIdempotency is what the idempotency interceptors of gRPC can be told.
type RPCIdempotency struct {
	Common
	RunUnprotected bool
	Required       bool
	// KeyField is the field of a request that may have its key.
	KeyField string
	// PassStreams runs streams unguarded, whether or not they carry a key.
	PassStreams bool
	// Keep overrides, by status code, whether an answer is kept.
	Keep map[uint32]bool
}

// RPCIdempotencyOption sets something of it.
type RPCIdempotencyOption interface {
	ApplyRPCIdempotency(*RPCIdempotency)
}

// Exclusive is what the exclusive middleware can be told.
type Exclusive struct {
	Common
	RunUnprotected bool
	// Wait is for how long a request waits for its turn; zero refuses it at once.
	Wait time.Duration
}

// ExclusiveOption sets something of it.
type ExclusiveOption interface{ ApplyExclusive(*Exclusive) }

// Concurrency is what the concurrency middleware can be told.
type Concurrency struct {
	Common
	FailOpen bool
	// Wait is for how long a request waits for room; zero refuses it at once.
	Wait time.Duration
	// MaxWaiting is how many requests wait for a key at the same time.
	MaxWaiting int
	// PerInstance counts the requests of this process alone.
	PerInstance bool
}

// ConcurrencyOption sets something of it.
type ConcurrencyOption interface{ ApplyConcurrency(*Concurrency) }

// Fenced is what the fenced middleware can be told.
type Fenced struct {
	Common
	RunUnprotected bool
	// AllowUnfenced lets requests pass that have no fence.
	AllowUnfenced bool
}

// FencedOption sets something of it.
type FencedOption interface{ ApplyFenced(*Fenced) }

// ForRateLimit returns the defaults with opts applied; nil options are ignored.
func ForRateLimit(opts []RateLimitOption) RateLimit {
	var s RateLimit
	for _, o := range opts {
		if o != nil {
			o.ApplyRateLimit(&s)
		}
	}
	return s
}

// ForIdempotency returns the defaults with opts applied; nil options are ignored.
func ForIdempotency(opts []IdempotencyOption) Idempotency {
	s := Idempotency{Methods: []string{"POST", "PATCH"}, MaxBody: 1 << 20, Keep: map[int]bool{}}
	for _, o := range opts {
		if o != nil {
			o.ApplyIdempotency(&s)
		}
	}
	return s
}

// ForRPCRateLimit returns the defaults with opts applied; nil options are ignored.
func ForRPCRateLimit(opts []RPCRateLimitOption) RPCRateLimit {
	var s RPCRateLimit
	for _, o := range opts {
		if o != nil {
			o.ApplyRPCRateLimit(&s)
		}
	}
	return s
}

// ForRPCIdempotency returns the defaults with opts applied; nil options are ignored.
func ForRPCIdempotency(opts []RPCIdempotencyOption) RPCIdempotency {
	s := RPCIdempotency{KeyField: "request_id", Keep: map[uint32]bool{}}
	for _, o := range opts {
		if o != nil {
			o.ApplyRPCIdempotency(&s)
		}
	}
	return s
}

// ForExclusive returns the defaults with opts applied; nil options are ignored.
func ForExclusive(opts []ExclusiveOption) Exclusive {
	var s Exclusive
	for _, o := range opts {
		if o != nil {
			o.ApplyExclusive(&s)
		}
	}
	return s
}

// ForConcurrency returns the defaults with opts applied; nil options are ignored.
func ForConcurrency(opts []ConcurrencyOption) Concurrency {
	s := Concurrency{MaxWaiting: 1024}
	for _, o := range opts {
		if o != nil {
			o.ApplyConcurrency(&s)
		}
	}
	return s
}

// ForFenced returns the defaults with opts applied; nil options are ignored.
func ForFenced(opts []FencedOption) Fenced {
	var s Fenced
	for _, o := range opts {
		if o != nil {
			o.ApplyFenced(&s)
		}
	}
	return s
}
