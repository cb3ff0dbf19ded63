package grpcmw_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
)

// Callers that are refused at the same time retry one after the other, and not all for the same
// token.
func TestRetriesOfRefusedCallsAreSpread(t *testing.T) {
	for _, c := range []struct {
		callers int
		rate    int64
	}{{15, 5}, {100, 20}} {
		t.Run(fmt.Sprintf("%d callers, %d a second", c.callers, c.rate), func(t *testing.T) {
			t.Parallel()
			var s service
			var calls atomic.Int64
			counting := grpcmw.Interceptors{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
				calls.Add(1)
				return handler(ctx, req)
			}}
			limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.PerSecond(c.rate))
			client := dial(t, listen(t, &s, counting, ratelimit.New(limiter, grpcmw.ByMetadata("x-key"))), retrying)
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-key", "shared")
			var crowd sync.WaitGroup
			for range c.callers {
				crowd.Go(func() {
					if _, err := client.Make(ctx, &things.MakeRequest{}); err != nil {
						t.Error(err)
					}
				})
			}
			crowd.Wait()
			s.ran(t, int64(c.callers))
			if most := int64(2*c.callers + c.callers/2); calls.Load() > most {
				t.Errorf("%d calls for %d answers, want %d at most", calls.Load(), c.callers, most)
			}
		})
	}
}
