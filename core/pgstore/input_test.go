package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// wantMisconfigured checks an error that waiting does not end: its cause, and that it says what to
// do.
func wantMisconfigured(t testing.TB, err error, cause store.Cause, says ...string) {
	t.Helper()
	if !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != cause || store.Down(err) || errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("got %v, want store.ErrMisconfigured with cause %s", err, cause)
		return
	}
	for _, text := range says {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%q does not say %q", err, text)
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for text, make := range map[string]func() (*Store, error){
		"cannot parse":                        func() (*Store, error) { return New("postgres://me:secret@host:port/db") },
		"timeout of 1ms":                      func() (*Store, error) { return New("", WithTimeout(time.Millisecond)) },
		"0 connections":                       func() (*Store, error) { return New("", WithConnections(0)) },
		`schema "Lk"`:                         func() (*Store, error) { return New("", WithSchema("Lk")) },
		"nil pool":                            func() (*Store, error) { return NewFromPool(nil) },
		"WithTransactionPooler: cannot parse": func() (*Store, error) { return New("", WithTransactionPooler("postgres://me:secret@host:port/db")) },
	} {
		s, err := make()
		if s != nil || err == nil || !strings.HasPrefix(err.Error(), "pgstore: New") || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, %v", text, s, err)
		}
		if err != nil && strings.Contains(err.Error(), "secret") {
			t.Errorf("%v tells the password", err)
		}
	}
}

