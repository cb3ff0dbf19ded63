package pgstore

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
)

// inDatabase returns a function that opens stores on a database of their own.
func inDatabase(t *testing.T) func() store.Leases {
	dsn := migrated(t)
	return func() store.Leases { return openTestStore(t, dsn) }
}

// The test is not parallel, since it leaves no CPU time to others.
func TestTiersOfFourProcesses(t *testing.T) { tiertest.Overload(t, inDatabase(t)) }

func TestOrderWithinTiers(t *testing.T) {
	t.Parallel()
	tiertest.Order(t, inDatabase(t))
}
