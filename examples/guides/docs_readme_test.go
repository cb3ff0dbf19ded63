package guides_test

import (
	"context"
	"fmt"

	"google.golang.org/grpc"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

// The README's lines about gRPC.
func Example_server() {
	type userKey struct{}
	store := memstore.New()
	defer store.Close()
	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerMinute(100))
	if err != nil {
		panic(err)
	}
	orders, err := guard.New(store, "checkout")
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpcmw.ServerOptions( // unary calls and streams alike
		ratelimit.New(limiter, grpcmw.ByPeer()),
		idempotency.New(orders, grpcmw.ScopeBy(grpcmw.ByContext(userKey{})), policy.Required()),
	)...)
	server.Stop()
	// Output:
}

// The README's lines about mechanisms without a framework.
//
//nolint:ineffassign,wastedassign // a line each, as in the README
func Example_direct() {
	ctx := context.Background()
	store := memstore.New()
	defer store.Close()
	limiter, err := tokenbucket.New(store, "llm", tokenbucket.Limits{
		tokenbucket.PerMinute(60).Named("requests"), tokenbucket.PerMinute(90_000).Named("tokens"),
	})
	if err != nil {
		panic(err)
	}
	carts, err := lock.New(store, "carts")
	if err != nil {
		panic(err)
	}
	invoices, err := guard.New(store, "invoices")
	if err != nil {
		panic(err)
	}
	update := func(_ context.Context, cart string) error { fmt.Println("update cart", cart); return nil }
	send := func(context.Context) (int, error) { return 7, nil }

	show := func() error {
		err := carts.Do(ctx, "42", func(ctx context.Context) error { return update(ctx, "42") }) // one at a time
		decision, err := limiter.Allow(ctx, "tenant-7")
		err = limiter.Wait(ctx, "psp")                                                                       // until there is a token
		reservation, err := limiter.Reserve(ctx, "team-7", tokenbucket.Cost{"requests": 1, "tokens": 1_800}) // an estimate; settled later
		invoice, replayed, err := guard.Do(ctx, invoices, guard.Operation{Key: "2026-11"}, send)
		fmt.Println(decision.Allowed, reservation.Allowed, invoice, replayed)
		return err
	}
	fmt.Println(show())
	// Output:
	// update cart 42
	// true true 7 false
	// <nil>
}
