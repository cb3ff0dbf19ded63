package ratelimit_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
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
