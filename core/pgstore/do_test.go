package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// shop is an application with a table of its own.
type shop struct {
	t     testing.TB
	store *Store
	guard *guard.Guard
	pool  *pgxpool.Pool
	db    *sql.DB
}

func newShop(t testing.TB, opts ...guard.Option) *shop {
	t.Helper()
	return openShop(t, migrated(t), "", opts...)
}

// openShop opens a shop on a database, with further settings of its connections.
func openShop(t testing.TB, dsn, settings string, opts ...guard.Option) *shop {
	t.Helper()
	s := &shop{t: t, store: openTestStore(t, dsn)}
	var err error
	if s.guard, err = guard.New(s.store, "orders", opts...); err != nil {
		t.Fatal(err)
	}
	if s.pool, err = pgxpool.New(t.Context(), dsn+settings); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.pool.Close)
	s.db = stdlib.OpenDBFromPool(s.pool)
	t.Cleanup(func() { _ = s.db.Close() })
	s.exec("CREATE TABLE IF NOT EXISTS orders (id text, key text)")
	return s
}

func (s *shop) exec(text string, args ...any) {
	s.t.Helper()
	if _, err := s.pool.Exec(context.Background(), text, args...); err != nil {
		s.t.Fatal(err)
	}
}

func orderOp(key string) guard.Operation { return guard.Operation{Key: key, Scope: "alice"} }

const insertOrder = "INSERT INTO orders (id, key) VALUES ($1, $2)"

// order places an order with Do, which fails with then.
func (s *shop) order(op guard.Operation, id string, then error) (string, bool, error) {
	return Do(s.t.Context(), s.guard, op, s.pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
		if _, err := tx.Exec(ctx, insertOrder, id, op.Key); err != nil {
			return "", err
		}
		return id, then
	})
}

// orders returns the IDs of the orders with a key.
func (s *shop) orders(key string) (ids []string) {
	s.t.Helper()
	rows, err := s.pool.Query(context.Background(), "SELECT id FROM orders WHERE key = $1 ORDER BY id", key)
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[string])
	}
	if err != nil {
		s.t.Fatal(err)
	}
	return ids
}

func (s *shop) wantOrders(key string, want ...string) {
	s.t.Helper()
	if got := s.orders(key); strings.Join(got, " ") != strings.Join(want, " ") {
		s.t.Errorf("orders of %s: %q, want %q", key, got, want)
	}
}

func TestDo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	op := orderOp("k1")
	if id, replayed, err := s.order(op, "a", nil); id != "a" || replayed || err != nil {
		t.Fatalf("%q, %v, %v", id, replayed, err)
	}
	for range 2 {
		if id, replayed, err := s.order(op, "b", nil); id != "a" || !replayed || err != nil {
			t.Errorf("again: %q, %v, %v", id, replayed, err)
		}
	}
	s.wantOrders("k1", "a")
	other := op
	other.Fingerprint = []byte("other")
	if _, _, err := s.order(other, "c", nil); !errors.Is(err, guard.ErrMismatch) {
		t.Errorf("with another fingerprint: %v", err)
	}
	// guard.Do finds what Do has kept.
	id, replayed, err := guard.Do(t.Context(), s.guard, op, func(context.Context) (string, error) { return "d", nil })
	if id != "a" || !replayed || err != nil {
		t.Errorf("guard.Do: %q, %v, %v", id, replayed, err)
	}
	if err := s.guard.Close(); err != nil {
		t.Errorf("Close: %v", err)
	}
	if _, _, err := s.order(orderOp("k2"), "e", nil); !errors.Is(err, guard.ErrClosed) {
		t.Errorf("of a closed guard: %v", err)
	}
}

