package grpcmw_test

import (
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/concurrency"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	"github.com/lockkeeper/lockkeeper/grpcmw/fenced"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestTable(t *testing.T) { rpctest.Run(t, framework{}) }

func TestTableOnStores(t *testing.T) { rpctest.RunOnServers(t, framework{}) }

// framework is a rpctest.Framework on gRPC.
type framework struct{}

// odd is an error whose status has a code that gRPC does not know.
type odd struct{ code codes.Code }

func (o odd) Error() string { return "odd" }

func (o odd) GRPCStatus() *status.Status { return status.New(o.code, "odd") }

func (framework) Traits() rpctest.Traits {
	return rpctest.Traits{
		Domain: grpcmw.Domain, OK: "OK", DateMetadata: true, Binary: "x-bin",
		Unknown: []error{status.Error(17, "odd"), status.Error(4_000_000_000, "odd"), odd{codes.OK}, odd{99}},
	}
}

func (framework) Listen(t *testing.T, s *rpctest.Service, chain ...rpctest.Interceptor) (addr string) {
	var interceptors []grpcmw.Interceptors
	for _, i := range chain {
		interceptors = append(interceptors, i.(grpcmw.Interceptors))
	}
	return listen(t, &service{
		make: func(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
			return thingOf(s.Make(ctx, requestOf(r)))
		},
		get: s.Get,
		watch: func(r *things.MakeRequest, stream grpc.ServerStreamingServer[things.Thing]) error {
			return s.Watch(requestOf(r), serverStream{stream, stream.Send, nil})
		},
		talk: func(stream grpc.BidiStreamingServer[things.MakeRequest, things.Thing]) error {
			return s.Talk(serverStream{stream, stream.Send, stream.Recv})
		},
	}, interceptors...)
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

// serverStream is a rpctest.ServerStream.
type serverStream struct {
	grpc.ServerStream
	send func(*things.Thing) error
	recv func() (*things.MakeRequest, error)
}

func (s serverStream) Send(thing *rpctest.Thing) error {
	m, _ := thingOf(thing, nil)
	return s.send(m)
}

func (s serverStream) Recv() (*rpctest.Request, error) {
	m, err := s.recv()
	return requestOf(m), err
}

func (s serverStream) SetTrailer(h http.Header) { s.ServerStream.SetTrailer(mdOf(h)) }

func mdOf(h http.Header) metadata.MD {
	md := metadata.MD{}
	for name, values := range h {
		md.Append(name, values...)
	}
	return md
}

func headerOf(md metadata.MD) http.Header {
	h := http.Header{}
	for name, values := range md {
		h[http.CanonicalHeaderKey(name)] = values
	}
	return h
}

// clientInterceptors are a rpctest.ClientInterceptor.
type clientInterceptors struct {
	unary  grpc.UnaryClientInterceptor
	stream grpc.StreamClientInterceptor
}

func (framework) Dial(t *testing.T, addr string, chain ...rpctest.ClientInterceptor) rpctest.Client {
	var opts []grpc.DialOption
	for _, i := range chain {
		i := i.(clientInterceptors)
		opts = append(opts, grpc.WithChainUnaryInterceptor(i.unary))
		if i.stream != nil {
			opts = append(opts, grpc.WithChainStreamInterceptor(i.stream))
		}
	}
	return tableClient{dial(t, addr, opts...)}
}

// tableClient is a rpctest.Client.
type tableClient struct{ things things.ThingsClient }

func (c tableClient) Make(ctx context.Context, r *rpctest.Request, opts ...rpctest.Option) (*rpctest.Thing, error) {
	var header, trailer metadata.MD
	m, err := c.things.Make(ctx, messageOf(r), grpc.Header(&header), grpc.Trailer(&trailer))
	for _, o := range opts {
		o(headerOf(header), headerOf(trailer))
	}
	return ofThing(m, err)
}

func (c tableClient) Get(ctx context.Context) error {
	_, err := c.things.Get(ctx, &things.GetRequest{})
	return err
}

func (c tableClient) Watch(ctx context.Context, r *rpctest.Request, opts ...rpctest.Option) (rpctest.Stream, error) {
	s, err := c.things.Watch(ctx, messageOf(r))
	if err != nil {
		return nil, err
	}
	return clientStream{s, s.Recv, nil, opts}, nil
}

func (c tableClient) Talk(ctx context.Context) (rpctest.Stream, error) {
	s, err := c.things.Talk(ctx)
	if err != nil {
		return nil, err
	}
	return clientStream{s, s.Recv, s.Send, nil}, nil
}

// clientStream is a rpctest.Stream.
type clientStream struct {
	grpc.ClientStream
	recv func() (*things.Thing, error)
	send func(*things.MakeRequest) error
	opts []rpctest.Option
}

func (s clientStream) Send(r *rpctest.Request) error { return s.send(messageOf(r)) }

func (s clientStream) Recv() (*rpctest.Thing, error) {
	m, err := s.recv()
	if err != nil {
		for _, o := range s.opts {
			header, _ := s.Header()
			o(headerOf(header), headerOf(s.Trailer()))
		}
	}
	return ofThing(m, err)
}

// within is a stream with another context.
type within struct {
	grpc.ServerStream
	ctx context.Context
}

func (s within) Context() context.Context { return s.ctx }

func (framework) Around(w rpctest.Wrap) rpctest.Interceptor {
	return grpcmw.Interceptors{
		Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
			err = w(ctx, func(ctx context.Context) (err error) {
				resp, err = handler(ctx, req)
				return err
			})
			return resp, err
		},
		Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) error {
			return w(ss.Context(), func(ctx context.Context) error { return handler(srv, within{ss, ctx}) })
		},
	}
}

