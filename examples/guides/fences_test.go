package guides_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/alicebob/miniredis/v2"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/fence/redisfence"
	"github.com/lockkeeper/lockkeeper/core/fence/sqlfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/fenced"
)

// pausedAndNext returns the lease of a holder that was paused, and has not noticed that it has lost the
// lock, and that of the next one.
func pausedAndNext(ctx context.Context, locks *lock.Locker, key string) (paused, next *lock.Lease) {
	paused = must(locks.Lock(ctx, key))
	must(locks.ForceUnlock(ctx, key, paused.Fence().Number)) // as if its lease had ended
	return paused, must(locks.Lock(ctx, key))
}

// saveStock writes a row, unless a later holder of the lock has written it.
func saveStock(ctx context.Context, db *sql.DB, t fence.Token, sku string, left int) error {
	return sqlfence.Exec(ctx, db, t,
		`UPDATE stock SET quantity = $1, fence = $2 WHERE sku = $3 AND fence <= $2`, left, t.Number, sku)
}

func TestFenceInSQL(t *testing.T) {
	ctx := t.Context()
	db := must(sql.Open("pgx", postgrestest.Start(t).DSN()))
	defer func() { _ = db.Close() }()
	must(db.ExecContext(ctx, `CREATE TABLE stock (sku text PRIMARY KEY, quantity bigint NOT NULL, fence bigint NOT NULL DEFAULT 0)`))
	must(db.ExecContext(ctx, `INSERT INTO stock (sku, quantity) VALUES ('tea', 9)`))
	store := memstore.New()
	defer store.Close()
	paused, next := pausedAndNext(ctx, must(lock.New(store, "stock")), "tea")
	for range 2 { // one holder may write many times
		if err := saveStock(ctx, db, next.Fence(), "tea", 7); err != nil {
			t.Fatal(err)
		}
	}
	if err := saveStock(ctx, db, paused.Fence(), "tea", 8); !errors.Is(err, fence.ErrStale) {
		t.Errorf("the paused holder: %v", err)
	}
	var quantity int
	if err := db.QueryRowContext(ctx, `SELECT quantity FROM stock`).Scan(&quantity); err != nil || quantity != 7 {
		t.Errorf("%d are left, %v", quantity, err)
	}
}

func Example_fenceInRedis() {
	ctx := context.Background()
	server, err := miniredis.Run() // yours goes here
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	carts, err := redisfence.New(client)
	if err != nil {
		panic(err)
	}
	store := memstore.New() // or redisstore.New(client)
	defer store.Close()

	paused, next := pausedAndNext(ctx, must(lock.New(store, "carts")), "42")
	save := func(lease *lock.Lease, cart string) error {
		return carts.Set(ctx, "cart:42", []byte(cart), 0, lease.Fence())
	}
	fmt.Println(save(next, "tea, cake"))
	fmt.Println(errors.Is(save(paused, "tea"), fence.ErrStale))
	fmt.Println(client.Get(ctx, "cart:42").Val()) // readers need nothing special
	// Output:
	// <nil>
	// true
	// tea, cake
}

// saveAccount is a handler behind the middleware. It has admitted the fence, which the database compares
// again: the handler may be paused, too.
func saveAccount(w http.ResponseWriter, r *http.Request) {
	token, ok := fence.FromContext(r.Context())
	if !ok {
		http.Error(w, "no fence", http.StatusInternalServerError)
		return
	}
	// UPDATE accounts SET …, fence = $1 WHERE id = $2 AND fence <= $1
	_, _ = fmt.Fprintf(w, "account %s, fence %d", r.PathValue("id"), token.Number)
}

// A holder asks another service to write. Its requests have the fence of the lease that they are sent
// under.
func Example_fenceOverHTTP() {
	ctx := context.Background()
	marks, err := memfence.New() // or redisfence.New(client), for several instances of the service
	if err != nil {
		panic(err)
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /accounts/{id}", fenced.New(marks, nethttp.ByPathValue("id"))(http.HandlerFunc(saveAccount)))
	service := httptest.NewServer(mux)
	defer service.Close()

	client := &http.Client{Transport: fenced.Transport(nil)}
	defer client.CloseIdleConnections()
	put := func(ctx context.Context) {
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, service.URL+"/accounts/7", nil)
		if err != nil {
			panic(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			panic(err)
		}
		_ = resp.Body.Close()
		fmt.Println(resp.Status)
	}

	store := memstore.New() // or redisstore.New(client), for several processes
	defer store.Close()
	paused, next := pausedAndNext(ctx, must(lock.New(store, "accounts")), "7")
	put(next.Context())
	put(context.WithoutCancel(paused.Context())) // as a request that has been on its way for long
	put(ctx)                                     // without a lock
	// Output:
	// 200 OK
	// 412 Precondition Failed
	// 428 Precondition Required
}