func TestBadServers(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	install(t, server.DSN())
	administer(t, server.DSN(), "CREATE ROLE stranger LOGIN", "CREATE ROLE app LOGIN PASSWORD 'right'", "CREATE DATABASE empty")
	as := func(user, database string) string {
		return "postgres://" + user + "@" + server.Addr() + "/" + database + "?sslmode=disable"
	}
	t.Run("nothing listens there", func(t *testing.T) {
		s := openTestStore(t, "postgres://me:secret@127.0.0.1:1/db")
		for _, err := range []error{count(t.Context(), s, 1), count(t.Context(), s, 1), s.Ping(t.Context())} {
			if !store.Down(err) || store.CauseOf(err) != store.ConnectionRefused || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v", err)
			}
		}
	})
	t.Run("no such host", func(t *testing.T) {
		err := count(t.Context(), openTestStore(t, "postgres://me@host.invalid/db", WithTimeout(10*time.Second)), 1)
		if !store.Down(err) || store.CauseOf(err) != store.UnknownHost {
			t.Errorf("got %v", err)
		}
	})
	t.Run("no such database", func(t *testing.T) {
		wantMisconfigured(t, count(t.Context(), openTestStore(t, as("postgres", "nowhere")), 1), store.WrongServer, "create the database")
	})
	t.Run("no such role", func(t *testing.T) {
		wantMisconfigured(t, count(t.Context(), openTestStore(t, as("nobody", "postgres")), 1), store.Authentication, "nobody")
	})
	t.Run("no schema", func(t *testing.T) {
		s := openTestStore(t, as("postgres", "empty"))
		for range 2 { // then the breaker is open
			err := count(t.Context(), s, 1)
			wantMisconfigured(t, err, store.WrongServer, "schema lk", "Migrate")
			if strings.Count(err.Error(), "unavailable") != 1 {
				t.Errorf("it repeats itself: %v", err)
			}
		}
	})
	t.Run("another schema", func(t *testing.T) {
		s := openTestStore(t, as("postgres", "postgres"), WithSchema("lk2"))
		wantMisconfigured(t, count(t.Context(), s, 1), store.WrongServer, "schema lk2", "Migrate")
	})
	t.Run("no rights", func(t *testing.T) {
		s := openTestStore(t, as("stranger", "postgres"))
		wantMisconfigured(t, count(t.Context(), s, 1), store.Permission, "Grants")
		administer(t, server.DSN(), Grants("stranger"))
		eventually(t, "it works with them", func() bool { return count(t.Context(), s, 1) == nil })
		administer(t, server.DSN(), "REVOKE UPDATE ON lk.counts FROM stranger")
		wantMisconfigured(t, count(t.Context(), s, 1), store.Permission, "Grants")
	})
	t.Run("a wrong password", func(t *testing.T) {
		var file string
		conn, err := pgx.Connect(t.Context(), server.DSN())
		must(t, err)
		must(t, conn.QueryRow(t.Context(), "SHOW hba_file").Scan(&file))
		must(t, conn.Close(t.Context()))
		administer(t, server.DSN(), "COPY (SELECT 'host all app all scram-sha-256' UNION ALL SELECT 'host all all all trust') TO '"+file+"'",
			"SELECT pg_reload_conf()", Grants("app"))
		log := new(logbook)
		s := openTestStore(t, as("app:wrong", "postgres"), log.option())
		eventually(t, "the server asks for passwords", func() bool { return count(t.Context(), s, 1) != nil })
		wantMisconfigured(t, count(t.Context(), s, 1), store.Authentication, "password")
		if !log.has("postgresql is misconfigured", "cause=authentication") || log.has("wrong") {
			t.Error("it is not logged, or with the password")
		}
		must(t, openTestStore(t, as("app:right", "postgres")).Ping(t.Context()))
	})
	t.Run("too old a server", func(t *testing.T) {
		future := func(c *config) { c.oldest = 99 }
		wantMisconfigured(t, count(t.Context(), openTestStore(t, server.DSN(), future), 1), store.WrongServer, "too old: use 99 or later")
		conn, err := pgx.Connect(t.Context(), server.DSN())
		must(t, err)
		defer func() { _ = conn.Close(t.Context()) }()
		wantMisconfigured(t, Migrate(t.Context(), conn, future, WithSchema("lk3")), store.WrongServer, "too old: use 99 or later")
	})
	t.Run("an old schema", func(t *testing.T) {
		administer(t, server.DSN(), "UPDATE lk.schema_version SET version = 0")
		s := openTestStore(t, server.DSN())
		wantMisconfigured(t, count(t.Context(), s, 1), store.WrongServer, "version 0", "Migrate")
		install := func() {
			conn, err := pgx.Connect(t.Context(), server.DSN())
			must(t, err)
			defer func() { _ = conn.Close(t.Context()) }()
			must(t, Migrate(t.Context(), conn))
		}
		install()
		eventually(t, "it works after a migration", func() bool { return count(t.Context(), s, 1) == nil })
		administer(t, server.DSN(), "DELETE FROM lk.schema_version")
		wantMisconfigured(t, openTestStore(t, server.DSN()).Ping(t.Context()), store.WrongServer, "no version", "Migrate")
		install()
	})
	t.Run("a newer schema", func(t *testing.T) {
		administer(t, server.DSN(), fmt.Sprintf("UPDATE lk.schema_version SET version = %d, compatible = %d", schemaVersion+2, schemaVersion))
		must(t, openTestStore(t, server.DSN()).Ping(t.Context()))
		administer(t, server.DSN(), fmt.Sprintf("UPDATE lk.schema_version SET compatible = %d", schemaVersion+1))
		wantMisconfigured(t, count(t.Context(), openTestStore(t, server.DSN()), 1), store.WrongServer, "newer release")
	})
	t.Run("no right to migrate", func(t *testing.T) {
		conn, err := pgx.Connect(t.Context(), as("stranger", "empty"))
		must(t, err)
		defer func() { _ = conn.Close(t.Context()) }()
		if err := Migrate(t.Context(), conn); err == nil || !strings.Contains(err.Error(), "pgstore.Schema") {
			t.Errorf("got %v", err)
		}
	})
}

