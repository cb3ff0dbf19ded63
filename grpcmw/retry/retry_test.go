package retry_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/retry"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// pauses sends a call that is always refused with this delay, and returns how long it waited before
// each retry, and in total.
func pauses(ctx context.Context, delay time.Duration, opts ...retry.Option) (waited []time.Duration, err error) {
	last := time.Now()
	first := true
	err = retry.UnaryClientInterceptor(opts...)(ctx, "/shop.Shop/Checkout", nil, nil, nil,
		func(context.Context, string, any, any, *grpc.ClientConn, ...grpc.CallOption) error {
			if !first {
				waited = append(waited, time.Since(last))
			}
			first, last = false, time.Now()
			return grpcmw.StatusOf(policy.Denial{Reason: policy.Locked, RetryAfter: delay}).Err()
		})
	return waited, err
}

// No retry is before the server's delay; pauses grow, and are spread.
func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const delay, tries, runs = time.Second, 5, 400
		longest := make([]time.Duration, tries-1)
		below := make([]int, tries-1) // in the lower half of the spread
		for range runs {
			waited, err := pauses(t.Context(), delay, retry.WithMaxTries(tries))
			if len(waited) != tries-1 || status.Code(err) != codes.Aborted {
				t.Fatalf("waited %v, %v", waited, err)
			}
			for n, w := range waited {
				if w < delay {
					t.Errorf("try %d was after %v", n+2, w)
				}
				spread := delay / 2 << n
				if w > delay+spread {
					t.Errorf("try %d was after %v", n+2, w)
				}
				if longest[n] = max(longest[n], w); w < delay+spread/2 {
					below[n]++
				}
			}
		}
		for n := range longest {
			if spread := delay / 2 << n; longest[n] < delay+spread*9/10 || below[n] < runs/4 || below[n] > runs*3/4 {
				t.Errorf("try %d was after %v at most, and %d of %d times in the lower half", n+2, longest[n], below[n], runs)
			}
		}
	})
}

// No pause is longer than the client's maximum, and short delays of the server are spread too.
func TestPausesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const longest = 3 * time.Second
		for range 100 {
			waited, _ := pauses(t.Context(), 2*time.Second, retry.WithMaxTries(70), retry.WithMaxDelay(longest))
			if len(waited) != 69 {
				t.Fatalf("%d pauses", len(waited))
			}
			for _, w := range waited {
				if w < 2*time.Second || w > longest {
					t.Fatalf("a pause of %v", w)
				}
			}
		}
		var spread time.Duration
		for range 100 {
			waited, _ := pauses(t.Context(), 1, retry.WithMaxTries(2))
			spread = max(spread, waited[0])
		}
		if spread < 40*time.Millisecond || spread > 50*time.Millisecond+1 {
			t.Errorf("with a delay of a nanosecond they are spread over %v", spread)
		}
		waited, _ := pauses(t.Context(), longest, retry.WithMaxTries(2), retry.WithMaxDelay(longest))
		if len(waited) != 1 || waited[0] != longest {
			t.Errorf("the longest delay: %v", waited)
		}
	})
}

// A call whose next try would be after its deadline fails at once, and another is tried before its
// deadline.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 200 {
			ctx, cancel := context.WithTimeout(t.Context(), 3500*time.Millisecond)
			start := time.Now()
			waited, err := pauses(ctx, time.Second, retry.WithMaxTries(100))
			if status.Code(err) != codes.Aborted || ctx.Err() != nil && time.Since(start) > 3500*time.Millisecond {
				t.Fatalf("%v after %v", err, time.Since(start))
			}
			if len(waited) == 0 || len(waited) > 3 {
				t.Errorf("waited %v", waited)
			}
			if rest := 3500*time.Millisecond - time.Since(start); rest > time.Second {
				t.Errorf("it gave up with %v left for a delay of a second", rest)
			}
			cancel()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		start := time.Now()
		if waited, err := pauses(ctx, 11*time.Second); len(waited) != 0 || errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 0 {
			t.Errorf("waited %v and failed with %v after %v", waited, err, time.Since(start))
		}
	})
}
