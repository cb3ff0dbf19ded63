package pgstore

import (
	"context"
	"strconv"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// databases makes those of tests, on the server that they share.
var databases struct {
	sync.Mutex
	admin  *pgx.Conn
	copied string // how the server copies a database
	made   int
	schema string // the database with the store's schema, of which those of tests are copies
}

// migrated returns the DSN of a new database with the store's schema, which is dropped when the test
// ends. A copy takes a quarter of the time of a migration.
func migrated(t testing.TB, opts ...Option) string {
	t.Helper()
	of, err := schemaOf(opts)
	must(t, err)
	if of.schema != statement.DefaultSchema || of.loggedBuckets {
		dsn := newDatabase(t, "template1")
		migrateIn(t, dsn, opts...)
		return dsn
	}
	return newDatabase(t, migratedOnce(t))
}

// migratedOnce returns the name of the database with the store's schema.
func migratedOnce(t testing.TB) string {
	t.Helper()
	databases.Lock()
	defer databases.Unlock()
	if databases.schema == "" {
		name := createDatabase(t, "template1")
		migrateIn(t, postgrestest.Shared(t).DSNOf(name))
		databases.schema = name
	}
	return databases.schema
}

// newDatabase returns the DSN of a copy of a database, which is dropped when the test ends.
func newDatabase(t testing.TB, of string) string {
	t.Helper()
	databases.Lock()
	defer databases.Unlock()
	name := createDatabase(t, of)
	t.Cleanup(func() {
		databases.Lock()
		defer databases.Unlock()
		if _, err := databases.admin.Exec(context.Background(), "DROP DATABASE "+name+" WITH (FORCE)"); err != nil {
			t.Error(err)
		}
	})
	return postgrestest.Shared(t).DSNOf(name)
}

// createDatabase returns the name of a copy of a database without connections. One statement
// after the other creates one: to copy the files takes less than to log each page.
func createDatabase(t testing.TB, of string) string {
	t.Helper()
	if databases.admin == nil {
		admin, err := pgx.Connect(context.Background(), postgrestest.Shared(t).DSN())
		must(t, err)
		var number int
		must(t, admin.QueryRow(context.Background(), "SELECT current_setting('server_version_num')::int").Scan(&number))
		if number >= 150000 { // before, there is no other way
			databases.copied = " STRATEGY FILE_COPY"
		}
		databases.admin = admin
	}
	databases.made++
	name := "test" + strconv.Itoa(databases.made)
	_, err := databases.admin.Exec(context.Background(), "CREATE DATABASE "+name+" TEMPLATE "+of+databases.copied)
	must(t, err)
	return name
}

// migrateIn installs the store's schema in a database.
func migrateIn(t testing.TB, dsn string, opts ...Option) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	defer func() { _ = conn.Close(context.Background()) }()
	must(t, Migrate(t.Context(), conn, opts...))
}
