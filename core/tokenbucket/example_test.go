package tokenbucket_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Wait with a deadline: a wait that would end after it returns at once, and charges nothing. Without
// one a caller waits for as long as it takes.
func ExampleLimiter_Wait() {
	provider, err := tokenbucket.New(memstore.New(), "provider", tokenbucket.PerHour(60).Burst(1))
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	fmt.Println(provider.Wait(ctx, "search"))
	err = provider.Wait(ctx, "search") // the next token comes in a minute
	fmt.Println(errors.Is(err, context.DeadlineExceeded), "with time left:", ctx.Err() == nil)
	// Output:
	// <nil>
	// true with time left: true
}

// A denial is no error: Allowed says it. An error means that nothing was decided, and whether the
// request passes then is the caller's choice.
func ExampleDecision() {
	limiter, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerDay(1))
	if err != nil {
		panic(err)
	}
	for range 2 {
		d, err := limiter.Allow(context.Background(), "tenant-7")
		switch {
		case err != nil:
			fmt.Println("not decided:", err)
		case !d.Allowed:
			fmt.Println("denied, for", d.RetryAfter.Round(time.Hour))
		default:
			fmt.Println("allowed")
		}
	}
	// Output:
	// allowed
	// denied, for 24h0m0s
}

// Take an estimate of the cost before the work, and give back the rest after it: a model's answer
// was estimated at 1,800 tokens, and had 1,200.
func ExampleLimiter_Reserve() {
	ctx := context.Background()
	limiter, err := tokenbucket.New(memstore.New(), "model", tokenbucket.Limits{
		tokenbucket.PerDay(100).Named("requests"),
		tokenbucket.PerDay(10_000).Named("tokens"),
	})
	if err != nil {
		panic(err)
	}
	r, err := limiter.Reserve(ctx, "team-7", tokenbucket.Cost{"requests": 1, "tokens": 1_800})
	if err != nil || !r.Allowed {
		panic("denied, or not decided")
	}
	if err := r.Use("tokens", 1_200); err != nil { // may be called again, as a stream grows
		panic(err)
	}
	fmt.Println(r.Settle(ctx))
	d, err := limiter.Peek(ctx, "team-7")
	if err != nil {
		panic(err)
	}
	for _, limit := range d.Limits() {
		fmt.Println(limit.Name, limit.Remaining)
	}
	// Output:
	// <nil>
	// requests 99
	// tokens 8800
}
