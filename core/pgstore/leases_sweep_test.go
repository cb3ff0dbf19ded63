package pgstore

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/lock"
)

// A key never has two rows, nor two holders, although a sweep deletes its rows at any moment.
func TestLeasesThatAreSwept(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	stores := []*Store{openTestStore(t, dsn), openTestStore(t, dsn)}
	sweeper := stores[0]
	var swept atomic.Int64
	end := keepCalling(t, 2, func() error {
		// Keys that were used a moment ago count as idle. Their fences begin anew, from the clock.
		_, err := sweeper.db.Pool().Exec(t.Context(), sweeper.db.Text(`UPDATE lk.leases SET fence = 0, number = 0, late = 0
			WHERE ctid = ANY (ARRAY(SELECT ctid FROM lk.leases WHERE holder IS NULL AND NOT busy FOR UPDATE SKIP LOCKED))`))
		for _, statement := range leaseSweeps {
			if err == nil && strings.Contains(statement, "lk.lease_keys") {
				var tag pgconn.CommandTag
				tag, err = sweeper.db.Pool().Exec(t.Context(), sweeper.db.Text(statement))
				swept.Add(tag.RowsAffected())
			}
		}
		return err
	})
	defer end()

	var holders [4]atomic.Int32
	var locking sync.WaitGroup
	for worker := range 8 {
		locker, err := lock.New(stores[worker%2], "jobs")
		must(t, err)
		t.Cleanup(func() { _ = locker.Close() })
		locking.Go(func() {
			for i := range 150 {
				key := (worker + i) % len(holders)
				lease, err := locker.Lock(t.Context(), fmt.Sprint(key))
				if err != nil {
					t.Error(err)
					return
				}
				if n := holders[key].Add(1); n != 1 {
					t.Errorf("key %d has %d holders", key, n)
				}
				holders[key].Add(-1)
				if err := lease.Unlock(t.Context()); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	locking.Wait()
	end()
	if swept.Load() == 0 {
		t.Error("no key was swept")
	}
	var odd int
	must(t, sweeper.db.Pool().QueryRow(t.Context(), sweeper.db.Text(`SELECT count(*) FROM (SELECT id, count(*) AS n FROM lk.leases GROUP BY id) l
		LEFT JOIN lk.lease_keys k ON k.id = l.id WHERE l.n <> 1 OR k.id IS NULL`)).Scan(&odd))
	if odd > 0 {
		t.Errorf("%d keys have several rows, or are not known", odd)
	}
}

// A lock whose row an administrator has deleted can be acquired.
func TestALeaseThatIsDeleted(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	locker, err := lock.New(s, "jobs")
	must(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	lost, err := locker.Lock(t.Context(), "7")
	must(t, err)
	for range 2 {
		_, err = s.db.Pool().Exec(t.Context(), "DELETE FROM lk.leases")
		must(t, err)
		lease, err := locker.Lock(t.Context(), "7")
		must(t, err)
		if lease.Fence().Number <= lost.Fence().Number {
			t.Errorf("fence %d after %d", lease.Fence().Number, lost.Fence().Number)
		}
		must(t, lease.Unlock(t.Context()))
	}
}

// A publication of all tables, as change data capture makes one, does not keep locks from being used.
func TestAPublicationOfAllTables(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	_, err := s.db.Pool().Exec(t.Context(), "CREATE PUBLICATION everything FOR ALL TABLES")
	must(t, err)
	locker, err := lock.New(s, "jobs")
	must(t, err)
	t.Cleanup(func() { _ = locker.Close() })
	for range 3 {
		lease, err := locker.Lock(t.Context(), "7")
		must(t, err)
		must(t, lease.Unlock(t.Context()))
	}
}
