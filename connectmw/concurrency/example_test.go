package concurrency_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// A bulkhead: at most two calls of each procedure at a time in this process.
func Example_bulkhead() {
	calls, err := semaphore.New(memstore.New(), "calls", 2)
	if err != nil {
		panic(err)
	}
	const procedure = "/shop.Shop/Report"
	var report func(deep int32)
	server := httptest.NewServer(connect.NewUnaryHandler(procedure,
		func(_ context.Context, req *connect.Request[wrapperspb.Int32Value]) (*connect.Response[emptypb.Empty], error) {
			if deep := req.Msg.GetValue(); deep < 3 {
				report(deep + 1) // another call, while this one runs
			}
			return connect.NewResponse(&emptypb.Empty{}), nil
		}, connect.WithInterceptors(concurrency.New(calls, connectmw.ByProcedure()))))
	defer server.Close()

	client := connect.NewClient[wrapperspb.Int32Value, emptypb.Empty](server.Client(), server.URL+procedure)
	report = func(deep int32) {
		if _, err := client.CallUnary(context.Background(), connect.NewRequest(wrapperspb.Int32(deep))); err != nil {
			fmt.Println("call", deep, connect.CodeOf(err))
			return
		}
		fmt.Println("call", deep, "ok")
	}
	report(1)
	// Output:
	// call 3 resource_exhausted
	// call 2 ok
	// call 1 ok
}
