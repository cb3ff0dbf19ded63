package retry_test

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/retry"
)

// A refused call is sent again after the server's delay.
func ExampleUnaryClientInterceptor() {
	repeat := retry.UnaryClientInterceptor(retry.WithMaxTries(3))
	tries := 0
	err := repeat(context.Background(), "/shop.Shop/Checkout", nil, nil, nil,
		func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			if tries++; tries < 3 {
				return grpcmw.StatusOf(policy.Denial{Reason: policy.Locked, RetryAfter: time.Millisecond}).Err()
			}
			return nil
		})
	fmt.Println(tries, "tries:", err)
	// Output: 3 tries: <nil>
}
