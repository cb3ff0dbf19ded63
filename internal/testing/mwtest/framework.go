// Package mwtest is the table of behaviour that every framework has in common: the answers to a
// client of each policy, over a real server. A framework implements [Framework] and calls [Run].
//
// A row must hold in every framework on every store. That is proven for a sum of them, not for
// their product:
//
//   - every framework runs every row, with stores in memory ([Run]), but for the ones that it names
//     as impossible ([Excepting]);
//   - every store runs every case of package storetest, which is all that the mechanisms require of it;
//   - net/http runs the rows about what a client is answered on every kind of server ([RunOnServers],
//     [RunOn] for PostgreSQL, and [RunLeases] for etcd and ZooKeeper, which have locks and permits
//     alone), and grpcmw and connectmw do so with the table of package rpctest;
//   - gin, echo v4 and v5, and fiber run on Redis the rows in which a request waits for its store, or
//     ends before the store replies ([RunWaits]).
//
// That is enough since a framework does not meet a store. The middleware of all HTTP frameworks is
// one set of generic functions, in package httpmw, which call the mechanisms; the difference is an
// httpmw.Adapter, which is given requests, headers, writers and denials, but never a store, its
// replies or its errors. So a row about decisions that passes with net/http on a store, and with
// gin in memory, runs no line of code with gin on that store which it did not run in one of the
// two. An adapter and a store share only time: a store on a server replies later, in another
// goroutine, and gives up when its context ends, while the framework ends the request's context,
// reuses its own and closes the writer. The rows of [RunWaits] are those in which that matters.
package mwtest

import (
	"net/http"
	"net/netip"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Path is the route of every server of the table, for POST and GET. Its parameter is "id".
const Path = "/things/"

// Framework builds servers.
type Framework interface {
	// Serve returns a server's handler in which requests to Path + id run the handler behind the
	// middleware, of which the first is the outermost. It recovers from panics with status 500.
	Serve(handler http.HandlerFunc, middleware ...Middleware) http.Handler
}

// Excepting is a Framework in which some rows cannot hold, whatever its middleware does.
type Excepting interface {
	// Exceptions returns why, by the rows' group and name: "leaving/a client that disconnects …". The
	// framework's own tests show it. The map is the caller's.
	Exceptions() map[string]string
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

// Native is middleware in the framework's own type.
type Native struct {
	Of any
	Hooks
}

// Natively is a Framework whose handlers and middleware can end requests in ways that net/http has
// not.
type Natively interface {
	// Around returns middleware of the framework's, or of its documentation, that end requests:
	// timeouts, recovery, and what renders errors.
	Around() map[string]any
	// Ends returns middleware that end a request as its handler would.
	Ends() map[string]any
}

// Set is middleware of the application's, which puts the value of a header field into the
// framework's own context under a name.
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
	Tiers     func(*http.Request) policy.Tier // nil for none
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
