package quorum_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// A quorum keeps the contract of leases, with the exceptions that docs/promises.md lists.
func TestContract(t *testing.T) {
	t.Parallel()
	storetest.Leases(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*quorum.Store])) {
		synctest.Test(t, func(t *testing.T) {
			t.Cleanup(func() { time.Sleep(3 * time.Minute) }) // longer than retries in the background
			var members []quorum.Member
			for range 3 {
				st := memstore.New()
				t.Cleanup(func() { _ = st.Close() })
				members = append(members, st)
			}
			time.Sleep(time.Hour) // as long as no lease
			test(t, storetest.Harness[*quorum.Store]{
				Store: must(quorum.New(members...)), Advance: time.Sleep, Except: storetest.ExceptionsOf("quorum").Leases,
			})
		})
	})
}