// A server that only reads is down for writes, and works again once it takes them: also on
// connections from before.
func TestReadOnlyServers(t *testing.T) {
	t.Parallel()
	recovers := func(t *testing.T, s *Store, log *logbook, change func()) {
		t.Helper()
		var err error
		eventually(t, "writes are refused", func() bool { err = count(t.Context(), s, 1); return err != nil })
		wantMisconfigured(t, err, store.ReadOnly, "connect to the primary")
		eventually(t, "the breaker opens", func() bool { return log.has(tripped, "cause=read_only") })
		inTime(t, "100 refused calls", 100*time.Millisecond, func() time.Duration {
			began := time.Now()
			for range 100 {
				err := count(t.Context(), s, 1)
				if wantMisconfigured(t, err, store.ReadOnly); !breaker.Refused(err) {
					t.Errorf("the breaker does not refuse a call: %v", err)
				}
			}
			return time.Since(began)
		})
		must(t, s.Ping(t.Context()))
		change()
		eventually(t, "it takes writes", func() bool { return count(t.Context(), s, 1) == nil })
		for range 50 { // whichever connection
			must(t, count(t.Context(), s, 1))
		}
	}
	t.Run("a replica", func(t *testing.T) {
		t.Parallel()
		primary := postgrestest.Start(t)
		install(t, primary.DSN())
		replica, log := primary.Replica(), new(logbook)
		s := openTestStore(t, replica.DSN(), log.option())
		occupy(t, s, 8)
		recovers(t, s, log, replica.Promote)
	})
	t.Run("by default", func(t *testing.T) {
		t.Parallel()
		dsn, log := prepared(t), new(logbook)
		database := databaseOf(t, dsn)
		administer(t, dsn, "ALTER DATABASE "+database+" SET default_transaction_read_only = on")
		s := openTestStore(t, dsn, log.option())
		occupy(t, s, 8)
		conn, err := pgx.Connect(t.Context(), dsn)
		must(t, err)
		wantMisconfigured(t, Migrate(t.Context(), conn, WithSchema("lk2")), store.ReadOnly, "connect to the primary")
		must(t, conn.Close(t.Context()))
		recovers(t, s, log, func() {
			administer(t, dsn, "SET default_transaction_read_only = off", "ALTER DATABASE "+database+" RESET default_transaction_read_only")
		})
	})
	// It has taken writes before: it is being replaced, and may take some again.
	t.Run("after a change", func(t *testing.T) {
		t.Parallel()
		dsn := prepared(t)
		database := databaseOf(t, dsn)
		s := openTestStore(t, dsn)
		must(t, count(t.Context(), s, 1))
		administer(t, dsn, "ALTER DATABASE "+database+" SET default_transaction_read_only = on", terminate)
		eventually(t, "the breaker opens", func() bool { return breaker.Refused(count(t.Context(), s, 1)) })
		if err := count(t.Context(), s, 1); !store.Down(err) || store.CauseOf(err) != store.ReadOnly {
			t.Errorf("got %v, want an outage", err)
		}
	})
}

// An address that moves leaves connections to the old server, which takes no more writes. The first
// call with that reply ends the old connections, and continues on a new one.
func TestAServerMoves(t *testing.T) {
	t.Parallel()
	before, after := prepared(t), prepared(t)
	var database atomic.Value
	database.Store(databaseOf(t, before))
	settings, err := pgxpool.ParseConfig(before)
	must(t, err)
	settings.BeforeConnect = func(_ context.Context, c *pgx.ConnConfig) error { c.Database = database.Load().(string); return nil }
	pool, err := pgxpool.NewWithConfig(t.Context(), settings)
	must(t, err)
	defer pool.Close()
	log := new(logbook)
	s, err := NewFromPool(pool, WithTimeout(testpace.Scale(time.Second)), log.option())
	must(t, err)
	defer func() { _ = s.Close() }()
	occupy(t, s, s.config.connections)
	must(t, count(t.Context(), s, 1))
	s.db.Listen()
	eventually(t, "it listens", s.db.Listens)

	database.Store(databaseOf(t, after))
	for _, conn := range s.db.Pool().AcquireAllIdle(t.Context()) { // as a server that was demoted is
		_, err := conn.Exec(t.Context(), "SET default_transaction_read_only = on")
		must(t, err)
		conn.Release()
	}
	for range 20 {
		must(t, countOnce(t.Context(), s, 1))
	}
	if n := counted(t, after, 1); n != 20 || log.has(tripped) {
		t.Errorf("counted %d; the breaker opened: %v", n, log.has(tripped))
	}
	admin := connect(t, after)
	eventually(t, "it listens there, too", func() bool {
		var n int
		must(t, admin.QueryRow(t.Context(),
			"SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'").Scan(&n))
		return n == 1
	})
	if !log.has("pushes no longer arrive") {
		t.Error("it is not logged")
	}
}

