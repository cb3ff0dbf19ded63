package guides_test

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// charge is a job of the README: it works without any framework.
func charge(
	ctx context.Context, provider *tokenbucket.Limiter, carts *lock.Locker, invoices *guard.Guard, send func(context.Context) (int, error),
) error {
	if err := provider.Wait(ctx, "psp"); err != nil { // until the provider's limit has room
		return err
	}
	return carts.Do(ctx, "cart-42", func(ctx context.Context) error { // one process at a time; the others wait
		_, _, err := guard.Do(ctx, invoices, guard.Operation{Key: "2026-11"}, send) // once, however often the job runs
		return err
	})
}

func Example_withoutAFramework() {
	st := memstore.New()
	defer st.Close()
	provider, err := tokenbucket.New(st, "provider", tokenbucket.PerSecond(10))
	if err != nil {
		panic(err)
	}
	carts, err := lock.New(st, "carts")
	if err != nil {
		panic(err)
	}
	invoices, err := guard.New(st, "invoices")
	if err != nil {
		panic(err)
	}
	sent := 0
	for range 2 {
		if err := charge(context.Background(), provider, carts, invoices, func(context.Context) (int, error) { sent++; return sent, nil }); err != nil {
			panic(err)
		}
	}
	fmt.Println("sent:", sent)
	// Output: sent: 1
}
