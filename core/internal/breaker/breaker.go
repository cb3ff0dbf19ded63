// Package breaker is the circuit breaker of a server. It opens when several calls in a row have
// failed, or one has proved that the server cannot work. Calls then fail at once, until a probe
// succeeds.
package breaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// TripAfter is how many failures in a row open the breaker.
	TripAfter = 5
	// forgetAfter is how often the count of failures is reset while the breaker is closed, since
	// the success of a call that only reads does not reset it.
	forgetAfter = time.Minute
	// probeEvery is how often a server whose breaker is open is probed.
	probeEvery = 250 * time.Millisecond
)

// ErrNoEvidence is the result of a call that says nothing about the server, such as one that its
// caller has canceled.
var ErrNoEvidence = errors.New("no evidence about the server")

// IsFailure reports whether the result of a call is a failure of the server.
func IsFailure(result error) bool { return result != nil && !errors.Is(result, ErrNoEvidence) }

// Config is what a Breaker is made of. All fields are required.
type Config struct {
	Server  string // its kind, such as "redis", in errors and logs
	Address string // in logs
	Logger  *slog.Logger

	// Probe asks the server once for what calls need of it, such as a write, and returns nil if it
	// works, ErrNoEvidence if it may work, or the failure. It may outlast Life.
	Probe func() error
	// IsDecisive reports whether a single such failure proves that the server cannot work. A reply
	// or a refusal does; a timeout may have many reasons.
	IsDecisive func(failure error) bool
	// Explain returns a failure as an error of package store. It is called for every failure that
	// counts, and may log it.
	Explain func(failure error) error

	// Life ends when the server is no longer used.
	Life context.Context
	// Start runs a function in the background, or returns false if Life has ended.
	Start func(func()) bool
}

// Breaker is a circuit breaker. All methods may be called concurrently.
type Breaker struct {
	config  Config
	breaker *gobreaker.TwoStepCircuitBreaker[struct{}]
	is      error // why calls fail while it is open, without the server's failure

	open          atomic.Bool           // its state is not closed
	trip          atomic.Bool           // the next failure opens it
	down          atomic.Pointer[error] // the error of calls while it is open
	missed        atomic.Int64          // calls in a row that ended without a reply
	probingMisses atomic.Bool           // a probe is in flight because of them
	stopped       atomic.Bool
}

// New returns a closed breaker.
func New(config Config) *Breaker {
	b := &Breaker{config: config, is: openError{config.Server}}
	b.breaker = gobreaker.NewTwoStepCircuitBreaker[struct{}](gobreaker.Settings{
		Name:        config.Server,
		MaxRequests: 1,
		Timeout:     probeEvery,
		Interval:    forgetAfter,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= TripAfter || b.trip.Load() },
		IsExcluded:  func(err error) bool { return errors.Is(err, ErrNoEvidence) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			b.open.Store(to != gobreaker.StateClosed)
			switch {
			case from == gobreaker.StateClosed && to == gobreaker.StateOpen:
				down := b.Err()
				config.Logger.Warn("lockkeeper: "+config.Server+" is down; calls fail at once until it replies",
					"cause", string(store.CauseOf(down)), "address", config.Address, "error", down)
				config.Start(b.probe)
			case to == gobreaker.StateClosed:
				config.Logger.Info("lockkeeper: "+config.Server+" replies again", "address", config.Address)
			}
		},
	})
	return b
}

// openError is matched by the errors of calls that a breaker has refused.
type openError struct{ server string }

func (e openError) Error() string {
	return store.ErrUnavailable.Error() + ": the circuit breaker of " + e.server + " is open"
}

func (openError) Unwrap() error { return store.ErrUnavailable }

// Refused reports whether an error is that of a call that an open breaker has refused.
func Refused(err error) bool { return errors.As(err, new(openError)) }

// IsOpen reports whether the breaker is not closed: only the probe may pass a half-open one, so
// that no caller has to wait.
func (b *Breaker) IsOpen() bool { return b.open.Load() }

// Err returns the error of calls while the breaker is open.
func (b *Breaker) Err() error {
	if down := b.down.Load(); down != nil {
		return *down
	}
	return b.is
}

// Trip makes the next failure open the breaker.
func (b *Breaker) Trip() { b.trip.Store(true) }

// Stop ends the probes of a server that is no longer used, before Life ends.
func (b *Breaker) Stop() { b.stopped.Store(true) }

// Call is a call that a breaker has admitted. The zero Call is one that was made whatever the
// breaker's state: its result does not count.
type Call struct {
	breaker *Breaker
	done    func(error)
}

// Counts reports whether the call's result counts.
func (c Call) Counts() bool { return c.done != nil }

// Allow admits a call, or returns the error of calls while the breaker is open.
func (b *Breaker) Allow() (Call, error) {
	if b.IsOpen() {
		return Call{}, b.Err()
	}
	c, ok := b.admit()
	if !ok {
		return Call{}, b.Err()
	}
	return c, nil
}

// admit also admits a probe of an open breaker, at its time.
func (b *Breaker) admit() (Call, bool) {
	done, err := b.breaker.Allow()
	return Call{b, done}, err == nil
}

// End reports the result of the call: nil if the server works, ErrNoEvidence if it may work, or the
// failure.
func (c Call) End(result error) {
	if !c.Counts() {
		return
	}
	switch b := c.breaker; {
	case result == nil:
		if b.missed.Load() > 0 {
			b.missed.Store(0)
		}
		if b.trip.Load() {
			b.trip.Store(false)
		}
	case IsFailure(result):
		b.failed(result)
		if b.config.IsDecisive(result) {
			b.trip.Store(true)
		}
	}
	c.done(result)
}

// failed records the failure that calls return while the breaker is open. It may change: a server
// that was unreachable may then refuse the password.
func (b *Breaker) failed(failure error) {
	text := failure.Error() // of package store, perhaps
	for _, known := range []error{store.ErrMisconfigured, store.ErrUnavailable} {
		text = strings.TrimPrefix(text, known.Error()+": ")
	}
	down := fmt.Errorf("%w: %w", b.is, store.WithCauseOf(b.config.Explain(failure), text))
	b.down.Store(&down)
}