func TestDoUndone(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	failure := errors.New("out of stock")
	op := orderOp("k")
	if _, _, err := s.order(op, "a", failure); !errors.Is(err, failure) {
		t.Errorf("fn failed: %v", err)
	}
	func() {
		defer func() {
			if recover() != "broken" {
				t.Error("the panic is gone")
			}
		}()
		_, _, _ = Do(t.Context(), s.guard, op, s.pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
			if _, err := tx.Exec(ctx, insertOrder, "b", op.Key); err != nil {
				t.Error(err)
			}
			panic("broken")
		})
	}()
	for name, fn := range map[string]func(ctx context.Context, tx pgx.Tx) error{
		"Rollback":           func(ctx context.Context, tx pgx.Tx) error { return tx.Rollback(ctx) },
		"a failed statement": func(ctx context.Context, tx pgx.Tx) error { _, _ = tx.Exec(ctx, "SELECT 1/0"); return nil },
		"ROLLBACK":           func(ctx context.Context, tx pgx.Tx) error { _, err := tx.Exec(ctx, "ROLLBACK"); return err },
		"another transaction": func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "ROLLBACK; BEGIN; INSERT INTO orders VALUES ('x', 'k')")
			return err
		},
	} {
		_, _, err := Do(t.Context(), s.guard, op, s.pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
			if _, err := tx.Exec(ctx, insertOrder, "c", op.Key); err != nil {
				return "", err
			}
			if tx.Commit(ctx) == nil {
				t.Error("fn has committed")
			}
			return "c", fn(ctx, tx)
		})
		if err == nil {
			t.Errorf("%s: no error", name)
		}
		s.wantOrders("k")
	}
	type receipt struct {
		ID     string
		amount int
	}
	for _, value := range []any{receipt{"c", 4200}, 1<<53 + 1, func() {}} {
		_, _, err := Do(t.Context(), s.guard, op, s.pool, func(ctx context.Context, tx pgx.Tx) (any, error) {
			_, err := tx.Exec(ctx, insertOrder, "c", op.Key)
			return value, err
		})
		if !errors.Is(err, guard.ErrEncoding) {
			t.Errorf("with %T: %v", value, err)
		}
		s.wantOrders("k")
	}
	never := func(context.Context, pgx.Tx) (func(), error) { panic("runs") }
	if _, _, err := Do(t.Context(), s.guard, op, s.pool, never); !errors.Is(err, guard.ErrEncoding) {
		t.Errorf("with a type that has no values: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	_, _, err := Do(ctx, s.guard, op, s.pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
		_, err := tx.Exec(ctx, insertOrder, "d", op.Key)
		cancel()
		return "d", err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v", err)
	}
	s.wantOrders("k")
	if id, replayed, err := s.order(op, "e", nil); id != "e" || replayed || err != nil {
		t.Errorf("at last: %q, %v, %v", id, replayed, err)
	}
	s.wantOrders("k", "e")
	if n := s.pool.Stat().AcquiredConns(); n != 0 {
		t.Errorf("%d connections were not given back", n)
	}
}

func TestDoSQL(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	op := orderOp("k")
	place := func(id string, then error) (string, bool, error) {
		return DoSQL(t.Context(), s.guard, op, s.db, func(ctx context.Context, tx *sql.Tx) (string, error) {
			if _, err := tx.ExecContext(ctx, insertOrder, id, op.Key); err != nil {
				return "", err
			}
			return id, then
		})
	}
	failure := errors.New("failure")
	if _, _, err := place("a", failure); !errors.Is(err, failure) {
		t.Errorf("fn failed: %v", err)
	}
	s.wantOrders("k")
	if id, replayed, err := place("b", nil); id != "b" || replayed || err != nil {
		t.Errorf("%q, %v, %v", id, replayed, err)
	}
	if id, replayed, err := place("c", nil); id != "b" || !replayed || err != nil {
		t.Errorf("again: %q, %v, %v", id, replayed, err)
	}
	s.wantOrders("k", "b")
}

// TestDoTwins has many calls for one operation at once.
func TestDoTwins(t *testing.T) {
	t.Parallel()
	for _, isolation := range []string{"read committed", "repeatable read", "serializable"} {
		t.Run(isolation, func(t *testing.T) {
			t.Parallel()
			s := openShop(t, migrated(t), "&pool_max_conns=20&default_transaction_isolation="+strings.ReplaceAll(isolation, " ", "%20"))
			for round := range 10 {
				op := orderOp(fmt.Sprint("k", round))
				op.Wait = 30 * time.Second
				var (
					wg    sync.WaitGroup
					fresh atomic.Int64
				)
				for i := range 8 {
					wg.Go(func() {
						_, replayed, err := s.order(op, fmt.Sprint(i), nil)
						if err != nil {
							t.Errorf("twin: %v", err)
						} else if !replayed {
							fresh.Add(1)
						}
					})
				}
				wg.Wait()
				if got := s.orders(op.Key); len(got) != 1 || fresh.Load() != 1 {
					t.Errorf("%d twins ran, and there are %d orders", fresh.Load(), len(got))
				}
			}
		})
	}
}

