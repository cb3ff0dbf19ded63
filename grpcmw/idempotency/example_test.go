package idempotency_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
)

// A checkout that is sent twice runs once.
func Example_checkout() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	type user struct{}
	once := idempotency.New(orders, grpcmw.ScopeBy(grpcmw.ByContext(user{})), policy.Required()).Unary

	charges := 0
	checkout := func(ctx context.Context, key string, cents int64) {
		ctx = context.WithValue(ctx, user{}, "alice") // what authentication does
		if key != "" {
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs("idempotency-key", key))
		}
		order, err := once(ctx, wrapperspb.Int64(cents), &grpc.UnaryServerInfo{FullMethod: "/shop.Shop/Checkout"},
			func(context.Context, any) (any, error) {
				charges++
				return wrapperspb.String(fmt.Sprintf("order %d", charges)), nil
			})
		if err != nil {
			fmt.Println(status.Code(err))
			return
		}
		fmt.Println(order.(*wrapperspb.StringValue).GetValue())
	}
	ctx := context.Background()
	checkout(ctx, "7d1c", 1999)
	checkout(ctx, "7d1c", 1999) // the client has lost the answer
	checkout(ctx, "7d1c", 5)    // or uses the key again
	checkout(ctx, "", 1999)
	// Output:
	// order 1
	// order 1
	// InvalidArgument
	// InvalidArgument
}

// A client that gives each call a key, and whose gRPC repeats under it what the server refuses for
// now, when the server says (grpcmw.StatusOf), and what broke with its connection.
func ExampleUnaryClientInterceptor() {
	conn, err := grpc.NewClient("dns:///shop.example", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(idempotency.UnaryClientInterceptor()), // one key for all attempts
		grpc.WithDefaultServiceConfig(`{"methodConfig": [{"name": [{"service": "shop.Shop"}], "retryPolicy": {
			"maxAttempts": 4, "initialBackoff": "0.2s", "maxBackoff": "5s", "backoffMultiplier": 1.5,
			"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "ABORTED", "UNAVAILABLE"]}}]}`))
	if err != nil {
		panic(err)
	}
	defer func() { _ = conn.Close() }()
	// Output:
}

// A job that may crash and run again sends the same key each time.
func ExampleWithKey() {
	ctx := idempotency.WithKey(context.Background(), "invoice-2026-11")
	sent, _ := metadata.FromOutgoingContext(ctx)
	fmt.Println(sent.Get("idempotency-key"))
	// Output: ["invoice-2026-11"]
}
