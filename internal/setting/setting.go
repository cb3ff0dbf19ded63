// Package setting holds what the options of package policy set. Options are sealed: nobody outside
// this module can name the types that they apply to.
package setting

import (
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/metric"
)

// Common is what every policy of every framework has.
type Common struct {
	// Skip, Deny and Report are functions in a framework's own types, such as
	// func(*gin.Context) bool.
	Skip any
	Deny any
	// Report is for frameworks that have no place of their own for a request's errors.
	Report any
	// Key reads the key of the idempotency middleware; nil for where it is by default.
	Key any
	// ProblemTypes is what the problem types of this module begin with; empty for its own page.
	ProblemTypes string
	// Logger is slog.Default() if nil, and Meter the global provider.
	Logger *slog.Logger
	Meter  metric.MeterProvider
}

// Open says whether requests pass while the store is unavailable.
type Open struct {
	Passes            bool
	EvenMisconfigured bool
}

// RateLimit is what the ratelimit middleware can be told.
type RateLimit struct {
	Common
	Open          Open
	LegacyHeaders bool
	// StatusHeaders has answers say that their requests passed without the store.
	StatusHeaders bool
}

// RateLimitOption sets something of it.
type RateLimitOption interface{ ApplyRateLimit(*RateLimit) }

// RPCRateLimit is what the ratelimit interceptors of gRPC can be told.
type RPCRateLimit struct {
	Common
	Open Open
	// StatusHeaders is as in RateLimit.
	StatusHeaders bool
	// PerMessage takes a token for each message of a stream, not for the stream alone.
	PerMessage bool
}

// RPCRateLimitOption sets something of it.
type RPCRateLimitOption interface{ ApplyRPCRateLimit(*RPCRateLimit) }

// Idempotency is what the idempotency middleware can be told.
type Idempotency struct {
	Common
	Open     Open
	Required bool
	Methods  []string
	MaxBody  int64
	// MaxBodies bounds the bodies of all requests together; zero stands for the default.
	MaxBodies int64
	// Fingerprint returns what stands for the body in the fingerprint; nil for the body itself.
	Fingerprint func(r *http.Request, body []byte) ([]byte, error)
	// KeyAlone leaves all but method, host and path out of the fingerprint.
	KeyAlone bool
	// MaxRun bounds the time that a handler's context lives.
	MaxRun time.Duration
	// StatusHeaders has answers say what did not go as it should.
	StatusHeaders bool
	// Keep overrides, by status, whether an answer is kept.
	Keep map[int]bool
}

// IdempotencyOption sets something of it.
type IdempotencyOption interface{ ApplyIdempotency(*Idempotency) }

// RPCIdempotency is what the idempotency interceptors of gRPC can be told.
type RPCIdempotency struct {
	Common
	Open     Open
	Required bool
	// MaxRun and StatusHeaders are as in Idempotency.
	MaxRun        time.Duration
	StatusHeaders bool
	// KeyField is the field of a request that may have its key.
	KeyField string
	// Fingerprint is a function in gRPC's types, or nil. It returns what stands for the request in the
	// fingerprint.
	Fingerprint any
	// KeyAlone leaves all but the method out of the fingerprint.
	KeyAlone bool
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
	Open Open
	// Wait is for how long a request waits for its turn; zero refuses it at once.
	Wait time.Duration
	// MaxWaiting is how many requests wait for a key at the same time.
	MaxWaiting int
}

// ExclusiveOption sets something of it.
type ExclusiveOption interface{ ApplyExclusive(*Exclusive) }

// Concurrency is what the concurrency middleware can be told.
type Concurrency struct {
	Common
	Open Open
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
	Open Open
	// AllowUnfenced lets requests pass that have no fence.
	AllowUnfenced bool
}

// FencedOption sets something of it.
type FencedOption interface{ ApplyFenced(*Fenced) }

// The defaults.
const (
	maxRun     = 5 * time.Minute
	maxWaiting = 1024
)

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
	s := Idempotency{Methods: []string{"POST", "PATCH"}, MaxBody: 1 << 20, MaxRun: maxRun, Keep: map[int]bool{}}
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
	s := RPCIdempotency{KeyField: "request_id", MaxRun: maxRun, Keep: map[uint32]bool{}}
	for _, o := range opts {
		if o != nil {
			o.ApplyRPCIdempotency(&s)
		}
	}
	return s
}

// ForExclusive returns the defaults with opts applied; nil options are ignored.
func ForExclusive(opts []ExclusiveOption) Exclusive {
	s := Exclusive{MaxWaiting: maxWaiting}
	for _, o := range opts {
		if o != nil {
			o.ApplyExclusive(&s)
		}
	}
	return s
}

// ForConcurrency returns the defaults with opts applied; nil options are ignored.
func ForConcurrency(opts []ConcurrencyOption) Concurrency {
	s := Concurrency{MaxWaiting: maxWaiting}
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
