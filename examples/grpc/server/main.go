// Command server is a shop on gRPC behind all four policies, in the order in which they belong. This file
// is the part to copy; serve.go runs it.
package main

import (
	"context"
	"crypto/rand"
	"log"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/examples/grpc/shop"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/concurrency"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

func newShop(st store.Store) *grpc.Server {
	calls := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100).Burst(20)))
	orders := must(guard.New(st, "checkout"))
	carts := must(lock.New(st, "carts"))
	watchers := must(semaphore.New(st, "watchers", 2))

	user, report := grpcmw.ByContext(userKey{}), grpcmw.OnError(func(call *grpcmw.Call, err error) { log.Println(call.FullMethod(), err) })
	checkoutOnly := grpcmw.Unless(func(call *grpcmw.Call) bool { return call.FullMethod() != shop.Shop_Checkout_FullMethodName })
	watchOnly := grpcmw.Unless(func(call *grpcmw.Call) bool { return call.FullMethod() != shop.Shop_WatchStock_FullMethodName })

	// Probes and reflection have neither a user nor a key, and must not be refused because of others.
	exceptProbes := grpcmw.Unless(func(call *grpcmw.Call) bool { return isProbe(call.FullMethod()) })

	server := grpc.NewServer(grpcmw.ServerOptions(
		ratelimit.New(calls, grpcmw.ByPeer(), exceptProbes, report),
		grpcmw.Interceptors{Unary: authenticate, Stream: authenticateStream},
		idempotency.New(orders, grpcmw.ScopeBy(user), policy.Required(), idempotency.PassStreams(), exceptProbes, report),
		exclusive.New(carts, grpcmw.Join(user, grpcmw.ByField("cart_id")), policy.Wait(time.Second), checkoutOnly, report),
		concurrency.New(watchers, user, watchOnly, report),
	)...)
	shop.RegisterShopServer(server, shopServer{})
	grpc_health_v1.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server) // a public server may not want this
	return server
}

// isProbe reports whether a method is one of gRPC's own services: health checks and reflection.
func isProbe(method string) bool { return strings.HasPrefix(method, "/grpc.") }

type shopServer struct{ shop.UnimplementedShopServer }

func (shopServer) Checkout(_ context.Context, r *shop.CheckoutRequest) (*shop.Order, error) {
	return &shop.Order{Number: rand.Text(), Cents: r.GetCents()}, nil // yours goes here, and charges
}

func (shopServer) GetOrder(_ context.Context, r *shop.GetOrderRequest) (*shop.Order, error) {
	return nil, status.Errorf(codes.NotFound, "no order %s", r.GetNumber()) // yours goes here
}

func (shopServer) WatchStock(_ *shop.WatchStockRequest, stream grpc.ServerStreamingServer[shop.Stock]) error {
	for left := int64(3); left > 0; left-- { // yours goes here
		if err := stream.Send(&shop.Stock{Left: left}); err != nil {
			return err
		}
	}
	<-stream.Context().Done() // until the client has seen enough
	return nil
}

type userKey struct{}

// withUser stands in for real authentication: it believes the metadata x-user.
func withUser(ctx context.Context) (context.Context, error) {
	user := metadata.ValueFromIncomingContext(ctx, "x-user")
	if len(user) != 1 || user[0] == "" {
		return nil, status.Error(codes.Unauthenticated, "who are you?")
	}
	return context.WithValue(ctx, userKey{}, user[0]), nil
}
