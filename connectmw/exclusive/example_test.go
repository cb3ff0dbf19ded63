package exclusive_test

import (
	"context"
	"fmt"
	"net/http/httptest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

// Calls for the same cart run one after the other, also with other holders of the cart's lock.
func Example_cart() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	oneAtATime := exclusive.New(carts, connectmw.ByField("value"), policy.Wait(10*time.Millisecond))
	const procedure = "/shop.Shop/Update"
	server := httptest.NewServer(connect.NewUnaryHandler(procedure,
		func(ctx context.Context, _ *connect.Request[wrapperspb.StringValue]) (*connect.Response[emptypb.Empty], error) {
			lease, _ := lock.FromContext(ctx) // its fence goes into every write
			return connect.NewResponse(&emptypb.Empty{}), write(lease.Fence().Number)
		}, connect.WithInterceptors(oneAtATime)))
	defer server.Close()

	client := connect.NewClient[wrapperspb.StringValue, emptypb.Empty](server.Client(), server.URL+procedure)
	update := func(cart string) {
		if _, err := client.CallUnary(context.Background(), connect.NewRequest(wrapperspb.String(cart))); err != nil {
			fmt.Println("cart", cart, connect.CodeOf(err))
			return
		}
		fmt.Println("cart", cart, "ok")
	}
	update("42")
	err = carts.Do(context.Background(), "42", func(context.Context) error {
		update("42")
		update("43")
		return nil
	})
	fmt.Println(err)
	// Output:
	// cart 42 ok
	// cart 42 aborted
	// cart 43 ok
	// <nil>
}

// write stands in for a database, which refuses a fence that is lower than its last one.
func write(int64) error { return nil }