func TestDoWaits(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	op := orderOp("k")
	begun, release := make(chan struct{}), make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		_, _, err := Do(t.Context(), s.guard, op, s.pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
			_, err := tx.Exec(ctx, insertOrder, "first", op.Key)
			close(begun)
			<-release
			return "first", err
		})
		if err != nil {
			t.Errorf("the first one: %v", err)
		}
	})
	<-begun
	inFlight := func(err error) {
		t.Helper()
		var busy *guard.InFlightError
		if !errors.As(err, &busy) || busy.Remaining <= 0 {
			t.Errorf("got %v, want an *InFlightError", err)
		}
	}
	_, _, err := s.order(op, "at once", nil)
	inFlight(err)
	op.Wait = 100 * time.Millisecond
	before := time.Now()
	_, _, err = s.order(op, "soon", nil)
	inFlight(err)
	if took := time.Since(before); took < op.Wait || took > op.Wait+patience {
		t.Errorf("waited for %v, want %v", took, op.Wait)
	}
	op.Wait = 30 * time.Second
	for range 2 {
		wg.Go(func() {
			if id, replayed, err := s.order(op, "twin", nil); id != "first" || !replayed || err != nil {
				t.Errorf("the twin: %q, %v, %v", id, replayed, err)
			}
		})
	}
	time.Sleep(50 * time.Millisecond) // they wait; if not yet, the test shows less
	close(release)
	wg.Wait()
	s.wantOrders("k", "first")
}

// TestDoBesideGuard has attempts of the guard itself at the same operations.
func TestDoBesideGuard(t *testing.T) {
	t.Parallel()
	s := newShop(t, guard.WithTTL(testpace.Scale(3*time.Second)))
	op := orderOp("begun in the store")
	a, _, err := s.guard.Begin(t.Context(), op)
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.order(op, "x", nil); !errors.Is(err, guard.ErrInFlight) {
		t.Errorf("while an attempt is in flight: %v", err)
	}
	waits := op
	waits.Wait = 30 * time.Second
	var wg sync.WaitGroup
	wg.Go(func() {
		if id, replayed, err := s.order(waits, "x", nil); id != "stored" || !replayed || err != nil {
			t.Errorf("waiting for it: %q, %v, %v", id, replayed, err)
		}
	})
	if err := a.Complete(t.Context(), guard.Result{Data: []byte(`"stored"`)}); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if id, replayed, err := s.order(op, "x", nil); id != "stored" || !replayed || err != nil {
		t.Errorf("after it: %q, %v, %v", id, replayed, err)
	}
	s.wantOrders(op.Key)

	op = orderOp("begun meanwhile")
	_, _, err = Do(t.Context(), s.guard, op, s.pool, func(ctx context.Context, tx pgx.Tx) (string, error) {
		if _, err := tx.Exec(ctx, insertOrder, "x", op.Key); err != nil {
			return "", err
		}
		a, _, err = s.guard.Begin(ctx, op)
		return "x", err
	})
	if !errors.Is(err, guard.ErrInFlight) {
		t.Errorf("an attempt was begun meanwhile: %v", err)
	}
	s.wantOrders(op.Key)
	if err := a.Abandon(t.Context()); err != nil {
		t.Fatal(err)
	}
	if id, replayed, err := s.order(op, "y", nil); id != "y" || replayed || err != nil {
		t.Errorf("after it was abandoned: %q, %v, %v", id, replayed, err)
	}
	s.wantOrders(op.Key, "y")

	// A clean attempt that has died is taken over.
	op = orderOp("died")
	owner := store.AttemptRef{OperationRef: refOf(s, op), Owner: "a-process-that-has-died"}
	begin := store.BeginRequest{AttemptRef: owner, Fingerprint: fingerprintOf(t, s, op), Lease: 10 * time.Millisecond, Retention: time.Hour}
	if reply, err := s.store.BeginOperation(t.Context(), begin); err != nil || reply.Outcome != store.Started {
		t.Fatalf("%+v, %v", reply, err)
	}
	if _, err := s.store.MarkOperation(t.Context(), store.MarkRequest{AttemptRef: owner, Effects: store.NoEffects, Seq: 1}); err != nil {
		t.Fatal(err)
	}
	time.Sleep(20 * time.Millisecond)
	failure := errors.New("failure")
	if _, _, err := s.order(op, "z", failure); !errors.Is(err, failure) {
		t.Errorf("taken over, and failed: %v", err)
	}
	if id, replayed, err := s.order(op, "z", nil); id != "z" || replayed || err != nil {
		t.Errorf("taken over: %q, %v, %v", id, replayed, err)
	}
	if id, replayed, err := s.order(op, "zz", nil); id != "z" || !replayed || err != nil {
		t.Errorf("taken over, and again: %q, %v, %v", id, replayed, err)
	}
	s.wantOrders(op.Key, "z")
}

