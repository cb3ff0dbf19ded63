package guard

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/telemetry"
	"github.com/lockkeeper/lockkeeper/internal/base/textlist"
)

// ScopeName is the instrumentation scope of a guard's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/guard"

// Option is an optional setting of [New].
type Option func(*config)

type config struct {
	ttl       time.Duration
	retention time.Duration
	maxResult int

	maxPerScope, maxScopeBytes int

	rerun     bool
	reconcile func(context.Context, Record) (Resolution, error)
	holder    string
	secret    []byte
	seal      []SealKey
	providers telemetry.Providers
	logger    *slog.Logger
}

func defaults() config {
	return config{
		ttl: 30 * time.Second, retention: 24 * time.Hour, maxResult: 256 << 10,
		maxPerScope: 100_000, maxScopeBytes: 160 << 20, holder: naming.Process(), seal: []SealKey{Unsealed()}, logger: slog.Default(),
	}
}

const (
	minRetention, maxRetention = time.Second, 366 * 24 * time.Hour
	maxHolder                  = 256 // bytes
)

func (c config) check() error {
	switch {
	case c.ttl < 10*time.Millisecond || c.ttl > 24*time.Hour:
		return fmt.Errorf("guard: New: a lease of %v is not between 10ms and 24h", c.ttl)
	case c.retention < minRetention || c.retention > maxRetention:
		return fmt.Errorf("guard: New: a retention of %v is not between 1s and 366 days", c.retention)
	case c.retention < c.ttl:
		return fmt.Errorf("guard: New: a retention of %v is shorter than the lease of %v", c.retention, c.ttl)
	case c.maxResult < 0 || c.maxResult > 16<<20:
		return fmt.Errorf("guard: New: a maximum result of %d bytes is not between 0 and 16 MiB", c.maxResult)
	case c.maxPerScope < 1 || c.maxPerScope > 1<<20:
		return fmt.Errorf("guard: New: a maximum of %d records per scope is not between 1 and 1,048,576", c.maxPerScope)
	case c.maxScopeBytes < 1 || c.maxScopeBytes > 1<<30:
		return fmt.Errorf("guard: New: a maximum of %d bytes of results per scope is not between 1 and 1 GiB", c.maxScopeBytes)
	case len(c.holder) > maxHolder:
		return fmt.Errorf("guard: New: a holder of %d bytes, at most %d are allowed", len(c.holder), maxHolder)
	case c.rerun && c.reconcile != nil:
		return errors.New("guard: New: WithRerun and WithReconcile: an operation that may run again needs no reconciliation")
	}
	return nil
}

// settings returns the settings that guards with the same name must have in common.
func (c config) settings() namesake.Settings {
	seal, keys := identity(c.seal)
	text := fmt.Sprintf("lease=%v retention=%v max_result=%d rerun=%t reconcile=%t secret=%t seal=%s",
		c.ttl, c.retention, c.maxResult, c.rerun, c.reconcile != nil, len(c.secret) > 0, seal)
	return namesake.Settings{Text: text, Secret: string(textlist.Append([]byte(keys), string(c.secret)))}
}

// WithTTL sets the length of an attempt's lease, which is how long after its last renewal an
// attempt counts as alive: 30 s by default, 10 ms to 24 h. It is renewed at a third of it while the
// attempt runs, so it can be shorter than the attempt.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithRetention sets how long a record is kept after its last change: 24 h by default, 1 s to 366
// days and no less than the lease. After it, the same key is a new operation.
func WithRetention(d time.Duration) Option { return func(c *config) { c.retention = d } }

// WithMaxResult sets the maximum size of the Data of a [Result], in bytes: 256 KiB by default, at
// most 16 MiB. A larger one is settled as not retained: the operation is not run again, but its
// result is not available. So is a larger one that a guard with another maximum has kept.
//
// The size is that before compression: Data above 1 KiB is kept deflated if that makes it smaller.
func WithMaxResult(bytes int) Option { return func(c *config) { c.maxResult = bytes } }

// WithMaxPerScope limits the records of a scope at a time: 100,000 by default, 1 to 1,048,576. A new
// operation beyond it is refused with a *[ScopeFullError], even if the store has room, so that one
// subject cannot use the room of others. Operations that have a record are not affected, and those
// without a scope are not limited. The guard logs once an hour that a scope has 80 % of its records,
// and that it refuses new ones.
//
// With a retention of 24 h, 100,000 records are 69 operations a minute, all day: enough for a scope
// that stands for many users, such as a tenant. A record takes about half a KiB without its result.
// So a full scope takes 50 MiB, and five of them all that a memory store has by default: where
// scopes are single users, a limit of some thousand protects a small store better.
func WithMaxPerScope(records int) Option { return func(c *config) { c.maxPerScope = records } }

