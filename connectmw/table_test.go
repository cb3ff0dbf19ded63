package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/fenced"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// A server does not see which protocol it speaks: on Redis, clients speak that of connect.
func TestTable(t *testing.T) {
	t.Run("memory, Connect", func(t *testing.T) { rpctest.Run(t, framework{}) })
	for name, speaks := range map[string]connect.ClientOption{
		"Connect with JSON": connect.WithProtoJSON(), "gRPC": connect.WithGRPC(), "gRPC-Web": connect.WithGRPCWeb(),
	} {
		t.Run("memory, "+name, func(t *testing.T) { rpctest.RunOutcomes(t, framework{speaks}) })
	}
	rpctest.RunOnServers(t, framework{})
}

// framework is a rpctest.Framework on connect, whose clients speak a protocol, that of connect if
// nil.
type framework struct{ speaks connect.ClientOption }

func (framework) Traits() rpctest.Traits {
	return rpctest.Traits{
		Domain: connectmw.Domain, OK: "ok", ErrorMetadata: true,
		Unknown: []error{failure(17, "odd"), failure(4_000_000_000, "odd"), errors.New("odd")},
	}
}

func (framework) Listen(t *testing.T, s *rpctest.Service, chain ...rpctest.Interceptor) (addr string) {
	return listen(t, &service{
		make: func(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
			return thingOf(s.Make(ctx, requestOf(r)))
		},
		get: s.Get,
		watch: func(r *things.MakeRequest, stream *serverStream) error {
			return s.Watch(requestOf(r), tableServerStream{stream.ctx, stream.Send, nil, stream.ResponseTrailer})
		},
		talk: func(ctx context.Context, stream *bidiStream) error {
			return s.Talk(tableServerStream{ctx, stream.Send, stream.Receive, stream.ResponseTrailer})
		},
	}, native[connect.Interceptor](chain)...)
}

// native returns values of the table in the framework's own type.
func native[T, V any](list []V) (all []T) {
	for _, v := range list {
		all = append(all, any(v).(T))
	}
	return all
}

func requestOf(r *things.MakeRequest) *rpctest.Request {
	return &rpctest.Request{
		ID: r.GetId(), RequestID: r.GetRequestId(), Owner: r.GetOwner().GetName(), Amount: r.GetAmount(), Tags: r.GetTags(),
	}
}

func messageOf(r *rpctest.Request) *things.MakeRequest {
	m := &things.MakeRequest{Id: r.ID, RequestId: r.RequestID, Amount: r.Amount, Tags: r.Tags}
	if r.Owner != "" {
		m.Owner = &things.Owner{Name: r.Owner}
	}
	return m
}

func thingOf(thing *rpctest.Thing, err error) (*things.Thing, error) {
	if thing == nil {
		return nil, err
	}
	return &things.Thing{Id: thing.ID, Text: thing.Text}, err
}

func ofThing(m *things.Thing, err error) (*rpctest.Thing, error) {
	if err != nil {
		return nil, err
	}
	return &rpctest.Thing{ID: m.GetId(), Text: m.GetText()}, nil
}

// tableServerStream is a rpctest.ServerStream.
type tableServerStream struct {
	ctx     context.Context // that of the stream
	send    func(*things.Thing) error
	recv    func() (*things.MakeRequest, error)
	trailer func() http.Header
}

func (s tableServerStream) Context() context.Context { return s.ctx }

func (s tableServerStream) Send(thing *rpctest.Thing) error {
	m, _ := thingOf(thing, nil)
	return s.send(m)
}

func (s tableServerStream) Recv() (*rpctest.Request, error) {
	m, err := s.recv()
	return requestOf(m), err
}

func (s tableServerStream) SetTrailer(h http.Header) { maps.Copy(s.trailer(), h) }

func (f framework) Dial(t *testing.T, addr string, chain ...rpctest.ClientInterceptor) rpctest.Client {
	opts := []connect.ClientOption{connect.WithInterceptors(native[connect.Interceptor](chain)...)}
	if f.speaks != nil {
		opts = append(opts, f.speaks)
	}
	return tableClient{dialWith(t, addr, opts...)}
}