// refOf returns the names of an operation in the store, and fingerprintOf what its record has.
func refOf(s *shop, op guard.Operation) store.OperationRef {
	a, _, err := s.guard.Begin(s.t.Context(), op)
	if err != nil {
		s.t.Fatal(err)
	}
	id := a.OperationID()
	if err := a.Abandon(s.t.Context()); err != nil {
		s.t.Fatal(err)
	}
	return store.OperationRef{Guard: "orders", ID: id[:22], Scope: id[22:]}
}

func fingerprintOf(t *testing.T, s *shop, op guard.Operation) (fingerprint string) {
	a, _, err := s.guard.Begin(t.Context(), op)
	if err == nil {
		id := a.OperationID()
		err = s.pool.QueryRow(t.Context(), "SELECT fingerprint FROM lk.operations WHERE id = $1", id[:22]).Scan(&fingerprint)
		_ = a.Abandon(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return fingerprint
}

func TestDoFullScope(t *testing.T) {
	t.Parallel()
	s := newShop(t, guard.WithMaxPerScope(4), guard.WithMaxScopeBytes(1000))
	for i := range 4 {
		if _, _, err := s.order(orderOp(fmt.Sprint("k", i)), "x", nil); err != nil {
			t.Fatal(err)
		}
	}
	var full *guard.ScopeFullError
	if _, _, err := s.order(orderOp("one more"), "x", nil); !errors.As(err, &full) || full.RetryAfter <= 0 {
		t.Errorf("of a full scope: %v", err)
	}
	s.wantOrders("one more")
	large := guard.Operation{Key: "large", Scope: "bob"}
	value := strings.Repeat("x", 1010) // too small to be deflated
	if _, _, err := s.order(large, value, nil); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.order(large, "x", nil); !errors.Is(err, guard.ErrNotRetained) {
		t.Errorf("a result beyond the bytes of the scope: %v", err)
	}
	if got := s.orders("large"); len(got) != 1 {
		t.Errorf("%d orders", len(got))
	}
}

func TestDoOfAnotherStore(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	if _, _, err := Do(t.Context(), nil, orderOp("k"), s.pool, func(context.Context, pgx.Tx) (int, error) { return 0, nil }); err == nil {
		t.Error("a nil guard: no error")
	}
	if _, _, err := Do(t.Context(), s.guard, orderOp("k"), nil, func(context.Context, pgx.Tx) (int, error) { return 0, nil }); err == nil {
		t.Error("a nil pool: no error")
	}
	op := orderOp("k")
	op.Wait = -1
	if _, _, err := s.order(op, "x", nil); !errors.Is(err, guard.ErrInvalidOperation) {
		t.Errorf("a negative wait: %v", err)
	}
}

// TestTxOfDo uses what fn's transaction can do.
func TestTxOfDo(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	op := orderOp("k")
	var kept pgx.Tx
	_, _, err := Do(t.Context(), s.guard, op, s.pool, func(ctx context.Context, tx pgx.Tx) (n int, err error) {
		kept = tx
		err = pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error { _, err := tx.Exec(ctx, insertOrder, "a", "k"); return err })
		if err != nil {
			return 0, fmt.Errorf("savepoint: %w", err)
		}
		undone := errors.New("undone")
		if err := pgx.BeginFunc(ctx, tx, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, insertOrder, "b", "k")
			return errors.Join(err, undone)
		}); !errors.Is(err, undone) {
			return 0, err
		}
		if _, err := tx.CopyFrom(ctx, pgx.Identifier{"orders"}, []string{"id", "key"}, pgx.CopyFromRows([][]any{{"c", "k"}})); err != nil {
			return 0, fmt.Errorf("copy: %w", err)
		}
		var batch pgx.Batch
		batch.Queue(insertOrder, "d", "k")
		if err := tx.SendBatch(ctx, &batch).Close(); err != nil {
			return 0, fmt.Errorf("batch: %w", err)
		}
		objects := tx.LargeObjects()
		if _, err := objects.Create(ctx, 0); err != nil {
			return 0, fmt.Errorf("large object: %w", err)
		}
		rows, err := tx.Query(ctx, "SELECT 1 FROM orders")
		if err != nil {
			return 0, err
		}
		all, err := pgx.CollectRows(rows, pgx.RowTo[int])
		return len(all), err
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wantOrders("k", "a", "c", "d")
	_, execErr := kept.Exec(t.Context(), "SELECT 1")
	_, queryErr := kept.Query(t.Context(), "SELECT 1")
	_, beginErr := kept.Begin(t.Context())
	for _, err := range []error{execErr, queryErr, beginErr, kept.QueryRow(t.Context(), "SELECT 1").Scan(new(int)), kept.Rollback(t.Context())} {
		if !errors.Is(err, pgx.ErrTxClosed) {
			t.Errorf("after the commit: %v, want ErrTxClosed", err)
		}
	}
}

// TestDoByProtocol has pools that send statements in other ways, as those behind a pooler do.
func TestDoByProtocol(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	for _, mode := range []string{"cache_statement", "cache_describe", "describe_exec", "exec", "simple_protocol"} {
		t.Run(mode, func(t *testing.T) {
			s := openShop(t, dsn, "&default_query_exec_mode="+mode)
			op := orderOp(mode)
			if id, replayed, err := s.order(op, "a", nil); id != "a" || replayed || err != nil {
				t.Fatalf("%q, %v, %v", id, replayed, err)
			}
			if id, replayed, err := s.order(op, "b", nil); id != "a" || !replayed || err != nil {
				t.Errorf("again: %q, %v, %v", id, replayed, err)
			}
			s.wantOrders(op.Key, "a")
			op = orderOp("complete " + mode)
			tx, err := s.complete(s.begin(op), op.Key, "a")
			if err := errors.Join(err, tx.Commit(t.Context())); err != nil {
				t.Fatal(err)
			}
			s.replays(op, "a")
		})
	}
}

func TestDoInAnotherSchema(t *testing.T) {
	t.Parallel()
	dsn := migrated(t, WithSchema("user"))
	pool, err := pgxpool.New(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	g, err := guard.New(openTestStore(t, dsn, WithSchema("user")), "orders")
	if err != nil {
		t.Fatal(err)
	}
	for n := range 2 {
		got, replayed, err := Do(t.Context(), g, orderOp("k"), pool, func(context.Context, pgx.Tx) (int, error) { return n, nil })
		if got != 0 || replayed != (n == 1) || err != nil {
			t.Errorf("%d, %v, %v", got, replayed, err)
		}
	}
}

// A call without a free connection ends with its context.
func TestDoSQLWithoutConnections(t *testing.T) {
	t.Parallel()
	s := newShop(t)
	s.db.SetMaxOpenConns(1)
	busy, err := s.db.Conn(t.Context())
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err = DoSQL(ctx, s.guard, guard.Operation{Key: "k"}, s.db, func(context.Context, *sql.Tx) (int, error) { return 1, nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("without a connection: %v", err)
	}
	must(t, busy.Close())
	if n, replayed, err := DoSQL(t.Context(), s.guard, guard.Operation{Key: "k"}, s.db, func(context.Context, *sql.Tx) (int, error) { return 2, nil }); n != 2 || replayed || err != nil {
		t.Error(n, replayed, err)
	}
}