// Every process of a service may migrate at its start, whatever the isolation of its transactions.
func TestMigrationsAtOnce(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "default_transaction_isolation=serializable")
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			conn, err := pgx.Connect(t.Context(), server.DSN())
			if err == nil {
				err = Migrate(t.Context(), conn)
				_ = conn.Close(t.Context())
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	must(t, openTestStore(t, server.DSN()).Ping(t.Context()))
}

// The store sets what it relies on itself, whatever the settings of its database are.
func TestOddSettings(t *testing.T) {
	t.Parallel()
	dsn := newDatabase(t, "template1")
	var alter []string
	for _, setting := range []string{
		"lock_timeout = '1ms'", "extra_float_digits = -15", "plpgsql.extra_errors = 'all'", "search_path = 'nowhere'", "statement_timeout = '1ms'",
		"idle_session_timeout = '1s'", "default_transaction_isolation = 'serializable'", "standard_conforming_strings = off",
		"client_encoding = 'LATIN1'", "bytea_output = 'escape'", "DateStyle = 'SQL, DMY'", "IntervalStyle = 'sql_standard'",
		"TimeZone = 'Asia/Kathmandu'", "default_transaction_deferrable = on",
	} {
		alter = append(alter, "ALTER DATABASE "+databaseOf(t, dsn)+" SET "+setting)
	}
	administer(t, dsn, alter...) // in one session, which the settings do not concern yet
	settings, err := pgx.ParseConfig(dsn)
	must(t, err)
	settings.RuntimeParams["statement_timeout"], settings.RuntimeParams["idle_session_timeout"] = "0", "0" // a migration has time
	conn, err := pgx.ConnectConfig(t.Context(), settings)
	must(t, err)
	must(t, Migrate(t.Context(), conn, WithSchema("user")))
	must(t, conn.Close(t.Context()))
	s := openTestStore(t, dsn, WithSchema("user"))
	if _, err := s.BeginOperation(t.Context(), beginOf("k", "s", 1)); err != nil {
		t.Error(err)
	}
	ends(t, s, store.Released, takes(t, s, exclusive("k")))
	for _, text := range sweeps {
		_, err := statement.Run(t.Context(), s.db, statement.Call{Operation: opSweep}, statement.Execute(s.db.Text(text)))
		must(t, err)
	}
	found, err := s.Check(t.Context())
	must(t, err)
	for _, f := range found {
		if strings.Contains(f.Found, "timeout") {
			t.Errorf("found %v", f)
		}
	}
	if _, err := New(dsn, WithSchema("pg_mine")); err == nil {
		t.Error("the server keeps the name for itself")
	}
}

// The hooks of the pool that a store is given are called, before what the store does.
func TestHooksOfThePool(t *testing.T) {
	t.Parallel()
	dsn := prepared(t)
	role := "owner_" + databaseOf(t, dsn)
	login := "login_" + databaseOf(t, dsn)
	administer(t, dsn, "CREATE ROLE "+role, Grants(role), "GRANT ALL ON lk.counts TO "+role, "CREATE ROLE "+login+" LOGIN IN ROLE "+role+" NOINHERIT")
	settings, err := pgxpool.ParseConfig(strings.Replace(dsn, "postgres@", login+"@", 1))
	must(t, err)
	var called [5]atomic.Int64
	settings.BeforeConnect = func(context.Context, *pgx.ConnConfig) error { called[0].Add(1); return nil }
	settings.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		called[1].Add(1)
		_, err := c.Exec(ctx, "SET ROLE "+role+"; SET lock_timeout = 1")
		return err
	}
	settings.BeforeAcquire = func(context.Context, *pgx.Conn) bool { called[2].Add(1); return true } //nolint:staticcheck // deprecated, and still called
	settings.AfterRelease = func(*pgx.Conn) bool { called[3].Add(1); return true }
	settings.BeforeClose = func(*pgx.Conn) { called[4].Add(1) }
	pool, err := pgxpool.NewWithConfig(t.Context(), settings)
	must(t, err)
	defer pool.Close()
	s, err := NewFromPool(pool, WithTimeout(lenient))
	must(t, err)
	must(t, count(t.Context(), s, 1))
	must(t, count(t.Context(), s, 1))
	must(t, s.db.Probe())
	must(t, s.Close())
	for i := range called {
		if called[i].Load() == 0 {
			t.Errorf("hook %d was not called", i)
		}
	}
}
