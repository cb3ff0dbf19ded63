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
	"github.com/lockkeeper/lockkeeper/internal/base/textlist"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
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

// WithTTL sets the length of an attempt's lease, for which an attempt counts as alive after its
// last renewal: 30 s by default, 10 ms to 24 h. It is renewed at a third of it while the attempt
// runs, so it can be shorter than the attempt.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithRetention sets how long a record is kept after its last change: 24 h by default, 1 s to 366
// days and no less than the lease. After it, the same key is a new operation.
func WithRetention(d time.Duration) Option { return func(c *config) { c.retention = d } }

// WithMaxResult sets the maximum size of the Data of a [Result], in bytes: 256 KiB by default, at
// most 16 MiB. A larger one is settled as not retained: the operation does not run again, but its
// result is not available. The same holds for a larger one in the store, from a guard with another
// maximum.
//
// Data above 1 KiB is kept deflated if that makes it smaller. The maximum applies to the size
// before compression.
func WithMaxResult(bytes int) Option { return func(c *config) { c.maxResult = bytes } }

// WithMaxPerScope limits the records of a scope at a time: 100,000 by default, 1 to 1,048,576. A
// new operation beyond it is refused with a *[ScopeFullError], even if the store has room, so that
// one subject cannot use the room of others. The limit does not affect operations that have a
// record, nor operations without a scope. The guard logs, once an hour, a scope that has 80 % of
// its records, and a scope whose new operations it refuses.
//
// With a retention of 24 h, 100,000 records are 69 operations a minute, all day: enough for a scope
// that stands for many users, such as a tenant. A record takes about half a KiB without its result.
// So a full scope takes 50 MiB, and five of them use a memory store's default room. For scopes that
// are single users, a limit of some thousand protects a small store better.
func WithMaxPerScope(records int) Option { return func(c *config) { c.maxPerScope = records } }

// WithMaxScopeBytes limits the Data of a scope's results at a time, in the size that the store
// keeps: 160 MiB by default, which is 1.6 KiB for each of the default records of [WithMaxPerScope];
// 1 byte to 1 GiB. An operation beyond it runs, and is settled as not retained: later calls of
// Begin return a *[NotRetainedError], and the operation does not run again. Without a scope there
// is no limit. A memory store without room drops results of the scope that has most of them.
func WithMaxScopeBytes(bytes int) Option { return func(c *config) { c.maxScopeBytes = bytes } }

// WithRerun allows the operation to run again after an attempt with an unknown outcome. It is for
// operations without effects, and for those whose downstream services recognise repeats. Without
// it, Begin returns [ErrOutcomeUnknown] for such an operation until its record expires.
func WithRerun() Option { return func(c *config) { c.rerun = true } }

// WithReconcile sets the function that determines an unknown outcome. Begin calls f for an
// operation of unknown outcome. f queries the service that the operation has called, by the
// operation's ID or the DownstreamKey that was sent to it. Its resolution settles the operation, as
// [Guard.Resolve] does, and Begin returns the result, or an attempt.
//
// The guard calls f under a lease of the operation, which is renewed while f runs: other requests
// are refused or wait, as while an attempt is in flight. The context of f ends with the request's,
// and when the lease is lost. If f returns an error, or no resolution, or panics, the outcome stays
// unknown, and the next request calls f again; the panic propagates. A result larger than
// [WithMaxResult] is not retained. New refuses WithReconcile together with [WithRerun].
func WithReconcile(f func(context.Context, Record) (Resolution, error)) Option {
	return func(c *config) { c.reconcile = f }
}

// WithHolder sets the Holder of a [Record], which describes the process of an attempt: at most 256
// bytes. The default is the host's name and the process ID.
func WithHolder(text string) Option { return func(c *config) { c.holder = text } }

// WithSecret derives the names of records by HMAC with this secret, so that a reader of the store
// cannot test guesses of keys. All processes of a guard need the same secret. Changing it makes all
// existing records unreachable.
func WithSecret(secret []byte) Option {
	return func(c *config) { c.secret = append([]byte(nil), secret...) }
}

// WithSeal encrypts results and steps in the store with AES-GCM. The first key seals, and all of
// them open. All processes of a guard need the same keys. Names of steps, statuses, sizes and times
// stay readable.
//
// Sealed data opens only in its own place: a result in the record of its operation, with its
// status; a step as that step of its operation. Data that was changed or copied to another record,
// or whose key the guard does not have, is logged as a damaged record. Such a result counts as not
// retained: Begin returns a *[NotRetainedError], and the operation does not run again. An attempt
// that would take over from one with such a step is refused with an *[UnknownError].
//
// Data that is not sealed counts as damaged too unless [Unsealed] is in the list, since a client
// that can write to the store could forge it. So a guard changes to sealed records in three steps.
// Processes with the old and the new list may run side by side. The third step follows one
// [WithRetention] after the second:
//
//	guard.WithSeal(guard.Unsealed(), k1) // every process can open k1, and none seals with it
//	guard.WithSeal(k1, guard.Unsealed())
//	guard.WithSeal(k1)
//
// A key is replaced in the same way: WithSeal(k1, k2), WithSeal(k2, k1), and WithSeal(k2) one
// retention later. Replace a key before it has sealed 2^32 results and steps, which takes 49 days
// at 1,000 a second: nonces are random, and two may be the same beyond that.
//
// New returns an error if there is no key, if one has a wrong length, if two have the same ID, or
// if an ID is empty or longer than 64 bytes.
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

// WithLogger sets the logger, slog.Default() by default. The guard logs failing renewals, lost
// attempts, unconfirmed completions, damaged records, scopes that are full or nearly full, and
// unknown outcomes that are resolved or stay unknown. It never logs keys and scopes; it logs the
// digest of a full scope.
func WithLogger(l *slog.Logger) Option {
	return func(c *config) { c.logger = cmp.Or(l, c.logger) }
}