// tableClient is a rpctest.Client.
type tableClient struct{ client }

func (c tableClient) Make(ctx context.Context, r *rpctest.Request, opts ...rpctest.Option) (*rpctest.Thing, error) {
	return ofThing(c.client.Make(ctx, messageOf(r), optionsOf(opts)...))
}

func (c tableClient) Get(ctx context.Context) error {
	_, err := c.client.Get(ctx, &things.GetRequest{})
	return err
}

func (c tableClient) Watch(ctx context.Context, r *rpctest.Request, opts ...rpctest.Option) (rpctest.Stream, error) {
	w, err := c.client.Watch(ctx, messageOf(r), optionsOf(opts)...)
	return tableStream{recv: w.Recv}, err
}

func (c tableClient) Talk(ctx context.Context) (rpctest.Stream, error) {
	s, err := c.client.Talk(ctx)
	return tableStream{s.Recv, s.Send, s.CloseSend}, err
}

func optionsOf(opts []rpctest.Option) (all []option) {
	for _, o := range opts {
		all = append(all, option(o))
	}
	return all
}

// tableStream is a rpctest.Stream.
type tableStream struct {
	recv  func() (*things.Thing, error)
	send  func(*things.MakeRequest) error
	close func() error
}

func (s tableStream) Send(r *rpctest.Request) error { return s.send(messageOf(r)) }

func (s tableStream) Recv() (*rpctest.Thing, error) { return ofThing(s.recv()) }

func (s tableStream) CloseSend() error { return s.close() }

func (framework) Around(w rpctest.Wrap) rpctest.Interceptor { return around(w) }

func (framework) Answering(text string, w rpctest.Wrap) rpctest.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			err := w(ctx, func(ctx context.Context) error {
				_, err := next(ctx, req)
				return err
			})
			if err != nil {
				return nil, err
			}
			return connect.NewResponse(&things.Thing{Text: text}), nil
		}
	})
}

func (framework) AroundClient(w rpctest.Wrap) rpctest.ClientInterceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (resp connect.AnyResponse, err error) {
			err = w(ctx, func(ctx context.Context) (err error) {
				resp, err = next(ctx, req)
				return err
			})
			return resp, err
		}
	})
}

func (framework) Call(ctx context.Context, i rpctest.Interceptor, r *rpctest.Request, handler func()) error {
	_, err := i.(connect.Interceptor).WrapUnary(func(context.Context, connect.AnyRequest) (connect.AnyResponse, error) {
		handler()
		return connect.NewResponse(&things.Thing{}), nil
	})(ctx, connect.NewRequest(messageOf(r)))
	return err
}

func (framework) Sending(ctx context.Context, pairs ...string) context.Context {
	return sending(ctx, pairs...)
}

func (framework) Incoming(ctx context.Context, name string) []string { return incoming(ctx, name) }

func (framework) SetHeader(ctx context.Context, pairs ...string) { setHeader(ctx, pairs...) }

func (framework) SendHeader(ctx context.Context, pairs ...string) { setHeader(ctx, pairs...) }

func (framework) SetTrailer(ctx context.Context, pairs ...string) { setTrailer(ctx, pairs...) }

func (framework) Failure(code rpctest.Code, text string, with rpctest.Details) error {
	if code == rpctest.OK {
		return nil
	}
	err := connect.NewError(connect.Code(code), errors.New(text))
	add := func(m proto.Message) { err.AddDetail(must(connect.NewErrorDetail(m))) }
	if with.Stock != "" {
		add(&errdetails.PreconditionFailure{
			Violations: []*errdetails.PreconditionFailure_Violation{{Type: "STOCK", Subject: with.Stock}},
		})
	}
	if with.Reason != "" {
		add(&errdetails.ErrorInfo{Reason: with.Reason, Domain: with.Domain})
	}
	if with.RetryAfter != nil {
		add(&errdetails.RetryInfo{RetryDelay: durationpb.New(*with.RetryAfter)})
	}
	maps.Copy(err.Meta(), with.Meta)
	return err
}

