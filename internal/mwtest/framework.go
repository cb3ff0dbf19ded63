// Package mwtest is the table of behaviour that every framework has in common: the answers to a client
// of each policy, over a real server. A framework implements [Framework] and calls [Run].
package mwtest

import (
	"net/http"
	"net/netip"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// Path is the route of every server of the table, for POST and GET. Its parameter is "id".
const Path = "/things/"

// Framework builds servers.
type Framework interface {
	// Serve returns a server's handler in which requests to Path + id run the handler behind the
	// middleware, of which the first is the outermost. It recovers from panics with status 500.
	Serve(handler http.HandlerFunc, middleware ...Middleware) http.Handler
}

// Middleware describes a middleware for the framework to build: a RateLimit, an Idempotency, an
// Exclusive, a Concurrency or a Fenced; a Usage, or a Set.
type Middleware interface{ hooks() Hooks }

// Hooks are options in the framework's types.
type Hooks struct {
	// Skip is for Unless; nil for none.
	Skip func(*http.Request) bool
	// Deny answers denials with another status and body; nil for none.
	Deny func(policy.Denial) (status int, body string)
	// Networks are for Unless with ClientIn; nil for none.
	Networks []netip.Prefix
	// Report is for OnError, or is called with the errors that the framework records; nil for none.
	Report func(error)
}

func (h Hooks) hooks() Hooks { return h }

// HooksOf returns the hooks of a middleware.
func HooksOf(m Middleware) Hooks { return m.hooks() }

// RateLimit is ratelimit.New.
type RateLimit struct {
	Limiter *tokenbucket.Limiter
	By      Key
	Costs   func(*http.Request) tokenbucket.Cost // nil for none
	Options []policy.RateLimitOption
	Hooks
}

// Usage is ratelimit.Usage, which answers all requests.
type Usage struct {
	Limiter *tokenbucket.Limiter
	By      Key
	Hooks
}

// Set is middleware of the application's, which puts the value of a header field into the framework's
// own context under a name.
type Set struct {
	Name, Field string
	Hooks
}

// Idempotency is idempotency.New, with ScopeBy(By), or Unscoped() for the zero Key.
type Idempotency struct {
	Guard   *guard.Guard
	By      Key
	KeyFrom Key // for KeyFrom; the zero Key for none
	Options []policy.IdempotencyOption
	Hooks
}

// Exclusive is exclusive.New.
type Exclusive struct {
	Locker  *lock.Locker
	By      Key
	Options []policy.ExclusiveOption
	Hooks
}

// Concurrency is concurrency.New.
type Concurrency struct {
	Semaphore *semaphore.Semaphore
	By        Key
	Options   []policy.ConcurrencyOption
	Hooks
}

// Key describes the key or the scope of requests.
type Key struct {
	Kind KeyKind
	Name string // of the header field, the parameter, or the context's value
	Err  error  // of a Failing one
}

// KeyKind is a builder of the framework.
type KeyKind int

// The builders of every framework.
const (
	None     KeyKind = iota
	ByHeader         // ByHeader(Name)
	ByID             // the parameter Name of the route, which has "id"
	ByContext
	ByClientIP
	Global
	InBody  // a function that returns EventID of the request
	Failing // a function that returns Err
)

// contextKey is a key of the request's context.
type contextKey string

// ContextKey is the context key of a ByContext key.
func (k Key) ContextKey() any { return contextKey(k.Name) }

// Run runs the table, with stores in memory.
func Run(t *testing.T, f Framework) {
	runOutcomes(t, f)
	t.Run("answers", func(t *testing.T) { runAll(t, f, answerRows) })
	t.Run("holds", func(t *testing.T) { runAll(t, f, slices.Concat(holdRows, timeRows)) })
	t.Run("leaving", func(t *testing.T) { runAll(t, f, leavingRows) })
	t.Run("refused", func(t *testing.T) { runAll(t, f, refusedRows) })
	t.Run("through", func(t *testing.T) { runAll(t, f, throughRows()) })
	t.Run("cost", func(t *testing.T) { runAll(t, f, costRows) })
}

// RunOnServers runs the rows about what a client is answered on each kind of server, but for those with
// faked time. It must not run at the same time as another Run.
func RunOnServers(t *testing.T, f Framework) {
	for name, start := range redistest.Servers {
		t.Run(name, func(t *testing.T) {
			if raced && name == "miniredis" {
				t.Skip("takes long with the race detector, which sees the same on Redis")
			}
			client := start(t)
			RunOn(t, f, func(t *testing.T) func() store.Store { return onRedis(t, client) })
		})
	}
}

// RunOn is RunOnServers on another kind of server, for the groups of rows with these names, or all.
// open returns what opens stores that share a new state, and closes them when the test ends.
func RunOn(t *testing.T, f Framework, open func(t *testing.T) func() store.Store, groups ...string) {
	openStore, onServer = open, true
	defer func() { openStore, onServer = inMemory, false }()
	runOutcomes(t, f, groups...)
}

// outcomes are the groups of rows about what a client is answered.
func outcomes() []group {
	return []group{
		{"ratelimit", rows(rateLimitRows)},
		{"usage", rows(usageRows)},
		{"shadow", rows(shadowRows)},
		{"settled", rows(slices.Concat(settledRows, attemptRows, heldKeyRows))},
		{"idempotency", rows(idempotencyRows)},
		{"requests", rows(requestRows)},
		{"exclusive", rows(exclusiveRows)},
		{"concurrency", rows(concurrencyRows)},
		{"fenced", rows(fencedRows)},
		{"repeats", rows(repeatRows)},
		{"twins", func(t *testing.T, f Framework) { runTwins(t, f, openStore) }},
		{"dedupe", rows(slices.Concat(turnRows, dedupeRows))},
		{"guards", rows(guardRows)},
		{"kept", rows(keptRows)},
		{"outages", rows(outageRows)},
		{"silences", rows(silenceRows)},
		{"denials", rows(denialRows)},
		{"order", rows(orderRows)},
		{"provided", rows(providedRows)},
		{"statuses", rows(statusRows)},
		{"together", rows(jointRows)},
	}
}

// group is a part of the table.
type group struct {
	name string
	run  func(*testing.T, Framework)
}

func rows(all []row) func(*testing.T, Framework) {
	return func(t *testing.T, f Framework) { runAll(t, f, all) }
}

// runOutcomes runs groups of rows, or all if none is named.
func runOutcomes(t *testing.T, f Framework, names ...string) {
	for _, g := range outcomes() {
		if len(names) == 0 || slices.Contains(names, g.name) {
			t.Run(g.name, func(t *testing.T) { g.run(t, f) })
		}
	}
}

// row is one row of the table.
type row struct {
	name string
	test func(*testing.T, Framework)
}

func runAll(t *testing.T, f Framework, rows []row) {
	for _, r := range rows {
		t.Run(r.name, func(t *testing.T) { r.test(t, f) })
	}
}
