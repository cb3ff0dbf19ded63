package fenced_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/fenced"
	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

const procedure = "/shop.Shop/Update"

// The call of a paused holder arrives after the next holder has written. The handler gets the
// fence, so that the database can compare it again.
func Example_lateCall() {
	carts, err := memfence.New() // redisfence, where several processes work on the carts
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(connect.NewUnaryHandler(procedure,
		func(ctx context.Context, _ *connect.Request[wrapperspb.StringValue]) (*connect.Response[emptypb.Empty], error) {
			token, _ := fence.FromContext(ctx) // it goes into every write
			return connect.NewResponse(&emptypb.Empty{}), write(token)
		}, connect.WithInterceptors(fenced.New(carts, connectmw.ByField("value")))))
	defer server.Close()

	client := connect.NewClient[wrapperspb.StringValue, emptypb.Empty](server.Client(), server.URL+procedure)
	update := func(cart, token string) {
		req := connect.NewRequest(wrapperspb.String(cart))
		req.Header().Set(fence.Header, token)
		if _, err := client.CallUnary(context.Background(), req); err != nil {
			fmt.Println("cart", cart, "with fence", token, connect.CodeOf(err))
			return
		}
		fmt.Println("cart", cart, "with fence", token, "ok")
	}
	update("42", "34")
	update("42", "33")
	update("43", "33")
	// Output:
	// cart 42 with fence 34 ok
	// cart 42 with fence 33 failed_precondition
	// cart 43 with fence 33 ok
}

// write stands in for a database, which refuses a fence that is lower than its last one.
func write(fence.Token) error { return nil }

// A client whose calls carry the fence of the lock that they are made under.
func ExampleNewClient() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	server := httptest.NewServer(connect.NewUnaryHandler(procedure,
		func(_ context.Context, req *connect.Request[wrapperspb.StringValue]) (*connect.Response[emptypb.Empty], error) {
			fmt.Println("fences sent:", len(req.Header().Values(fence.Header)))
			return connect.NewResponse(&emptypb.Empty{}), nil
		}))
	defer server.Close()

	client := connect.NewClient[wrapperspb.StringValue, emptypb.Empty](server.Client(), server.URL+procedure,
		connect.WithInterceptors(fenced.NewClient()))
	update := func(ctx context.Context) error {
		_, err := client.CallUnary(ctx, connect.NewRequest(wrapperspb.String("42")))
		return err
	}
	fmt.Println(carts.Do(context.Background(), "42", update)) // the context is that of a lease
	fmt.Println(update(context.Background()))                 // and this one is not
	// Output:
	// fences sent: 1
	// <nil>
	// fences sent: 0
	// <nil>
}
