package ratelimit_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

type userKey struct{}

// call calls a method behind an interceptor as an authenticated user.
func call(limited grpc.UnaryServerInterceptor, method, user string) codes.Code {
	ctx := context.WithValue(context.Background(), userKey{}, user)
	_, err := limited(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return nil, nil })
	return status.Code(err)
}

// A limit for each user and method.
func Example_byMethod() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerMinute(1))
	if err != nil {
		panic(err)
	}
	limited := ratelimit.New(limiter, grpcmw.Join(grpcmw.ByContext(userKey{}), grpcmw.ByMethod())).Unary
	fmt.Println(call(limited, "/shop.Shop/Search", "alice"))
	fmt.Println(call(limited, "/shop.Shop/Search", "alice"))
	fmt.Println(call(limited, "/shop.Shop/Checkout", "alice"))
	fmt.Println(call(limited, "/shop.Shop/Search", "bob"))
	// Output:
	// OK
	// ResourceExhausted
	// OK
	// OK
}

// A client that calls a backend at most ten times a second, in all of its processes together, and
// obeys it when it asks for a pause.
func ExampleUnaryClientInterceptor() {
	limiter, err := tokenbucket.New(memstore.New(), "backend", tokenbucket.PerSecond(10)) // in production, on Redis
	if err != nil {
		panic(err)
	}
	conn, err := grpc.NewClient("dns:///backend.example", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithChainUnaryInterceptor(ratelimit.UnaryClientInterceptor(limiter, grpcmw.Global())),
		grpc.WithChainStreamInterceptor(ratelimit.StreamClientInterceptor(limiter, grpcmw.Global())))
	if err != nil {
		panic(err)
	}
	defer func() { _ = conn.Close() }()
}

// A call costs the tokens of its answer, for which an estimate is reserved until they are known.
func ExampleCosts() {
	limiter, err := tokenbucket.New(memstore.New(), "tokens", tokenbucket.PerDay(90_000))
	if err != nil {
		panic(err)
	}
	estimate := func(*grpcmw.Call) tokenbucket.Cost { return tokenbucket.Cost{"tokens": 2_000} }
	limited := ratelimit.New(limiter, grpcmw.Global(), ratelimit.Costs(estimate)).Unary
	_, err = limited(context.Background(), nil, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
		if reservation, ok := tokenbucket.FromContext(ctx); ok {
			return nil, reservation.Use("tokens", 80)
		}
		return nil, nil
	})
	if err != nil {
		panic(err)
	}
	d, err := limiter.Peek(context.Background(), "global")
	if err != nil {
		panic(err)
	}
	fmt.Println(d.Limits()[0].Remaining)
	// Output: 89920
}

// Only calls that fail to authenticate count.
func ExampleChargeCodes() {
	limiter, err := tokenbucket.New(memstore.New(), "login", tokenbucket.PerHour(2))
	if err != nil {
		panic(err)
	}
	limited := ratelimit.New(limiter, grpcmw.Global(), ratelimit.ChargeCodes(codes.Unauthenticated)).Unary
	attempt := func(result error) codes.Code {
		_, err := limited(context.Background(), nil, &grpc.UnaryServerInfo{}, func(context.Context, any) (any, error) { return nil, result })
		return status.Code(err)
	}
	wrong := status.Error(codes.Unauthenticated, "wrong password")
	fmt.Println(attempt(nil), attempt(nil), attempt(nil))
	fmt.Println(attempt(wrong), attempt(wrong), attempt(wrong), attempt(nil))
	// Output:
	// OK OK OK
	// Unauthenticated Unauthenticated ResourceExhausted ResourceExhausted
}
