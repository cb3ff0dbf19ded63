package concurrency_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/concurrency"
)

// A bulkhead: at most two calls of each method at a time in this process.
func Example_bulkhead() {
	calls, err := semaphore.New(memstore.New(), "calls", 2)
	if err != nil {
		panic(err)
	}
	bulkhead := concurrency.New(calls, grpcmw.ByMethod()).Unary

	info := &grpc.UnaryServerInfo{FullMethod: "/shop.Shop/Report"}
	report := func(during func()) {
		_, err := bulkhead(context.Background(), nil, info, func(context.Context, any) (any, error) {
			during()
			return nil, nil
		})
		fmt.Println(status.Code(err))
	}
	report(func() {
		report(func() {
			report(func() {}) // the third
		})
	})
	// Output:
	// ResourceExhausted
	// OK
	// OK
}
