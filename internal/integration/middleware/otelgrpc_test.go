package middleware_test

import (
	"context"
	"net"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	otelcodes "go.opentelemetry.io/otel/codes"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/concurrency"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	"github.com/lockkeeper/lockkeeper/grpcmw/fenced"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

const (
	unaryMethod  = "/things.Things/Make"
	streamMethod = "/things.Things/Watch"
	// patience is how long a test waits for what must happen.
	patience = 20 * time.Second
)

// thingsService answers every call.
var thingsService = grpc.ServiceDesc{
	ServiceName: "things.Things",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Make",
		Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			var req emptypb.Empty
			if err := decode(&req); err != nil {
				return nil, err
			}
			handle := func(context.Context, any) (any, error) { return &emptypb.Empty{}, nil }
			return intercept(ctx, &req, &grpc.UnaryServerInfo{Server: srv, FullMethod: unaryMethod}, handle)
		},
	}},
	Streams: []grpc.StreamDesc{{
		StreamName:    "Watch",
		ServerStreams: true,
		Handler:       func(_ any, stream grpc.ServerStream) error { return stream.SendMsg(&emptypb.Empty{}) },
	}},
}

// rpc is a client of a traced server.
type rpc struct {
	t     *testing.T
	conn  *grpc.ClientConn
	ended chan sdk.ReadOnlySpan
}

// OnEnd implements sdk.SpanProcessor.
func (r rpc) OnEnd(span sdk.ReadOnlySpan)                { r.ended <- span }
func (r rpc) OnStart(context.Context, sdk.ReadWriteSpan) {}
func (r rpc) Shutdown(context.Context) error             { return nil }
func (r rpc) ForceFlush(context.Context) error           { return nil }

func serveRPC(t *testing.T, chain ...grpcmw.Interceptors) rpc {
	t.Helper()
	r := rpc{t: t, ended: make(chan sdk.ReadOnlySpan, 100)}
	provider := sdk.NewTracerProvider(sdk.WithSpanProcessor(r))
	server := grpc.NewServer(append(grpcmw.ServerOptions(chain...),
		grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(provider))))...)
	server.RegisterService(&thingsService, nil)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	r.conn = must(grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))
	t.Cleanup(func() {
		_ = r.conn.Close()
		server.Stop()
		<-done
		_ = provider.Shutdown(context.Background())
	})
	return r
}

// is makes a call with metadata, and checks its code and the status of the server's span.
func (r rpc) is(method string, code codes.Code, span otelcodes.Code, pairs ...string) {
	r.t.Helper()
	ctx := metadata.AppendToOutgoingContext(r.t.Context(), pairs...)
	var err error
	if method == unaryMethod {
		err = r.conn.Invoke(ctx, method, &emptypb.Empty{}, &emptypb.Empty{})
	} else {
		err = r.stream(ctx)
	}
	if status.Code(err) != code {
		r.t.Errorf("%s: %v, want %v", method, err, code)
	}
	select {
	case got := <-r.ended:
		if got.Status().Code != span || got.SpanKind() != trace.SpanKindServer {
			r.t.Errorf("%s: %v span with status %v, want %v", method, got.SpanKind(), got.Status(), span)
		}
	case <-time.After(patience):
		r.t.Fatal("no span has ended")
	}
}

// stream makes a call of a stream, and reads its first message.
func (r rpc) stream(ctx context.Context) error {
	stream, err := r.conn.NewStream(ctx, &thingsService.Streams[0], streamMethod)
	if err != nil {
		return err
	}
	if err := stream.SendMsg(&emptypb.Empty{}); err != nil {
		return err
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return stream.RecvMsg(&emptypb.Empty{})
}

// Under otelgrpc, which is a stats handler and so comes before all interceptors, a denial is no error
// of the server's span, and a store that is unavailable is one.
func TestSpansOfRPCs(t *testing.T) {
	st := storetest.NewFaulty(memstore.New())
	t.Cleanup(func() { _ = st.Close() })
	limiter := must(tokenbucket.New(st, "api", tokenbucket.PerHour(100)))
	orders := must(guard.New(st, "orders"))
	carts := must(lock.New(st, "carts"))
	reports := must(semaphore.New(st, "reports", 1))
	client := serveRPC(t, ratelimit.New(limiter, grpcmw.ByMetadata("x-user")), idempotency.New(orders, grpcmw.ScopeBy(grpcmw.ByMetadata("x-user"))),
		exclusive.New(carts, grpcmw.ByMetadata("x-cart")), concurrency.New(reports, grpcmw.ByMetadata("x-tenant")))
	all := []string{"x-user", "alice", "x-cart", "42", "x-tenant", "acme"}

	client.is(unaryMethod, codes.OK, otelcodes.Unset, all...)
	client.is(unaryMethod, codes.InvalidArgument, otelcodes.Unset)

	lease := must(carts.Lock(t.Context(), "42"))
	client.is(unaryMethod, codes.Aborted, otelcodes.Unset, all...)
	_ = lease.Unlock(t.Context())

	permit := must(reports.Acquire(t.Context(), "acme"))
	client.is(unaryMethod, codes.ResourceExhausted, otelcodes.Unset, all...)
	_ = permit.Release(t.Context())

	if d, err := limiter.AllowN(t.Context(), "bob", 100); err != nil || !d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	client.is(unaryMethod, codes.ResourceExhausted, otelcodes.Unset, "x-user", "bob", "x-cart", "42", "x-tenant", "acme")

	for _, op := range []storetest.Op{storetest.TakeTokens, storetest.BeginOperation, storetest.AcquireLease} {
		st.Break(op, storetest.Down)
		client.is(unaryMethod, codes.Unavailable, otelcodes.Error, append(all, "idempotency-key", "k")...)
		st.Mend(op)
	}
}

// unreachable is a fence.Checker whose resource cannot be reached.
type unreachable struct{}

func (unreachable) Check(context.Context, string, fence.Token) error { return store.ErrUnavailable }

// A late call is no error of the server's span, and a resource that is unavailable is one.
func TestSpansOfFencedRPCs(t *testing.T) {
	marks := serveRPC(t, fenced.New(must(memfence.New()), grpcmw.Global()))
	down := serveRPC(t, fenced.New(unreachable{}, grpcmw.Global()))
	for _, method := range []string{unaryMethod, streamMethod} {
		marks.is(method, codes.OK, otelcodes.Unset, "lock-fence", "2")
		marks.is(method, codes.FailedPrecondition, otelcodes.Unset, "lock-fence", "1")
		marks.is(method, codes.InvalidArgument, otelcodes.Unset, "lock-fence", "x")
		down.is(method, codes.Unavailable, otelcodes.Error, "lock-fence", "3")
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
