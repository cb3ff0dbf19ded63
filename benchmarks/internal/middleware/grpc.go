package middleware

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

const method = "/bench.Orders/Create"

// stream receives the header of a call, as a connection does.
type stream struct{ fields int }

func (*stream) Method() string { return method }

func (s *stream) SetHeader(md metadata.MD) error  { s.fields = len(md); return nil }
func (s *stream) SendHeader(md metadata.MD) error { s.fields = len(md); return nil }
func (*stream) SetTrailer(metadata.MD) error      { return nil }

func grpcSite(interceptor grpc.UnaryServerInterceptor, end func()) (site, error) {
	var (
		s    stream
		runs int
		info     = &grpc.UnaryServerInfo{FullMethod: method}
		in   any = &emptypb.Empty{}
	)
	ctx := grpc.NewContextWithServerTransportStream(
		metadata.NewIncomingContext(context.Background(), metadata.Pairs(clientField, client)), &s)
	var handler grpc.UnaryHandler = func(context.Context, any) (any, error) {
		runs++
		return in, nil
	}
	return site{
		call:    func(int) { _, _ = interceptor(ctx, in, info, handler) },
		runs:    func() int { return runs },
		headers: func() int { return s.fields },
		end:     end,
	}, nil
}

func bareGRPC(requests) (site, error) {
	return grpcSite(func(ctx context.Context, in any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		return handler(ctx, in)
	}, nothing)
}

func lockkeeperGRPC(r requests) (site, error) {
	limiter, end, err := newLimiter(r)
	if err != nil {
		return site{}, err
	}
	return grpcSite(ratelimit.New(limiter, grpcmw.ByMetadata(clientField)).Unary, end)
}
