package main_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// database is a connection of the test to the shop's database.
type database struct {
	t testing.TB
	*pgx.Conn
}

func connect(t testing.TB, dsn string) database {
	t.Helper()
	c, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close(t.Context()) })
	return database{t, c}
}

// count returns how many rows a table has.
func (d database) count(table string) (n int) {
	d.t.Helper()
	if err := d.QueryRow(d.t.Context(), "SELECT count(*) FROM "+table).Scan(&n); err != nil {
		d.t.Fatal(err)
	}
	return n
}

func (d database) wantRows(charges, orders, completed int) {
	d.t.Helper()
	c, o, r := d.count("checkout.charges"), d.count("checkout.orders"), d.count("lk.operations WHERE state = 'C'")
	if c != charges || o != orders || r != completed {
		d.t.Errorf("%d charges, %d orders and %d completed operations, want %d, %d and %d", c, o, r, charges, orders, completed)
	}
}

// An instance that is killed between the order's insert and the commit leaves neither the order nor
// the record, and the repeat places the order. One that is killed after the commit leaves both.
func TestKilledAroundTheCommit(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Start(t).DSN()
	args := append([]string{"-postgres", dsn, "-lease", "1500ms"}, unlimited...)
	other, db, blocker := start(t, args...), connect(t, dsn), connect(t, dsn)
	// pay has an instance killed at a moment of its payment.
	pay := func(key, moment string, come func() bool) {
		t.Helper()
		dying, gone := start(t, args...), make(chan struct{})
		go func() {
			defer close(gone)
			_, _ = dying.try(purchase(key))
		}()
		eventually(t, 10*time.Second, moment, come)
		dying.kill()
		<-gone
	}

	// The record's row is locked, so that completing the attempt has to wait.
	tx, err := blocker.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	begun := false
	pay("before", "the order is inserted, and not committed", func() bool {
		if !begun {
			begun = tx.QueryRow(t.Context(), "SELECT true FROM lk.operations WHERE state = 'F' FOR UPDATE").Scan(&begun) == nil
			return false
		}
		return db.count(`pg_stat_activity a JOIN pg_locks l USING (pid) WHERE a.wait_event_type = 'Lock'
			AND a.query LIKE '%complete_operation%' AND l.relation = 'checkout.orders'::regclass AND l.mode = 'RowExclusiveLock'`) == 1
	})
	if err := tx.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, "its transaction has ended", func() bool {
		return db.count("pg_locks WHERE relation = 'checkout.orders'::regclass AND mode = 'RowExclusiveLock'") == 0
	})
	db.wantRows(1, 0, 0)

	var repeat answer
	eventually(t, 10*time.Second, "its lease has ended", func() bool {
		repeat = other.do(purchase("before"))
		return repeat.status != http.StatusConflict
	})
	repeat.want(t, http.StatusCreated, false)
	db.wantRows(1, 1, 1)
	again := other.do(purchase("before")).want(t, http.StatusCreated, true)
	for _, name := range []string{"X-Attempt", "Location", "Content-Type"} {
		if repeat.header.Get(name) == "" || again.header.Get(name) != repeat.header.Get(name) {
			t.Errorf("%s: %q, and replayed %q", name, repeat.header.Get(name), again.header.Get(name))
		}
	}
	if repeat.header.Get("X-Attempt") != "2" || again.body != repeat.body {
		t.Errorf("attempt %s: %s, and replayed %s", repeat.header.Get("X-Attempt"), repeat.body, again.body)
	}
	look := call{method: http.MethodGet, path: repeat.header.Get("Location"), user: "alice"}
	if a := other.do(look).want(t, http.StatusOK, false); a.body != repeat.body {
		t.Errorf("the order is %s", a.body)
	}

	pay("after", "the order is committed", func() bool { return db.count("checkout.orders") == 2 })
	db.wantRows(2, 2, 2)
	other.do(purchase("after")).want(t, http.StatusCreated, true)
}

// The server is killed, and started again.
func TestPostgresStopped(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	i := start(t, append([]string{"-postgres", server.DSN()}, unlimited...)...)
	i.do(stockCall(http.MethodPost, "tea", `{"quantity":5}`)).want(t, http.StatusOK, false)
	i.do(purchase("before")).want(t, http.StatusCreated, false)
	server.Kill()
	for _, c := range []call{
		purchase("during"), purchase("before"), {method: http.MethodGet, path: "/api/orders/x", user: "alice"},
		take(""), take("?lock=off"), stockCall(http.MethodGet, "tea", ""), stockCall(http.MethodPost, "tea", `{"quantity":9}`),
	} {
		i.do(c).wantProblem(t, http.StatusServiceUnavailable, "")
	}
	server.Restart()
	eventually(t, 10*time.Second, "it serves again", func() bool { return i.do(purchase("during")).status == http.StatusCreated })
	i.do(purchase("before")).want(t, http.StatusCreated, true)
	i.do(take("")).want(t, http.StatusOK, false)
	if left := i.stock("tea"); left != 4 {
		t.Errorf("%d left", left)
	}
	connect(t, server.DSN()).wantRows(2, 2, 2)
}

// A holder whose lock another one has had since does not write the stock.
func TestPostgresFencesTheStock(t *testing.T) {
	t.Parallel()
	dsn := postgrestest.Start(t).DSN()
	i, db := start(t, "-postgres", dsn), connect(t, dsn)
	i.do(stockCall(http.MethodPost, "tea", `{"quantity":5}`)).want(t, http.StatusOK, false)
	if _, err := db.Exec(t.Context(), "UPDATE checkout.stock SET fence = fence * 2"); err != nil {
		t.Fatal(err)
	}
	i.do(take("")).wantProblem(t, http.StatusServiceUnavailable, "")
	if left := i.stock("tea"); left != 5 {
		t.Errorf("%d left", left)
	}
	i.do(take("?lock=off")).want(t, http.StatusOK, false)
	i.do(take("")).wantProblem(t, http.StatusServiceUnavailable, "")
	if left := i.stock("tea"); left != 4 {
		t.Errorf("%d left", left)
	}
}

// What a client may send, and a database refuses in a text, finds no order, and is no failure.
func TestPostgresStrangeNames(t *testing.T) {
	t.Parallel()
	i := start(t, append(shared["postgres"](t), unlimited...)...)
	strange := purchase("k")
	strange.user = "\xff\u00e9"
	i.do(strange).want(t, http.StatusCreated, false)
	i.do(strange).want(t, http.StatusCreated, true)
	for _, id := range []string{"%00", "%ff", "'", "%22:%22"} {
		i.do(call{method: http.MethodGet, path: "/api/orders/" + id, user: "alice"}).wantProblem(t, http.StatusNotFound, "")
	}
}
