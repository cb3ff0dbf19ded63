package pgstore

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// throughPooler returns the DSN of a new database with counts, and its DSN through a pooler of
// transactions with few connections.
func throughPooler(t testing.TB, settings ...string) (direct, pooled string) {
	t.Helper()
	direct = prepared(t)
	config, err := pgx.ParseConfig(direct)
	must(t, err)
	address := postgrestest.StartPgBouncer(t, statement.AddressOf(config), append([]string{"default_pool_size=3"}, settings...)...)
	return direct, postgrestest.Through(direct, address)
}

// exercise makes many calls of several statements at once.
func exercise(t testing.TB, s *Store) {
	t.Helper()
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() {
			for range 20 {
				if err := count(t.Context(), s, 1+i); err != nil {
					t.Error(err)
					return
				}
				if _, err := statement.Run(t.Context(), s.db, statement.Call{Operation: opInspect}, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
					err = c.QueryRow(ctx, "SELECT n FROM lk.counts WHERE id = $1", i+1).Scan(&n)
					return n, err
				}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	all.Wait()
}

func TestThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	direct, pooled := throughPooler(t)
	t.Run("with a connection to listen", func(t *testing.T) {
		t.Parallel()
		s := openTestStore(t, pooled, WithTransactionPooler(direct))
		must(t, s.Ping(t.Context()))
		exercise(t, s)
		s.db.Listen()
		eventually(t, "it listens", s.db.Listens)
	})
	t.Run("without one", func(t *testing.T) {
		t.Parallel()
		s := openTestStore(t, pooled, WithTransactionPooler(""))
		exercise(t, s)
		s.db.Listen()
		if s.db.Listens() {
			t.Error("it listens")
		}
	})
}

// acceptable removes what a pooler of transactions refuses.
func acceptable(listening *pgx.ConnConfig) {
	delete(listening.RuntimeParams, "statement_timeout")
	delete(listening.RuntimeParams, "idle_session_timeout")
}

// The store keeps its whole contract through a pooler of transactions.
func TestContractsThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	direct, pooled := throughPooler(t, "default_pool_size=20")
	contracts(t, pooled, WithTransactionPooler(direct))
}

// Its user needs no more rights than Grants gives.
func TestContractsWithGrantedRights(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	role := "App of " + databaseOf(t, dsn) // roles are those of the server
	administer(t, dsn, "CREATE ROLE "+pgx.Identifier{role}.Sanitize()+" LOGIN", Grants(role))
	contracts(t, strings.Replace(dsn, "postgres@", url.PathEscape(role)+"@", 1))
}

// contracts runs all suites on stores of a database.
func contracts(t *testing.T, dsn string, opts ...Option) {
	suite := func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		s := openTestStore(t, dsn, append([]Option{WithConnections(4)}, opts...)...)
		test(t, storetest.Harness[*Store]{Store: s, Advance: time.Sleep})
		for _, text := range sweeps {
			_, err := statement.Run(t.Context(), s.db, statement.Call{Operation: opSweep, Urgency: batch.Finishing}, statement.Execute(s.db.Text(text)))
			if !errors.Is(err, store.ErrClosed) {
				must(t, err)
			}
		}
	}
	for name, contract := range map[string]func(*testing.T, storetest.Runner[*Store]){
		"leases": storetest.Leases[*Store], "buckets": storetest.Buckets[*Store], "records": storetest.Records[*Store], "latches": storetest.Latches[*Store],
		"delays": storetest.Delays[*Store], "documents": storetest.Documents[*Store],
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			contract(t, suite)
		})
	}
}

// Without a connection to listen, waiters notice later, by their heartbeats.
func TestWaitingWithoutListening(t *testing.T) {
	t.Parallel()
	direct, pooled := throughPooler(t)
	holder, waiter := openTestStore(t, pooled, WithTransactionPooler("")), openTestStore(t, direct, WithTransactionPooler(""))
	for range 3 {
		ref := takes(t, holder, exclusive("k"))
		req := exclusive("k")
		got := waitsFor(t, waiter, req)
		ends(t, holder, store.Released, ref)
		released := time.Now()
		grant := gets(t, got)
		t.Logf("granted after %v", time.Since(released))
		if grant.Fence <= ref.Fence {
			t.Errorf("fence %d after %d", grant.Fence, ref.Fence)
		}
		ends(t, waiter, store.Released, req.Ref(grant.Fence))
	}
}

// An outage of the server behind a pooler is one.
func TestAnOutageBehindAPooler(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	install(t, server.DSN())
	pooled := postgrestest.Through(server.DSN(), postgrestest.StartPgBouncer(t, server.Addr(), "server_login_retry=1"))
	s := openTestStore(t, pooled, WithTransactionPooler(""), WithTimeout(brisk))
	eventually(t, "it works", func() bool { return count(t.Context(), s, 1) == nil })
	server.Kill()
	eventually(t, "the breaker opens", func() bool {
		err := count(t.Context(), s, 1)
		if err != nil && !store.Down(err) {
			t.Errorf("got %v, want an outage", err)
		}
		return breaker.Refused(err)
	})
	server.Restart()
	eventually(t, "it works again", func() bool { return count(t.Context(), s, 1) == nil })
}

// A pooler that no option names is reported.
func TestATransactionPoolerIsNoticed(t *testing.T) {
	t.Parallel()
	advice := func(t *testing.T, err error) {
		t.Helper()
		if !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != store.WrongServer || !strings.Contains(err.Error(), "WithTransactionPooler") {
			t.Errorf("got %v; want advice", err)
		}
	}
	t.Run("by its refusal of settings", func(t *testing.T) {
		t.Parallel()
		_, pooled := throughPooler(t)
		advice(t, openTestStore(t, pooled).Ping(t.Context()))
	})
	const ignores = "ignore_startup_parameters=statement_timeout,idle_in_transaction_session_timeout,default_transaction_isolation,plan_cache_mode"
	t.Run("by prepared statements that are missing", func(t *testing.T) {
		t.Parallel()
		_, pooled := throughPooler(t, ignores)
		s := openTestStore(t, pooled)
		var all sync.WaitGroup
		var mu sync.Mutex
		var found error
		for i := range 16 {
			all.Go(func() {
				for range 20 {
					if err := count(t.Context(), s, 1+i); err != nil {
						mu.Lock()
						defer mu.Unlock()
						found = err
						return
					}
				}
			})
		}
		all.Wait()
		advice(t, found)
	})
	t.Run("by its silence", func(t *testing.T) {
		t.Parallel()
		_, pooled := throughPooler(t)
		log := new(logbook)
		s := openTestStore(t, pooled, WithTransactionPooler(pooled), WithTimeout(brisk), log.option())
		acceptable(s.listen)
		s.db.Listen()
		eventually(t, "it is logged", func() bool { return log.has("misconfigured", "does not arrive", "WithTransactionPooler") })
		if s.db.Listens() {
			t.Error("it listens")
		}
		eventually(t, "it works nevertheless", func() bool { return count(t.Context(), s, 1) == nil })
	})
	t.Run("by the isolation of its transactions", func(t *testing.T) {
		t.Parallel()
		direct, pooled := throughPooler(t)
		administer(t, direct, "ALTER DATABASE "+databaseOf(t, direct)+" SET default_transaction_isolation = 'serializable'")
		err := openTestStore(t, pooled, WithTransactionPooler("")).Ping(t.Context())
		if !errors.Is(err, store.ErrMisconfigured) || !strings.Contains(err.Error(), "ALTER ROLE") {
			t.Errorf("got %v; want advice", err)
		}
	})
}
