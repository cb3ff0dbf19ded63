package pgstore

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// Reads work on a server that takes no writes, also while the breaker is open for that reason; not
// while the server cannot be reached. Writes, and the check of a lease, are refused at once.
func TestReadsOnReadOnlyServers(t *testing.T) {
	t.Parallel()
	serves := func(t *testing.T, s *Store) {
		t.Helper()
		reads := func() bool {
			_, _, inspected := s.InspectTask(t.Context(), "orders", "k")
			_, counted := s.CountTasks(t.Context(), "orders")
			for _, err := range s.ListTasks(t.Context(), "orders", false) {
				counted = err
			}
			return storetest.Reads(t.Context(), s) == nil && inspected == nil && counted == nil
		}
		eventually(t, "it reads", reads)
		eventually(t, "the breaker opens", func() bool { return breaker.Refused(count(t.Context(), s, 1)) })
		for range 20 {
			eventually(t, "it reads", reads)
			if err := count(t.Context(), s, 1); !breaker.Refused(err) {
				t.Errorf("a write: %v", err)
			}
			if _, err := s.VerifyLease(t.Context(), store.LeaseRef{Name: "locks", Key: "k"}); !breaker.Refused(err) {
				t.Errorf("the check of a lease: %v", err)
			}
		}
	}
	t.Run("a replica", func(t *testing.T) {
		t.Parallel()
		primary := postgrestest.Start(t)
		migrateIn(t, primary.DSN(), LoggedBuckets())
		administer(t, primary.DSN(), counts)
		serves(t, openTestStore(t, primary.Replica().DSN()))
	})
	t.Run("by default, until it does not reply", func(t *testing.T) {
		t.Parallel()
		dsn, proxy, s := behindProxy(t, WithTimeout(hasty))
		eventually(t, "it works", func() bool { return count(t.Context(), s, 1) == nil })
		administer(t, dsn, "ALTER DATABASE "+databaseOf(t, dsn)+" SET default_transaction_read_only = on", terminate)
		eventually(t, "it takes no writes", func() bool { return count(t.Context(), s, 1) != nil })
		serves(t, s)
		proxy.BlackHole()
		eventually(t, "reads are refused", func() bool {
			_, err := s.InspectLease(t.Context(), "locks", "k")
			return breaker.Refused(err)
		})
		inTime(t, "a refused read", 20*time.Millisecond, func() time.Duration {
			began := time.Now()
			_, err := s.InspectLease(t.Context(), "locks", "k")
			if !breaker.Refused(err) {
				t.Error(err)
			}
			return time.Since(began)
		})
		proxy.Mend()
		eventually(t, "reads work again", func() bool { return storetest.Reads(t.Context(), s) == nil })
	})
}
