// Package rpctest is the table of behaviour that the interceptors of gRPC and of connect-go have in
// common: what a client of each policy sees, over a real server. A framework implements [Framework]
// and calls [Run], and [RunOn] for its protocols and for stores on a server.
//
// It is beside package mwtest, the table of the HTTP frameworks, since calls have streams, codes
// and details, and no status or body. It imports neither framework, nor their messages.
package rpctest

import (
	"context"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// The framework's own types.
type (
	// Interceptor is an interceptor of handlers.
	Interceptor any
	// ClientInterceptor is an interceptor of clients.
	ClientInterceptor any
	// Key is a KeyFunc.
	Key any
	// Scope is a ScopeFunc.
	Scope any
)

// Wrap is the work of an interceptor of the application: it calls call, or not.
type Wrap = func(ctx context.Context, call func(context.Context) error) error

// Framework builds servers, clients and interceptors.
type Framework interface {
	// Traits returns in what the framework differs from the other one.
	Traits() Traits
	// Listen starts a server of a service, behind an interceptor that recovers from panics with the
	// code Internal and puts the metadata x-user into the context under [UserKey]{}, and behind a
	// chain.
	Listen(t *testing.T, s *Service, chain ...Interceptor) (addr string)
	Dial(t *testing.T, addr string, chain ...ClientInterceptor) Client

	// Around is an interceptor of the application, for unary calls and streams; Answering one of unary
	// calls that answers with a text; AroundClient one for the unary calls of a client.
	Around(Wrap) Interceptor
	Answering(text string, w Wrap) Interceptor
	AroundClient(Wrap) ClientInterceptor
	// Call calls a handler of unary calls behind an interceptor, without a server.
	Call(ctx context.Context, i Interceptor, r *Request, handler func()) error

	// Sending returns a context whose calls have metadata: name, value, name, value.
	Sending(ctx context.Context, pairs ...string) context.Context
	// Incoming returns the metadata of a handler's call.
	Incoming(ctx context.Context, name string) []string
	SetHeader(ctx context.Context, pairs ...string)
	// SendHeader sends the header at once where that can be, and is SetHeader elsewhere.
	SendHeader(ctx context.Context, pairs ...string)
	SetTrailer(ctx context.Context, pairs ...string)

	// Failure returns an error with a code; nil for OK.
	Failure(code Code, text string, with Details) error
	CodeOf(err error) Code
	DetailsOf(err error) Details
	// Prefixed wraps an error, whose code and details a client still gets.
	Prefixed(text string, err error) error
	// Retry returns the delay that a refusal states in metadata.
	Retry(err error, trailer http.Header) (time.Duration, bool)
	DenialOf(err error) (policy.Denial, bool)

	RateLimit(l *tokenbucket.Limiter, by Key, opts ...policy.RPCRateLimitOption) Interceptor
	Idempotency(g *guard.Guard, of Scope, opts ...policy.RPCIdempotencyOption) Interceptor
	Exclusive(l *lock.Locker, by Key, opts ...policy.ExclusiveOption) Interceptor
	Concurrency(s *semaphore.Semaphore, by Key, opts ...policy.ConcurrencyOption) Interceptor
	Fenced(c fence.Checker, by Key, opts ...policy.FencedOption) Interceptor
	RateLimitClient(l *tokenbucket.Limiter, by Key, opts ...policy.RPCClientOption) ClientInterceptor
	IdempotencyClient() ClientInterceptor
	FencedClient() ClientInterceptor

	Unless(func(Call) bool) setting.RPCOption
	UnlessFrom(network netip.Prefix) setting.RPCOption
	OnDeny(func(Call, policy.Denial) error) setting.RPCOption
	OnError(func(Call, error)) setting.RPCOption
	Costs(tokenbucket.Cost) policy.RPCRateLimitOption
	ChargeCodes(...Code) policy.RPCRateLimitOption
	PerMessage() policy.RPCRateLimitOption
	Tiers(func(Call) policy.Tier) policy.ConcurrencyOption
	KeyField(name string) policy.RPCIdempotencyOption
	KeyFrom(Key) policy.RPCIdempotencyOption
	Fingerprint(func(Call) ([]byte, error)) policy.RPCIdempotencyOption
	KeepCodes(...Code) policy.RPCIdempotencyOption
	ReleaseCodes(...Code) policy.RPCIdempotencyOption
	PassStreams() policy.RPCIdempotencyOption
	// WithKey returns a context whose call has an idempotency key.
	WithKey(ctx context.Context, key string) context.Context
	Answer(*Thing) (guard.Result, error)

	ByField(path string) Key
	ByContext(key any) Key
	ByMetadata(name string) Key
	ByPeer() Key
	ByMethod() Key
	Global() Key
	FirstOf(...Key) Key
	KeyOf(func(Call) (string, error)) Key // a KeyFunc of the application
	ScopeBy(Key) Scope
	Unscoped() Scope
}

// Traits are what a table cannot have in common.
type Traits struct {
	Domain string // that of the ErrorInfo of refusals
	OK     string // the name of the code 0
	// ErrorMetadata is whether an error has metadata of its own.
	ErrorMetadata bool
	// DateMetadata is whether Retry-After may be a date by the metadata "date".
	DateMetadata bool
	// Binary is the name of metadata with any bytes, empty if the framework has none.
	Binary string
	// Unknown are errors of handlers with codes that no client knows, and the text "odd".
	Unknown []error
}

// UserKey is the context's key of the user.
type UserKey struct{}

// Call is a call as options and key functions get it.
type Call interface {
	Context() context.Context
	Method() string // in full
	Request() (*Request, error)
}

// Request is a request's message.
type Request struct {
	ID, RequestID, Owner string
	Amount               int64
	Tags                 []string
}

// Thing is an answer's message.
type Thing struct{ ID, Text string }

// text is the text of a thing, which may be nil.
func (t *Thing) text() string {
	if t == nil {
		return ""
	}
	return t.Text
}

// Client calls a service.
type Client interface {
	Make(ctx context.Context, r *Request, opts ...Option) (*Thing, error)
	// Get calls the method without side effects.
	Get(ctx context.Context) error
	Watch(ctx context.Context, r *Request, opts ...Option) (Stream, error)
	Talk(ctx context.Context) (Stream, error)
}

// Option gets the metadata of an answer when that has ended. The metadata of an error may be in
// either of them.
type Option func(header, trailer http.Header)

func intoHeader(h *http.Header) Option { return func(header, _ http.Header) { *h = header } }

func intoTrailer(h *http.Header) Option { return func(_, trailer http.Header) { *h = trailer } }

// Stream is a stream of a client. Recv returns io.EOF at its end.
type Stream interface {
	Send(*Request) error
	Recv() (*Thing, error)
	CloseSend() error
}

// ServerStream is a stream of a handler.
type ServerStream interface {
	Context() context.Context
	Recv() (*Request, error)
	Send(*Thing) error
	SetTrailer(http.Header)
}

// Code is a code of gRPC, which are those of connect too.
type Code uint32

// The codes.
const (
	OK Code = iota
	Canceled
	Unknown
	InvalidArgument
	DeadlineExceeded
	NotFound
	AlreadyExists
	PermissionDenied
	ResourceExhausted
	FailedPrecondition
	Aborted
	OutOfRange
	Unimplemented
	Internal
	Unavailable
	DataLoss
	Unauthenticated
)

// Details are what a client gets with an error.
type Details struct {
	Message        string
	Reason, Domain string            // of ErrorInfo
	Info           map[string]string // its metadata
	RetryAfter     *time.Duration    // RetryInfo, nil for none
	Quota          []string          // the subjects of QuotaFailure
	Fields         []string          // the descriptions of BadRequest
	Stock          string            // the subject of PreconditionFailure
	Links          []Link            // of Help
	Meta           http.Header       // of an error that has it
	All            string            // all of it
}

// Link is one of a Help.
type Link struct{ URL, Description string }

// retryAfter is the delay of RetryInfo, zero for none.
func (d Details) retryAfter() time.Duration {
	if d.RetryAfter == nil {
		return 0
	}
	return *d.RetryAfter
}
