package ratelimit_test

import (
	"context"
	"net"
	"net/netip"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/test/bufconn"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

func newLimiter(tb testing.TB) *tokenbucket.Limiter {
	store := memstore.New()
	tb.Cleanup(func() { _ = store.Close() })
	l, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100).Burst(1e8)) // never full, never empty
	if err != nil {
		tb.Fatal(err)
	}
	return l
}

func noop(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	return handler(ctx, req)
}

type server struct {
	things.UnimplementedThingsServer
}

func (server) Make(context.Context, *things.MakeRequest) (*things.Thing, error) {
	return &things.Thing{}, nil
}

// The cost of an interceptor, without gRPC.
func BenchmarkInterceptor(b *testing.B) {
	ctx := peer.NewContext(b.Context(), &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort("203.0.113.7:1234"))})
	info := &grpc.UnaryServerInfo{FullMethod: things.Things_Make_FullMethodName}
	req := &things.MakeRequest{}
	handler := func(context.Context, any) (any, error) { return nil, nil } //nolint:nilnil // it is never looked at
	for _, c := range []struct {
		name        string
		interceptor grpc.UnaryServerInterceptor
	}{
		{"noop", noop},
		{"by method", ratelimit.New(newLimiter(b), grpcmw.ByMethod()).Unary},
		{"by peer", ratelimit.New(newLimiter(b), grpcmw.ByPeer()).Unary},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, _ = c.interceptor(ctx, req, info, handler)
			}
		})
	}
}

// The cost of a whole call, from a client in the same process.
func BenchmarkCall(b *testing.B) {
	for _, c := range []struct {
		name  string
		chain []grpc.UnaryServerInterceptor
	}{
		{"bare", nil},
		{"two noops", []grpc.UnaryServerInterceptor{noop, noop}},
		{"limited", []grpc.UnaryServerInterceptor{ratelimit.New(newLimiter(b), grpcmw.ByMethod()).Unary}},
	} {
		b.Run(c.name, func(b *testing.B) {
			s := grpc.NewServer(grpc.ChainUnaryInterceptor(c.chain...))
			things.RegisterThingsServer(s, server{})
			listener := bufconn.Listen(1 << 20)
			go func() { _ = s.Serve(listener) }()
			defer s.Stop()
			conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
			if err != nil {
				b.Fatal(err)
			}
			defer conn.Close() //nolint:errcheck // the benchmark is over
			client := things.NewThingsClient(conn)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Make(b.Context(), &things.MakeRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
