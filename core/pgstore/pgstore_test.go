package pgstore

import (
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestMain(m *testing.M) {
	testpace.InShort("^Test(Buckets|Leases|Records|Latches|Delays|Documents)$") // the contract
	postgrestest.Main(m)
}

// newTestStore returns a store on a database of its own, closed when the test ends.
func newTestStore(t testing.TB, opts ...Option) *Store {
	t.Helper()
	return openTestStore(t, migrated(t, opts...), opts...)
}

// openTestStore returns a store on a database, closed when the test ends. Unless an option sets it, its
// timeout is long.
func openTestStore(t testing.TB, dsn string, opts ...Option) *Store {
	t.Helper()
	s, err := New(dsn, append([]Option{WithTimeout(lenient)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// keepCalling calls f again and again in so many goroutines, until it fails or the test calls end, which
// waits for them.
func keepCalling(t *testing.T, goroutines int, f func() error) (end func()) {
	t.Helper()
	var all sync.WaitGroup
	stop := make(chan struct{})
	for range goroutines {
		all.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if err := f(); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	return sync.OnceFunc(func() { close(stop); all.Wait() })
}

func TestPing(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]Option{"": nil, "of another schema": {WithSchema("another_1")}} {
		t.Run("a store"+name, func(t *testing.T) {
			t.Parallel()
			s := newTestStore(t, opts...)
			if err := s.Ping(t.Context()); err != nil {
				t.Fatal(err)
			}
			s.sweepOnce(t.Context())
		})
	}
}

func TestMigrateAgain(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	conn, err := pgx.Connect(t.Context(), dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close(t.Context()) }()
	if err := Migrate(t.Context(), conn); err != nil {
		t.Error(err)
	}
	if _, err := conn.Exec(t.Context(), Schema(), pgx.QueryExecModeSimpleProtocol); err != nil { // by hand
		t.Error(err)
	}
}

func TestGrantsOfOddRoles(t *testing.T) {
	if text := Grants(`a "lk.b`, WithSchema("other")); strings.Count(text, `TO "a ""lk.b";`) != 3 || strings.Count(text, `SCHEMA "other" `) != 3 {
		t.Error(text)
	}
}
