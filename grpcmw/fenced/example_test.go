package fenced_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/fenced"
)

// The call of a paused holder arrives after the next holder has written. The handler gets the
// fence, so that the database can compare it again.
func Example_lateCall() {
	carts, err := memfence.New() // redisfence, where several processes work on the carts
	if err != nil {
		panic(err)
	}
	notLate := fenced.New(carts, grpcmw.ByField("value")).Unary
	update := func(cart, token string) {
		ctx := metadata.NewIncomingContext(context.Background(), metadata.Pairs(fence.Header, token))
		_, err := notLate(ctx, wrapperspb.String(cart), &grpc.UnaryServerInfo{FullMethod: "/shop.Shop/Update"},
			func(ctx context.Context, _ any) (any, error) {
				token, _ := fence.FromContext(ctx) // it goes into every write
				return nil, write(token)
			})
		fmt.Println("cart", cart, "with fence", token, status.Code(err))
	}
	update("42", "34")
	update("42", "33")
	update("43", "33")
	// Output:
	// cart 42 with fence 34 OK
	// cart 42 with fence 33 FailedPrecondition
	// cart 43 with fence 33 OK
}

// write stands in for a database, which refuses a fence that is lower than its last one.
func write(fence.Token) error { return nil }

// A client whose calls carry the fence of the lock that they are made under.
func ExampleUnaryClientInterceptor() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	send := fenced.UnaryClientInterceptor() // grpc.NewClient(target, grpc.WithUnaryInterceptor(send))
	call := func(ctx context.Context) error {
		return send(ctx, "/shop.Shop/Update", nil, nil, nil,
			func(ctx context.Context, _ string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
				sent, _ := metadata.FromOutgoingContext(ctx)
				fmt.Println("fences sent:", len(sent.Get(fence.Header)))
				return nil
			})
	}
	fmt.Println(carts.Do(context.Background(), "42", call)) // the context is that of a lease
	fmt.Println(call(context.Background()))                 // and this one is not
	// Output:
	// fences sent: 1
	// <nil>
	// fences sent: 0
	// <nil>
}
