package guides_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// checkedStore is a store of any of the three packages.
type checkedStore interface {
	store.Store
	store.Checker
}

func storeInMemory() checkedStore {
	st := memstore.New()
	return st
}

func storeOnRedis(address, password string, tls *tls.Config) (checkedStore, *redis.Client, error) {
	client := redis.NewClient(&redis.Options{
		Addr: address, Username: "lockkeeper", Password: password, TLSConfig: tls,
		ContextTimeoutEnabled: true, // New returns an error without it
		MinIdleConns:          4,
	})
	st, err := redisstore.New(client)
	return st, client, err
}

func storeOnPostgres(ctx context.Context, pool *pgxpool.Pool) (checkedStore, error) {
	err := pgstore.Migrate(ctx, pool) // or run what pgstore.Schema returns
	if err != nil {
		return nil, err
	}
	st, err := pgstore.NewFromPool(pool) // or pgstore.New(dsn); it opens up to 8 connections, and one to listen on
	return st, err
}

// checkAndLock checks a store, and locks something in it.
func checkAndLock(ctx context.Context, st checkedStore) error {
	findings, err := st.Check(ctx)
	if err != nil {
		return fmt.Errorf("the store cannot be used: %w", err)
	}
	for _, finding := range findings { // what is so, what may happen, and what to do about it
		slog.Warn("the store is weaker than it could be", "finding", finding)
	}
	carts, err := lock.New(st, "carts")
	if err != nil {
		return err
	}
	return carts.Do(ctx, "42", func(context.Context) error { return nil })
}

func Example_stores() {
	st := storeInMemory()
	defer func() { _ = st.Close() }()
	fmt.Println(checkAndLock(context.Background(), st))
	// Output: <nil>
}

func TestStoreOnRedis(t *testing.T) {
	server := redistest.Start(t, "--user", "lockkeeper", "on", ">secret", "~*", "&*", "+@all")
	st, client, err := storeOnRedis(server.Addr(), "secret", nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	t.Cleanup(func() { _ = st.Close() })
	if err := checkAndLock(t.Context(), st); err != nil {
		t.Fatal(err)
	}
}

func TestStoreOnPostgres(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), postgrestest.Start(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	st, err := storeOnPostgres(t.Context(), pool)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	if err := checkAndLock(t.Context(), st); err != nil {
		t.Fatal(err)
	}
}