// WithMaxScopeBytes limits the Data of a scope's results at a time, as the store keeps it, in bytes:
// 160 MiB by default, 1.6 KiB for each of the records that [WithMaxPerScope] allows by default; 1 byte
// to 1 GiB. An operation beyond it runs, and is settled as not retained: later calls of Begin return
// a *[NotRetainedError], and the operation does not run again. Without a scope there is no limit. A
// memory store without room drops results of the scope that has most of them.
func WithMaxScopeBytes(bytes int) Option { return func(c *config) { c.maxScopeBytes = bytes } }

// WithRerun allows the operation to run again after an attempt with an unknown outcome: because it
// has no effects, or because what it calls recognises repeats. Without it, Begin returns
// [ErrOutcomeUnknown] for such an operation until its record expires.
func WithRerun() Option { return func(c *config) { c.rerun = true } }

// WithReconcile sets the function that determines an unknown outcome. Begin calls f for an operation
// whose outcome is unknown; f queries the service that the operation has called, by the operation's ID
// or the DownstreamKey that was sent to it. Its resolution settles the operation, as [Guard.Resolve]
// does, and Begin returns the result, or an attempt.
//
// The guard calls f under a lease of the operation, which is renewed while f runs: other requests are
// refused or wait, as while an attempt is in flight. The context of f ends with the request's, and when
// the lease is lost. If f returns an error, or no resolution, or panics, the outcome stays unknown, and
// the next request calls f again; the panic propagates. A result larger than [WithMaxResult] is not
// retained. New refuses WithReconcile together with [WithRerun].
func WithReconcile(f func(context.Context, Record) (Resolution, error)) Option {
	return func(c *config) { c.reconcile = f }
}

// WithHolder sets what a [Record] says of who made an attempt, at most 256 bytes. The default is the
// host's name and the process ID.
func WithHolder(text string) Option { return func(c *config) { c.holder = text } }

// WithSecret derives the names of records by HMAC with this secret, so that a reader of the store
// cannot test guesses of keys. All processes of a guard need the same secret. Changing it makes all
// existing records unreachable.
func WithSecret(secret []byte) Option {
	return func(c *config) { c.secret = append([]byte(nil), secret...) }
}

// WithSeal encrypts what the guard keeps of results and of steps with AES-GCM. The first key seals,
// and all of them open. All processes of a guard need the same keys. Names of steps, statuses, sizes
// and times stay readable.
//
// A result opens only where it was sealed: in the record of its operation, with its status; and a
// step only as that step of its operation. One that was changed or copied to another record, or
// whose key the guard does not have, is logged as a damaged record. Such a result counts as not
// retained: Begin returns a *[NotRetainedError], and the operation does not run again. An attempt
// that would take over from one with such a step is refused with an *[UnknownError].
//
// Data that is not sealed counts as damaged too, since a client that can write to the store could
// forge it, unless [Unsealed] is in the list. So the change to sealed records takes two steps in
// which processes with the old and the new list run side by side, and a third that ends it, one
// [WithRetention] later:
//
//	guard.WithSeal(guard.Unsealed(), k1) // every process can open k1, and none seals with it
//	guard.WithSeal(k1, guard.Unsealed())
//	guard.WithSeal(k1)
//
// A key is replaced in the same way: WithSeal(k1, k2), WithSeal(k2, k1), and WithSeal(k2) one
// retention later. Replace it before it has sealed 2^32 results and steps, which takes 49 days at
// 1,000 a second: its nonces are random, and beyond that two may be the same.
//
// New returns an error if there is no key, if one has a wrong length, if two have the same ID, or if
// an ID is empty or longer than 64 bytes.
func WithSeal(keys ...SealKey) Option {
	keys = clone(keys)
	return func(c *config) { c.seal = keys }
}

// WithMeterProvider sets the provider of the guard's metrics. The default, also for nil, is the
// global one.
func WithMeterProvider(p metric.MeterProvider) Option {
	return func(c *config) { c.providers.Meter = p }
}

// WithTracerProvider sets the provider of the guard's spans. The default, also for nil, is the
// global one.
func WithTracerProvider(p trace.TracerProvider) Option {
	return func(c *config) { c.providers.Tracer = p }
}

// WithLogger sets the logger for failing renewals, lost attempts, unconfirmed completions, damaged
// records, scopes that are full, or nearly, and unknown outcomes that are resolved or not found out:
// slog.Default() by default. Keys and scopes are never logged; of a full scope there is its digest.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.logger = cmp.Or(l, c.logger) }
}
