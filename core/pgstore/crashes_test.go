package pgstore

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

func TestStoresOfDeadProcesses(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	settings, err := pgx.ParseConfig(dsn)
	if err != nil {
		t.Fatal(err)
	}
	storetest.Crashes(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		test(t, storetest.Harness[*Store]{
			Store: openTestStore(t, dsn, WithConnections(4)), Advance: time.Sleep,
			Another: func() (*Store, func()) {
				proxy := postgrestest.NewProxy(t, statement.AddressOf(settings))
				return openTestStore(t, postgrestest.Through(dsn, proxy.Addr()), WithTimeout(brisk)), func() { // Close waits for it
					proxy.BlackHole()
					proxy.CutAll()
				}
			},
		})
	})
}
