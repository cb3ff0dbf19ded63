// Package breaker is the circuit breaker of a server. Only the result of a new connection is
// evidence that the server is down: after a call that fails, or gets no reply, the server is probed
// at once, on a connection of the probe's own. If the probe fails, the breaker opens. Calls then
// fail at once, until a probe succeeds.
package breaker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// probeEvery is how often a server whose breaker is open is probed, if a probe does not take
// longer.
const probeEvery = 250 * time.Millisecond

// ErrNoEvidence is the result of a call or a probe that shows nothing about the server, such as a
// call that its caller has canceled.
var ErrNoEvidence = errors.New("no evidence about the server")

// IsFailure reports whether a result is a failure of the server.
func IsFailure(result error) bool { return result != nil && !errors.Is(result, ErrNoEvidence) }

// Config is the configuration of a Breaker. All fields are required.
type Config struct {
	Server  string // its kind, such as "redis", in errors and logs
	Address string // in logs
	Logger  *slog.Logger

	// Probe tests once, on a new connection, that the server does the work of calls, such as a
	// write. It returns nil if the server works, ErrNoEvidence if it may work, or the failure.
	// Before it returns nil it closes older connections that no longer work, since calls use them
	// at once. It may outlast Life. There is one at a time.
	Probe func() error
	// IsDecisive reports whether a call's failure is the result of a new connection, such as a
	// refused one, so that it opens the breaker without a probe.
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
	config Config
	is     error // the error of calls while it is open, without the server's failure

	open    atomic.Bool
	down    atomic.Pointer[error] // the error of calls while it is open
	stopped atomic.Bool

	mu      sync.Mutex
	latest  *probe    // in flight, or the last one
	probing bool      // the goroutine that probes is running
	doubted time.Time // the latest time for which a newer probe was asked
}

// New returns a closed breaker.
func New(config Config) *Breaker { return &Breaker{config: config, is: openError{config.Server}} }

// openError is matched by the errors of calls that a breaker has refused.
type openError struct{ server string }

func (e openError) Error() string {
	return store.ErrUnavailable.Error() + ": the circuit breaker of " + e.server + " is open"
}

func (openError) Unwrap() error { return store.ErrUnavailable }

// Refused reports whether an error is that of a call that an open breaker has refused.
func Refused(err error) bool { return errors.As(err, new(openError)) }

// IsOpen reports whether the breaker is open.
func (b *Breaker) IsOpen() bool { return b.open.Load() }

// Err returns the error of calls while the breaker is open.
func (b *Breaker) Err() error {
	if down := b.down.Load(); down != nil {
		return *down
	}
	return b.is
}

// Stop ends the probes of a server that is no longer used, before Life ends.
func (b *Breaker) Stop() { b.stopped.Store(true) }

// Call is a call that a breaker has admitted. The result of a zero Call, which was made regardless
// of the breaker, does not count.
type Call struct {
	breaker *Breaker
	began   time.Time
}

// Refuses returns the error of a call while the breaker is open, or nil. A call that only reads is
// not refused if the server replies, and takes no writes.
func (b *Breaker) Refuses(reads bool) error {
	if !b.IsOpen() {
		return nil
	}
	down := b.Err()
	if reads && takesNoWrites(store.CauseOf(down)) {
		return nil
	}
	return down
}

func takesNoWrites(cause store.Cause) bool {
	return cause == store.ReadOnly || cause == store.Persistence || cause == store.Replication
}

// Allow admits a call, or returns the error with which the breaker refuses it.
func (b *Breaker) Allow(reads bool) (Call, error) {
	if err := b.Refuses(reads); err != nil {
		return Call{}, err
	}
	return Call{b, time.Now()}, nil
}

// End reports the result of the call: nil if the server works, ErrNoEvidence if it may work, or the
// failure. A decisive failure opens the breaker. After any other one the server is probed, if no
// probe has begun since the call.
func (c Call) End(result error) {
	b := c.breaker
	switch {
	case b == nil || !IsFailure(result):
	case b.config.IsDecisive(result):
		b.mu.Lock()
		defer b.mu.Unlock()
		b.fail(result)
		b.run()
	default:
		b.Doubt(c.began)
	}
}

// fail opens the breaker, or records another failure while it is open: a server that was
// unreachable may then refuse the password. The caller holds mu.
func (b *Breaker) fail(failure error) {
	text := failure.Error() // of package store, perhaps
	for _, known := range []error{store.ErrMisconfigured, store.ErrUnavailable} {
		text = strings.TrimPrefix(text, known.Error()+": ")
	}
	down := fmt.Errorf("%w: %w", b.is, store.WithCauseOf(b.config.Explain(failure), text))
	b.down.Store(&down)
	if !b.open.Swap(true) {
		b.config.Logger.Warn("lockkeeper: "+b.config.Server+" is down; calls fail at once until it replies",
			"cause", string(store.CauseOf(down)), "address", b.config.Address, "error", down)
	}
}

// close closes the breaker. The caller holds mu.
func (b *Breaker) close() {
	if b.open.Swap(false) {
		b.config.Logger.Info("lockkeeper: "+b.config.Server+" replies again", "address", b.config.Address)
	}
}