func (framework) CodeOf(err error) rpctest.Code { return rpctest.Code(codeOf(err)) }

func (framework) DetailsOf(err error) (got rpctest.Details) {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return got
	}
	got.Message, got.Meta, got.All = failed.Message(), failed.Meta(), all(failed)
	for _, detail := range failed.Details() {
		value, _ := detail.Value()
		switch d := value.(type) {
		case *errdetails.ErrorInfo:
			got.Reason, got.Domain, got.Info = d.GetReason(), d.GetDomain(), d.GetMetadata()
		case *errdetails.RetryInfo:
			after := d.GetRetryDelay().AsDuration()
			got.RetryAfter = &after
		case *errdetails.QuotaFailure:
			for _, v := range d.GetViolations() {
				got.Quota = append(got.Quota, v.GetSubject())
			}
		case *errdetails.BadRequest:
			for _, v := range d.GetFieldViolations() {
				got.Fields = append(got.Fields, v.GetDescription())
			}
		case *errdetails.PreconditionFailure:
			got.Stock = d.GetViolations()[0].GetSubject()
		case *errdetails.Help:
			for _, l := range d.GetLinks() {
				got.Links = append(got.Links, rpctest.Link{URL: l.GetUrl(), Description: l.GetDescription()})
			}
		}
	}
	return got
}

func (framework) Prefixed(text string, err error) error {
	wrapped := connect.NewError(codeOf(err), fmt.Errorf("%s%w", text, err))
	var inner *connect.Error
	if errors.As(err, &inner) {
		for _, d := range inner.Details() {
			wrapped.AddDetail(d)
		}
	}
	return wrapped
}

func (framework) Retry(err error, _ http.Header) (time.Duration, bool) {
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return 0, false
	}
	s, err := strconv.Atoi(failed.Meta().Get("Retry-After"))
	return time.Duration(s) * time.Second, err == nil
}

func (framework) DenialOf(err error) (policy.Denial, bool) { return connectmw.DenialOf(err) }

func (framework) RateLimit(l *tokenbucket.Limiter, by rpctest.Key, opts ...policy.RPCRateLimitOption) rpctest.Interceptor {
	return ratelimit.New(l, by.(connectmw.KeyFunc), opts...)
}

func (framework) Idempotency(g *guard.Guard, of rpctest.Scope, opts ...policy.RPCIdempotencyOption) rpctest.Interceptor {
	return idempotency.New(g, of.(connectmw.ScopeFunc), opts...)
}

func (framework) Exclusive(l *lock.Locker, by rpctest.Key, opts ...policy.ExclusiveOption) rpctest.Interceptor {
	return exclusive.New(l, by.(connectmw.KeyFunc), opts...)
}

func (framework) Concurrency(s *semaphore.Semaphore, by rpctest.Key, opts ...policy.ConcurrencyOption) rpctest.Interceptor {
	return concurrency.New(s, by.(connectmw.KeyFunc), opts...)
}

func (framework) Fenced(c fence.Checker, by rpctest.Key, opts ...policy.FencedOption) rpctest.Interceptor {
	return fenced.New(c, by.(connectmw.KeyFunc), opts...)
}

func (framework) RateLimitClient(l *tokenbucket.Limiter, by rpctest.Key, opts ...policy.RPCClientOption) rpctest.ClientInterceptor {
	return ratelimit.NewClient(l, by.(connectmw.KeyFunc), opts...)
}

func (framework) IdempotencyClient() rpctest.ClientInterceptor { return idempotency.NewClient() }

func (framework) FencedClient() rpctest.ClientInterceptor { return fenced.NewClient() }

// tableCall is a rpctest.Call.
type tableCall struct{ *connectmw.Call }

func (c tableCall) Method() string { return c.Spec().Procedure }

func (c tableCall) Request() (*rpctest.Request, error) {
	m, err := c.Call.Request()
	if err != nil {
		return nil, err
	}
	return requestOf(m.(*things.MakeRequest)), nil
}

