package middleware_test

import (
	"context"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/mwtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// The rows about what a client is answered hold on PostgreSQL too: all of them on net/http, and those
// of twins, and of what is kept, on the other frameworks. Each row has a schema of its own.
func TestTableOnPostgreSQL(t *testing.T) {
	server := postgrestest.Start(t, "max_connections=500") // eight rows have up to thirty stores each
	conn, err := pgx.Connect(t.Context(), server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	var (
		mu      sync.Mutex // for the connection
		schemas int
	)
	migrated := func(t *testing.T) pgstore.Option {
		t.Helper()
		mu.Lock()
		defer mu.Unlock()
		schemas++
		schema := pgstore.WithSchema("row_" + strconv.Itoa(schemas))
		if err := pgstore.Migrate(t.Context(), conn, schema); err != nil {
			t.Fatal(err)
		}
		return schema
	}
	open := func(t *testing.T) func() store.Store {
		t.Helper()
		schema := migrated(t)
		return func() store.Store {
			s, err := pgstore.New(server.DSN(), schema, pgstore.WithTimeout(10*time.Second), pgstore.WithConnections(4)) // a busy machine is no outage
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = s.Close() })
			return s
		}
	}
	t.Run("net/http", func(t *testing.T) { mwtest.RunOn(t, onServeMux, open) })
	for name, f := range map[string]mwtest.Framework{"gin": onGin, "echo v4": onEchoV4, "echo v5": onEchoV5} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // no row measures
			mwtest.RunOn(t, authenticated{f}, open, "twins", "kept")
		})
	}
}

// authenticated is a framework behind a handler that authenticates.
type authenticated struct{ mwtest.Framework }

func (a authenticated) Serve(handler http.HandlerFunc, middleware ...mwtest.Middleware) http.Handler {
	return recovering(mwtest.WithUser(a.Framework.Serve(handler, middleware...)))
}
