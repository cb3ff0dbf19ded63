// Package setting has the settings of middleware, and seals the options that change them: no code
// outside this module can name its types. core/policy imports it, and package middleware imports
// core/policy.
package setting

import (
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// Settings are the settings of one middleware. The types of its options decide which fields apply
// to it.
type Settings struct {
	// Skip, Deny, Report and Key are functions in a framework's own types, such as
	// func(*gin.Context) bool, or nil. Key reads an idempotency key.
	Skip, Deny, Report, Key any

	// ProblemTypes is the base of this module's problem types, and of the pages of all types; empty
	// for this module's own page.
	ProblemTypes string
	// Logger is slog.Default() if nil, and Meter the global provider.
	Logger *slog.Logger
	Meter  metric.MeterProvider

	Open Open
	// StatusHeaders makes answers report a bypass or an unconfirmed record.
	StatusHeaders bool

	// Of rate limits.

	LegacyHeaders bool
	// HideLimits sends no header fields about limits.
	HideLimits bool
	// RetryJitter is the longest random addition to the time after which refused requests come back.
	RetryJitter time.Duration
	// Shadow refuses no request.
	Shadow bool
	// Costs returns the estimated cost of a request, in a framework's types, or is nil.
	Costs any
	// Charged are the HTTP statuses or gRPC codes whose answers are charged; nil for all.
	Charged map[int]bool
	// Hold holds keys that exceed their limits; nil for none.
	Hold *tokenbucket.Escalation
	// PerMessage takes a token for each message of a stream, not for the stream alone.
	PerMessage bool
	// MaxHold bounds the time for which a server's answer can hold a key of a client; zero holds none.
	MaxHold time.Duration
	// Decoders read that time from answers, in a client's own type; nil for the standard ones.
	Decoders any

	// Of idempotency.

	Required bool
	Methods  []string
	MaxBody  int64
	// MaxBodies bounds the bodies of all requests together; zero stands for the default.
	MaxBodies int64
	// Fingerprint returns the replacement of the body in the fingerprint of an HTTP request; nil for
	// the body itself. CallFingerprint is the same for gRPC, in its types.
	Fingerprint     func(r *http.Request, body []byte) ([]byte, error)
	CallFingerprint any
	// Dedupe is how long requests without a key are recognised by their fingerprint; zero turns that
	// off.
	Dedupe time.Duration
	// KeyAlone leaves all but method, host and path out of the fingerprint.
	// Services has the host that stands for each host of a service that has several.
	Services map[string]string
	KeyAlone bool
	// MaxRun bounds the life of a handler's context.
	MaxRun time.Duration
	// Keep overrides, by HTTP status or gRPC code, whether an answer is kept.
	Keep map[int]bool
	// Retention is how long records are kept; zero for the guard's.
	Retention time.Duration
	// KeepFields are the canonical names of the kept header fields and trailers, nil for all.
	// DropFields are the names of the dropped ones.
	KeepFields, DropFields map[string]bool
	// KeyField is the field of a gRPC request that may have its key.
	KeyField string
	// PassStreams runs streams unguarded, whether or not they carry a key.
	PassStreams bool

	// Of guards, locks and permits.

	// Wait is how long a request may wait; zero refuses it at once.
	Wait time.Duration
	// MaxWaiting is how many requests of a key may wait at the same time; zero stands for the
	// default.
	MaxWaiting int
	// Overload refuses requests without a permit with 503 instead of 429.
	Overload bool
	// Tiers returns the tier of a request, in a framework's types, or is nil.
	Tiers any

	// Of fences.

	// AllowUnfenced lets requests without a fence pass.
	AllowUnfenced bool
}

// Open decides whether requests pass while the store is unavailable.
type Open struct {
	Passes            bool
	EvenMisconfigured bool
}

// Of returns the defaults with options applied; nil options are ignored.
func Of[O option](options []O) Settings {
	s := Settings{
		Methods:  []string{http.MethodPost, http.MethodPatch},
		MaxBody:  1 << 20,
		MaxRun:   5 * time.Minute,
		MaxHold:  15 * time.Minute,
		Keep:     map[int]bool{},
		KeyField: "request_id",
	}
	for _, o := range options {
		if any(o) != nil {
			o.apply(&s)
		}
	}
	return s
}

// Given returns an option that sets a function in a framework's own types. It panics, as the
// function called name, if the given function is nil.
func Given(name string, given any, set Func) Func {
	if naming.IsNil(given) {
		panic(name + ": nil function")
	}
	return set
}

// Hook returns a middleware's function in a framework's own types, or nil. It panics, as the New of
// the package called name, if the function was made for another framework.
func Hook[F any](name string, given any) F {
	hook, ok := given.(F)
	if !ok && given != nil {
		panic(fmt.Sprintf("%s: New: an option of another framework (%T)", name, given))
	}
	return hook
}