func (framework) Unless(skip func(rpctest.Call) bool) setting.RPCOption {
	return connectmw.Unless(func(call *connectmw.Call) bool { return skip(tableCall{call}) })
}

func (framework) UnlessFrom(network netip.Prefix) setting.RPCOption {
	return connectmw.Unless(connectmw.ClientIn(clientip.Direct(), network))
}

func (framework) OnDeny(deny func(rpctest.Call, policy.Denial) error) setting.RPCOption {
	return connectmw.OnDeny(func(call *connectmw.Call, d policy.Denial) error { return deny(tableCall{call}, d) })
}

func (framework) OnError(report func(rpctest.Call, error)) setting.RPCOption {
	return connectmw.OnError(func(call *connectmw.Call, err error) { report(tableCall{call}, err) })
}

func (framework) Costs(cost tokenbucket.Cost) policy.RPCRateLimitOption {
	return ratelimit.Costs(func(*connectmw.Call) tokenbucket.Cost { return cost })
}

func (framework) ChargeCodes(list ...rpctest.Code) policy.RPCRateLimitOption {
	return ratelimit.ChargeCodes(codesOf(list)...)
}

func codesOf(list []rpctest.Code) (all []connect.Code) {
	for _, code := range list {
		all = append(all, connect.Code(code))
	}
	return all
}

func (framework) PerMessage() policy.RPCRateLimitOption { return ratelimit.PerMessage() }

func (framework) Tiers(tier func(rpctest.Call) policy.Tier) policy.ConcurrencyOption {
	return concurrency.Tiers(func(call *connectmw.Call) policy.Tier { return tier(tableCall{call}) })
}

func (framework) KeyField(name string) policy.RPCIdempotencyOption { return idempotency.KeyField(name) }

func (framework) KeyFrom(key rpctest.Key) policy.RPCIdempotencyOption {
	return idempotency.KeyFrom(key.(connectmw.KeyFunc))
}

func (framework) Fingerprint(f func(rpctest.Call) ([]byte, error)) policy.RPCIdempotencyOption {
	return idempotency.Fingerprint(func(call *connectmw.Call) ([]byte, error) { return f(tableCall{call}) })
}

func (framework) KeepCodes(list ...rpctest.Code) policy.RPCIdempotencyOption {
	return idempotency.KeepCodes(codesOf(list)...)
}

func (framework) ReleaseCodes(list ...rpctest.Code) policy.RPCIdempotencyOption {
	return idempotency.ReleaseCodes(codesOf(list)...)
}

func (framework) PassStreams() policy.RPCIdempotencyOption { return idempotency.PassStreams() }

func (framework) WithKey(ctx context.Context, key string) context.Context {
	return sending(ctx, "Idempotency-Key", idempotency.Key(key))
}

func (framework) Answer(thing *rpctest.Thing) (guard.Result, error) {
	m, _ := thingOf(thing, nil)
	return idempotency.Answer(m, nil)
}

func (framework) ByField(path string) rpctest.Key    { return connectmw.ByField(path) }
func (framework) ByContext(key any) rpctest.Key      { return connectmw.ByContext(key) }
func (framework) ByMetadata(name string) rpctest.Key { return connectmw.ByHeader(name) }
func (framework) ByPeer() rpctest.Key                { return connectmw.ByPeer() }
func (framework) ByMethod() rpctest.Key              { return connectmw.ByProcedure() }
func (framework) Global() rpctest.Key                { return connectmw.Global() }
func (framework) ScopeBy(key rpctest.Key) rpctest.Scope {
	return connectmw.ScopeBy(key.(connectmw.KeyFunc))
}
func (framework) Unscoped() rpctest.Scope { return connectmw.Unscoped() }

func (framework) FirstOf(choices ...rpctest.Key) rpctest.Key {
	return connectmw.FirstOf(native[connectmw.KeyFunc](choices)...)
}

func (framework) KeyOf(key func(rpctest.Call) (string, error)) rpctest.Key {
	return connectmw.KeyFunc(func(call *connectmw.Call) (string, error) { return key(tableCall{call}) })
}