func (framework) Answering(text string, w rpctest.Wrap) rpctest.Interceptor {
	return grpcmw.Interceptors{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		err := w(ctx, func(ctx context.Context) error {
			_, err := handler(ctx, req)
			return err
		})
		return &things.Thing{Text: text}, err
	}}
}

func (framework) AroundClient(w rpctest.Wrap) rpctest.ClientInterceptor {
	return clientInterceptors{unary: func(
		ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption,
	) error {
		return w(ctx, func(ctx context.Context) error { return invoker(ctx, method, req, reply, cc, opts...) })
	}}
}

func (framework) Call(ctx context.Context, i rpctest.Interceptor, r *rpctest.Request, handler func()) error {
	_, err := i.(grpcmw.Interceptors).Unary(ctx, messageOf(r), &grpc.UnaryServerInfo{FullMethod: things.Things_Make_FullMethodName},
		func(context.Context, any) (any, error) {
			handler()
			return &things.Thing{}, nil
		})
	return err
}

func (framework) Sending(ctx context.Context, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

func (framework) Incoming(ctx context.Context, name string) []string {
	return metadata.ValueFromIncomingContext(ctx, name)
}

func (framework) SetHeader(ctx context.Context, pairs ...string) {
	_ = grpc.SetHeader(ctx, metadata.Pairs(pairs...))
}

func (framework) SendHeader(ctx context.Context, pairs ...string) {
	_ = grpc.SendHeader(ctx, metadata.Pairs(pairs...))
}

func (framework) SetTrailer(ctx context.Context, pairs ...string) {
	_ = grpc.SetTrailer(ctx, metadata.Pairs(pairs...))
}

func (framework) Failure(code rpctest.Code, text string, with rpctest.Details) error {
	st := status.New(codes.Code(code), text)
	if code == rpctest.OK {
		return nil
	}
	var details []protoadapt.MessageV1
	if with.Stock != "" {
		details = append(details, &errdetails.PreconditionFailure{
			Violations: []*errdetails.PreconditionFailure_Violation{{Type: "STOCK", Subject: with.Stock}},
		})
	}
	if with.Reason != "" {
		details = append(details, &errdetails.ErrorInfo{Reason: with.Reason, Domain: with.Domain})
	}
	if with.RetryAfter != nil {
		details = append(details, &errdetails.RetryInfo{RetryDelay: durationpb.New(*with.RetryAfter)})
	}
	return must(st.WithDetails(details...)).Err()
}

func (framework) CodeOf(err error) rpctest.Code { return rpctest.Code(status.Code(err)) }

func (framework) DetailsOf(err error) rpctest.Details {
	st := status.Convert(err)
	got := rpctest.Details{Message: st.Message(), All: st.String() + fmt.Sprint(st.Details())}
	for _, detail := range st.Details() {
		switch d := detail.(type) {
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

func (framework) Prefixed(text string, err error) error { return fmt.Errorf("%s%w", text, err) }

func (framework) Retry(_ error, trailer http.Header) (time.Duration, bool) {
	values := trailer["Grpc-Retry-Pushback-Ms"]
	if len(values) != 1 {
		return 0, false
	}
	ms, err := strconv.Atoi(values[0])
	return time.Duration(ms) * time.Millisecond, err == nil
}

func (framework) DenialOf(err error) (policy.Denial, bool) { return grpcmw.DenialOf(err) }

func (framework) RateLimit(l *tokenbucket.Limiter, by rpctest.Key, opts ...policy.RPCRateLimitOption) rpctest.Interceptor {
	return ratelimit.New(l, by.(grpcmw.KeyFunc), opts...)
}

func (framework) Idempotency(g *guard.Guard, of rpctest.Scope, opts ...policy.RPCIdempotencyOption) rpctest.Interceptor {
	return idempotency.New(g, of.(grpcmw.ScopeFunc), opts...)
}

func (framework) Exclusive(l *lock.Locker, by rpctest.Key, opts ...policy.ExclusiveOption) rpctest.Interceptor {
	return exclusive.New(l, by.(grpcmw.KeyFunc), opts...)
}

func (framework) Concurrency(s *semaphore.Semaphore, by rpctest.Key, opts ...policy.ConcurrencyOption) rpctest.Interceptor {
	return concurrency.New(s, by.(grpcmw.KeyFunc), opts...)
}

func (framework) Fenced(c fence.Checker, by rpctest.Key, opts ...policy.FencedOption) rpctest.Interceptor {
	return fenced.New(c, by.(grpcmw.KeyFunc), opts...)
}

func (framework) RateLimitClient(l *tokenbucket.Limiter, by rpctest.Key, opts ...policy.RPCClientOption) rpctest.ClientInterceptor {
	key := by.(grpcmw.KeyFunc)
	return clientInterceptors{ratelimit.UnaryClientInterceptor(l, key, opts...), ratelimit.StreamClientInterceptor(l, key, opts...)}
}

func (framework) IdempotencyClient() rpctest.ClientInterceptor {
	return clientInterceptors{unary: idempotency.UnaryClientInterceptor()}
}

func (framework) FencedClient() rpctest.ClientInterceptor {
	return clientInterceptors{fenced.UnaryClientInterceptor(), fenced.StreamClientInterceptor()}
}

// tableCall is a rpctest.Call.
type tableCall struct{ *grpcmw.Call }

func (c tableCall) Method() string { return c.FullMethod() }

func (c tableCall) Request() (*rpctest.Request, error) {
	m, err := c.Call.Request()
	if err != nil {
		return nil, err
	}
	return requestOf(m.(*things.MakeRequest)), nil
}

func (framework) Unless(skip func(rpctest.Call) bool) setting.RPCOption {
	return grpcmw.Unless(func(call *grpcmw.Call) bool { return skip(tableCall{call}) })
}

func (framework) UnlessFrom(network netip.Prefix) setting.RPCOption {
	return grpcmw.Unless(grpcmw.ClientIn(clientip.Direct(), network))
}

func (framework) OnDeny(deny func(rpctest.Call, policy.Denial) error) setting.RPCOption {
	return grpcmw.OnDeny(func(call *grpcmw.Call, d policy.Denial) error { return deny(tableCall{call}, d) })
}

func (framework) OnError(report func(rpctest.Call, error)) setting.RPCOption {
	return grpcmw.OnError(func(call *grpcmw.Call, err error) { report(tableCall{call}, err) })
}

func (framework) Costs(cost tokenbucket.Cost) policy.RPCRateLimitOption {
	return ratelimit.Costs(func(*grpcmw.Call) tokenbucket.Cost { return cost })
}

func (framework) ChargeCodes(list ...rpctest.Code) policy.RPCRateLimitOption {
	return ratelimit.ChargeCodes(native(list)...)
}

func native(list []rpctest.Code) (all []codes.Code) {
	for _, code := range list {
		all = append(all, codes.Code(code))
	}
	return all
}

func (framework) PerMessage() policy.RPCRateLimitOption { return ratelimit.PerMessage() }

func (framework) Tiers(tier func(rpctest.Call) policy.Tier) policy.ConcurrencyOption {
	return concurrency.Tiers(func(call *grpcmw.Call) policy.Tier { return tier(tableCall{call}) })
}

func (framework) KeyField(name string) policy.RPCIdempotencyOption { return idempotency.KeyField(name) }

func (framework) KeyFrom(key rpctest.Key) policy.RPCIdempotencyOption {
	return idempotency.KeyFrom(key.(grpcmw.KeyFunc))
}

func (framework) Fingerprint(f func(rpctest.Call) ([]byte, error)) policy.RPCIdempotencyOption {
	return idempotency.Fingerprint(func(call *grpcmw.Call) ([]byte, error) { return f(tableCall{call}) })
}

func (framework) KeepCodes(list ...rpctest.Code) policy.RPCIdempotencyOption {
	return idempotency.KeepCodes(native(list)...)
}

func (framework) ReleaseCodes(list ...rpctest.Code) policy.RPCIdempotencyOption {
	return idempotency.ReleaseCodes(native(list)...)
}

func (framework) PassStreams() policy.RPCIdempotencyOption { return idempotency.PassStreams() }

func (framework) WithKey(ctx context.Context, key string) context.Context {
	return idempotency.WithKey(ctx, key)
}

func (framework) Answer(thing *rpctest.Thing) (guard.Result, error) {
	m, _ := thingOf(thing, nil)
	return idempotency.Answer(m, nil)
}

func (framework) ByField(path string) rpctest.Key       { return grpcmw.ByField(path) }
func (framework) ByContext(key any) rpctest.Key         { return grpcmw.ByContext(key) }
func (framework) ByMetadata(name string) rpctest.Key    { return grpcmw.ByMetadata(name) }
func (framework) ByPeer() rpctest.Key                   { return grpcmw.ByPeer() }
func (framework) ByMethod() rpctest.Key                 { return grpcmw.ByMethod() }
func (framework) Global() rpctest.Key                   { return grpcmw.Global() }
func (framework) ScopeBy(key rpctest.Key) rpctest.Scope { return grpcmw.ScopeBy(key.(grpcmw.KeyFunc)) }
func (framework) Unscoped() rpctest.Scope               { return grpcmw.Unscoped() }

func (framework) FirstOf(choices ...rpctest.Key) rpctest.Key {
	var all []grpcmw.KeyFunc
	for _, key := range choices {
		all = append(all, key.(grpcmw.KeyFunc))
	}
	return grpcmw.FirstOf(all...)
}

func (framework) KeyOf(key func(rpctest.Call) (string, error)) rpctest.Key {
	return grpcmw.KeyFunc(func(call *grpcmw.Call) (string, error) { return key(tableCall{call}) })
}
