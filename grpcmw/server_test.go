package grpcmw_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience is how long a test waits for an event.
const patience = 10 * time.Second

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// service is a server whose methods are set by tests.
type service struct {
	things.UnimplementedThingsServer
	runs  atomic.Int64
	make  func(context.Context, *things.MakeRequest) (*things.Thing, error)
	get   func()
	watch func(*things.MakeRequest, grpc.ServerStreamingServer[things.Thing]) error
	talk  func(grpc.BidiStreamingServer[things.MakeRequest, things.Thing]) error
}

func (s *service) Make(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
	n := s.runs.Add(1)
	if s.make != nil {
		return s.make(ctx, r)
	}
	return &things.Thing{Id: r.GetId(), Text: "run " + string(rune('0'+n))}, nil
}

func (s *service) Get(_ context.Context, r *things.GetRequest) (*things.Thing, error) {
	s.runs.Add(1)
	if s.get != nil {
		s.get()
	}
	return &things.Thing{Id: r.GetId()}, nil
}

func (s *service) Watch(r *things.MakeRequest, stream grpc.ServerStreamingServer[things.Thing]) error {
	s.runs.Add(1)
	if s.watch != nil {
		return s.watch(r, stream)
	}
	return stream.Send(&things.Thing{Id: r.GetId()})
}

func (s *service) Talk(stream grpc.BidiStreamingServer[things.MakeRequest, things.Thing]) error {
	s.runs.Add(1)
	if s.talk != nil {
		return s.talk(stream)
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has closed its side
		}
		if err := stream.Send(&things.Thing{Id: r.GetId()}); err != nil {
			return err
		}
	}
}

func (s *service) ran(t *testing.T, want int64) {
	t.Helper()
	if got := s.runs.Load(); got != want {
		t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

type userKey = rpctest.UserKey

// authenticate trusts the metadata x-user.
func authenticate(ctx context.Context) context.Context {
	if user := metadata.ValueFromIncomingContext(ctx, "x-user"); len(user) == 1 {
		return context.WithValue(ctx, userKey{}, user[0])
	}
	return ctx
}

type authenticated struct {
	grpc.ServerStream
	ctx context.Context
}

func (s authenticated) Context() context.Context { return s.ctx }

// outermost recovers from panics and authenticates.
var outermost = grpcmw.Interceptors{
	Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return handler(authenticate(ctx), req)
	},
	Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return handler(srv, authenticated{ss, authenticate(ss.Context())})
	},
}

// serve starts a server behind interceptors, and returns a client of it.
func serve(t *testing.T, s *service, chain ...grpcmw.Interceptors) things.ThingsClient {
	t.Helper()
	return dial(t, listen(t, s, chain...))
}

func listen(t *testing.T, s *service, chain ...grpcmw.Interceptors) (addr string) {
	t.Helper()
	server := grpc.NewServer(grpcmw.ServerOptions(append([]grpcmw.Interceptors{outermost}, chain...)...)...)
	things.RegisterThingsServer(server, s)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String()
}

func dial(t *testing.T, addr string, opts ...grpc.DialOption) things.ThingsClient {
	t.Helper()
	conn := must(grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...))
	t.Cleanup(func() { _ = conn.Close() })
	return things.NewThingsClient(conn)
}

// with returns the context of a call with this metadata: name, value, name, value.
func with(t *testing.T, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), pairs...)
}

// is checks an answer.
func is(t *testing.T, got *things.Thing, err error, text string) {
	t.Helper()
	if err != nil || got.GetText() != text {
		t.Fatalf("%v, %v; want %q", got, err, text)
	}
}

// denies checks that an error is a denial, with the details of its reason.
func denies(t *testing.T, err error, reason policy.Reason) {
	t.Helper()
	rpctest.Denied(t, framework{}, err, reason)
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
