package pgstore

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// client is a process with a locker, and a pool for its own data.
type client struct {
	t      testing.TB
	locker *lock.Locker
	pool   *pgxpool.Pool
}

const bindable = "&pool_max_conns=20&idle_in_transaction_session_timeout=20000"

func newClient(t testing.TB, dsn, settings string, opts ...lock.Option) *client {
	t.Helper()
	c := &client{t: t}
	var err error
	if c.locker, err = lock.New(openTestStore(t, dsn), "accounts", append(opts, lock.WithLogger(slog.New(slog.DiscardHandler)))...); err == nil {
		c.pool, err = pgxpool.New(t.Context(), dsn+settings)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.pool.Close)
	return c
}

func (c *client) lock() *lock.Lease {
	c.t.Helper()
	l, err := c.locker.Lock(c.t.Context(), "alice")
	if err != nil {
		c.t.Fatal(err)
	}
	return l
}

func (c *client) begin(options pgx.TxOptions) pgx.Tx {
	c.t.Helper()
	tx, err := c.pool.BeginTx(context.Background(), options)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	return tx
}

// TestBind has a holder write beyond the end of its lease, as one does that was paused.
func TestBind(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	a := newClient(t, dsn, bindable, lock.WithTTL(testpace.Scale(2*time.Second)), lock.WithoutRenewal())
	b := newClient(t, dsn, bindable)
	held := a.lock()
	tx := a.begin(pgx.TxOptions{})
	for range 2 {
		if err := Bind(t.Context(), tx, held); err != nil {
			t.Fatal(err)
		}
	}
	<-held.Context().Done()
	time.Sleep(100 * time.Millisecond) // beyond its end
	if _, err := b.locker.TryLock(t.Context(), "alice"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Fatalf("TryLock beside a bound transaction: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if _, err := b.locker.Lock(ctx, "alice"); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("Lock beside a bound transaction: %v", err)
	}
	var (
		wg    sync.WaitGroup
		over  atomic.Bool
		since time.Time
	)
	wg.Go(func() {
		l, err := b.locker.Lock(t.Context(), "alice")
		if err != nil {
			t.Errorf("Lock: %v", err)
			return
		}
		if !over.Load() {
			t.Error("the lock was granted beside a bound transaction")
		}
		if l.Fence().Number <= held.Fence().Number {
			t.Errorf("fence %d after %d", l.Fence().Number, held.Fence().Number)
		}
		if err := l.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
	time.Sleep(300 * time.Millisecond)
	over.Store(true)
	since = time.Now()
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if took := time.Since(since); took > patience {
		t.Errorf("the next one had the lock %v after the commit", took)
	}
	if err := Bind(t.Context(), a.begin(pgx.TxOptions{}), held); !errors.Is(err, lock.ErrExpired) {
		t.Errorf("Bind of a lease that has ended: %v", err)
	}
	l, err := b.locker.TryLock(t.Context(), "alice")
	if err != nil {
		t.Fatalf("TryLock of a free lock: %v", err)
	}
	_ = l.Unlock(t.Context())
}

// TestBindLost has a holder that does not know that it has lost the lock.
func TestBindLost(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	a, b := newClient(t, dsn, bindable, lock.WithTTL(time.Minute)), newClient(t, dsn, bindable)
	held := a.lock()
	a.exec("UPDATE lk.leases SET ends = 0")
	next := b.lock()
	tx := a.begin(pgx.TxOptions{})
	if err := Bind(t.Context(), tx, held); !errors.Is(err, lock.ErrLost) {
		t.Errorf("got %v, want ErrLost", err)
	}
	if err := Bind(t.Context(), b.begin(pgx.TxOptions{}), next); err != nil {
		t.Errorf("of the next holder: %v", err)
	}
}

func (c *client) exec(text string) {
	c.t.Helper()
	if _, err := c.pool.Exec(context.Background(), text); err != nil {
		c.t.Fatal(err)
	}
}

func TestBindRefuses(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	c := newClient(t, dsn, bindable)
	held := c.lock()
	for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
		if err := Bind(t.Context(), c.begin(pgx.TxOptions{IsoLevel: level}), held); err == nil {
			t.Errorf("%s: no error", level)
		}
	}
	without := newClient(t, dsn, "&idle_in_transaction_session_timeout=0")
	if err := Bind(t.Context(), without.begin(pgx.TxOptions{}), held); err == nil {
		t.Error("without a timeout: no error")
	}
	if held.Context().Err() != nil {
		t.Errorf("the lease has ended: %v", context.Cause(held.Context()))
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := Bind(t.Context(), c.begin(pgx.TxOptions{}), held); !errors.Is(err, lock.ErrReleased) {
		t.Errorf("released: %v", err)
	}
	shared, err := c.locker.RLock(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	if err := Bind(t.Context(), c.begin(pgx.TxOptions{}), shared); err == nil {
		t.Error("shared: no error")
	}
	_ = shared.Unlock(t.Context())
	st := memstore.New()
	defer func() { _ = st.Close() }()
	other, err := lock.New(st, "accounts")
	if err != nil {
		t.Fatal(err)
	}
	l, err := other.Lock(t.Context(), "alice")
	if err != nil {
		t.Fatal(err)
	}
	if err := Bind(t.Context(), c.begin(pgx.TxOptions{}), l); err == nil {
		t.Error("of another store: no error")
	}
	_ = l.Unlock(t.Context())
}

// TestBindSQL binds a transaction of database/sql.
func TestBindSQL(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	s := openShop(t, dsn, bindable)
	c := newClient(t, dsn, bindable)
	held := c.lock()
	tx, err := s.db.BeginTx(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(Bind(t.Context(), SQLTx(tx), held), tx.Commit()); err != nil {
		t.Error(err)
	}
}

// TestBindRaces has holders with leases so short that they end in the middle of bound transactions:
// each reads a number, waits, and writes the next one. A lost update would be two holders at once.
func TestBindRaces(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	var (
		wg      sync.WaitGroup
		written atomic.Int64
		late    atomic.Int64
	)
	ttl := testpace.Scale(50 * time.Millisecond)
	setup := newClient(t, dsn, bindable)
	setup.exec("CREATE TABLE numbers (n bigint)")
	setup.exec("INSERT INTO numbers VALUES (0)")
	for range 4 {
		c := newClient(t, dsn, bindable, lock.WithTTL(ttl), lock.WithoutRenewal())
		wg.Go(func() {
			for range 15 {
				l, err := c.locker.Lock(t.Context(), "alice")
				if err != nil {
					continue // it has run out already
				}
				err = pgx.BeginFunc(t.Context(), c.pool, func(tx pgx.Tx) error {
					if err := Bind(t.Context(), tx, l); err != nil {
						return err
					}
					var n int64
					if err := tx.QueryRow(t.Context(), "SELECT n FROM numbers").Scan(&n); err != nil {
						return err
					}
					time.Sleep(ttl + 10*time.Millisecond) // longer than the lease
					_, err := tx.Exec(t.Context(), "UPDATE numbers SET n = $1", n+1)
					return err
				})
				if err == nil {
					written.Add(1)
					if l.Context().Err() != nil {
						late.Add(1)
					}
				}
				_ = l.Unlock(t.Context())
			}
		})
	}
	wg.Wait()
	var n int64
	if err := setup.pool.QueryRow(t.Context(), "SELECT n FROM numbers").Scan(&n); err != nil {
		t.Fatal(err)
	}
	if n != written.Load() || late.Load() == 0 {
		t.Errorf("%d transactions wrote the number %d, %d of them after their leases had ended", written.Load(), n, late.Load())
	}
	t.Logf("%d transactions, %d of them after their leases had ended", written.Load(), late.Load())
}
