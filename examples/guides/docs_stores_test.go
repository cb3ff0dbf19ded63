package guides_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// The lines of docs/redis.md. They would call a server of that name.
func Example_redis() {
	password := "" // yours
	client := redis.NewClient(&redis.Options{
		Addr:                  "redis.internal:6379",
		Username:              "lockkeeper",
		Password:              password,
		ContextTimeoutEnabled: true,
		MinIdleConns:          4,
	})
	store, err := redisstore.New(client)
	if err != nil {
		panic(err)
	}
	_ = store.Close()
}

// The first lines of docs/postgresql.md. They would call a server of that name.
func Example_postgreSQL() {
	store, err := pgstore.New("postgres://lockkeeper@db.internal/shop")
	if err != nil {
		panic(err)
	}
	_ = store.Close()
}

func Example_migrate() {
	ctx := context.Background()
	var pool *pgxpool.Pool                  // yours
	err := pgstore.Migrate(ctx, pool)       // at the start of each process: it changes nothing that is new enough
	fmt.Print(pgstore.Schema())             // or print the statements, for the tool that runs your migrations
	fmt.Print(pgstore.Grants("lockkeeper")) // what its user needs
	if err != nil {
		panic(err)
	}
}

// Order is what a handler places in a transaction.
type Order struct{ ID int }

func placeOrder(ctx context.Context, tx pgx.Tx) (o Order, err error) {
	err = tx.QueryRow(ctx, "INSERT INTO orders DEFAULT VALUES RETURNING id").Scan(&o.ID)
	return o, err
}

// Operations of docs/postgresql.md have their effect once, and their record is committed with it.
func TestOperationsInPostgreSQL(t *testing.T) {
	ctx := t.Context()
	pool, err := pgxpool.New(ctx, postgrestest.Start(t).DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pgstore.Migrate(ctx, pool); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, "CREATE TABLE orders (id serial)"); err != nil {
		t.Fatal(err)
	}
	store, err := pgstore.NewFromPool(pool)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	orders, err := guard.New(store, "orders")
	if err != nil {
		t.Fatal(err)
	}
	placed := func(want int) {
		t.Helper()
		var n int
		if err := pool.QueryRow(ctx, "SELECT count(*) FROM orders").Scan(&n); err != nil || n != want {
			t.Errorf("%d orders are placed, %v, want %d", n, err, want)
		}
	}

	user, key := "customer-1", "k1"
	for n := range 2 {
		order, replayed, err := pgstore.Do(ctx, orders, guard.Operation{Scope: user, Key: key}, pool, placeOrder)
		if err != nil || order.ID != 1 || replayed != (n > 0) {
			t.Errorf("call %d: %+v, %v, %v", n, order, replayed, err)
		}
	}
	placed(1)

	handler := func(w http.ResponseWriter, r *http.Request) {
		ctx, header, body := r.Context(), http.Header{"Content-Type": {"text/plain"}}, []byte("placed")
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := placeOrder(ctx, tx); err != nil {
				return err
			}
			attempt, _ := guard.FromContext(ctx)
			answer := idempotency.Answer(http.StatusCreated, header, body)
			err := pgstore.Complete(ctx, tx, attempt, answer) // then tx.Commit, and write the same answer
			return err
		})
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "text/plain")
		w.WriteHeader(http.StatusCreated)
		_, _ = w.Write(body)
	}
	h := idempotency.New(orders, nethttp.Unscoped())(http.HandlerFunc(handler))
	for n := range 2 {
		r, w := httptest.NewRequest(http.MethodPost, "/orders", nil), httptest.NewRecorder()
		r.Header.Set("Idempotency-Key", "k2")
		h.ServeHTTP(w, r)
		if replayed := w.Header().Get("Idempotency-Replayed") != ""; w.Code != http.StatusCreated || w.Body.String() != "placed" || replayed != (n > 0) {
			t.Errorf("request %d: %d %s, replayed: %v", n, w.Code, w.Body, replayed)
		}
	}
	placed(2)
}
