package idempotency_test

import (
	"context"
	"fmt"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

const procedure = "/shop.Shop/Checkout"

type userKey struct{}

// authenticate stands in for authentication.
var authenticate = connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		return next(context.WithValue(ctx, userKey{}, "alice"), req)
	}
})

// serve starts a shop whose checkout is behind interceptors.
func serve(chain ...connect.Interceptor) *httptest.Server {
	charges := 0
	return httptest.NewServer(connect.NewUnaryHandler(procedure,
		func(context.Context, *connect.Request[wrapperspb.Int64Value]) (*connect.Response[wrapperspb.StringValue], error) {
			charges++
			return connect.NewResponse(wrapperspb.String(fmt.Sprintf("order %d", charges))), nil
		}, connect.WithInterceptors(chain...)))
}

// A checkout that is sent twice runs once.
func Example_checkout() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	once := idempotency.New(orders, connectmw.ScopeBy(connectmw.ByContext(userKey{})), policy.Required())
	server := serve(authenticate, once)
	defer server.Close()

	client := connect.NewClient[wrapperspb.Int64Value, wrapperspb.StringValue](server.Client(), server.URL+procedure)
	checkout := func(key string, cents int64) {
		req := connect.NewRequest(wrapperspb.Int64(cents))
		if key != "" {
			req.Header().Set("Idempotency-Key", idempotency.Key(key))
		}
		order, err := client.CallUnary(context.Background(), req)
		if err != nil {
			fmt.Println(connect.CodeOf(err))
			return
		}
		fmt.Println(order.Msg.GetValue())
	}
	checkout("7d1c", 1999)
	checkout("7d1c", 1999) // the client has lost the answer
	checkout("7d1c", 5)    // or uses the key again
	checkout("", 1999)
	// Output:
	// order 1
	// order 1
	// invalid_argument
	// invalid_argument
}

// A client that gives each call a key of its own, under which interceptors behind it repeat the
// call.
func ExampleNewClient() {
	orders, err := guard.New(memstore.New(), "checkout")
	if err != nil {
		panic(err)
	}
	server := serve(idempotency.New(orders, connectmw.Unscoped(), policy.Required()))
	defer server.Close()

	twice := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			_, _ = next(ctx, req) // the answer is lost
			return next(ctx, req)
		}
	})
	client := connect.NewClient[wrapperspb.Int64Value, wrapperspb.StringValue](server.Client(), server.URL+procedure,
		connect.WithInterceptors(idempotency.NewClient(), twice))
	for range 2 {
		order, err := client.CallUnary(context.Background(), connect.NewRequest(wrapperspb.Int64(1999)))
		if err != nil {
			panic(err)
		}
		fmt.Println(order.Msg.GetValue())
	}
	// Output:
	// order 1
	// order 2
}

// A job that may crash and run again sends the same key each time.
func ExampleKey() {
	req := connect.NewRequest(wrapperspb.Int64(1999))
	req.Header().Set("Idempotency-Key", idempotency.Key("invoice-2026-11"))
	fmt.Println(req.Header().Get("Idempotency-Key"))
	// Output: "invoice-2026-11"
}
