package exclusive_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
)

// Calls for the same cart run one after the other, also with other holders of the cart's lock.
func Example_cart() {
	carts, err := lock.New(memstore.New(), "carts")
	if err != nil {
		panic(err)
	}
	oneAtATime := exclusive.New(carts, grpcmw.ByField("value"), policy.Wait(10*time.Millisecond)).Unary
	update := func(cart string) {
		_, err := oneAtATime(context.Background(), wrapperspb.String(cart), &grpc.UnaryServerInfo{FullMethod: "/shop.Shop/Update"},
			func(ctx context.Context, _ any) (any, error) {
				lease, _ := lock.FromContext(ctx) // its fence goes into every write
				return nil, write(lease.Fence().Number)
			})
		fmt.Println("cart", cart, status.Code(err))
	}
	update("42")
	err = carts.Do(context.Background(), "42", func(context.Context) error {
		update("42")
		update("43")
		return nil
	})
	fmt.Println(err)
	// Output:
	// cart 42 OK
	// cart 42 Aborted
	// cart 43 OK
	// <nil>
}

// write stands in for a database, which refuses a fence that is lower than its last one.
func write(int64) error { return nil }
