package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestContract(t *testing.T) {
	run := func(t *testing.T, test func(*testing.T, storetest.Harness)) {
		synctest.Test(t, func(t *testing.T) {
			test(t, storetest.Harness{Store: memstore.New(), Advance: time.Sleep})
		})
	}
	t.Run("tokenbucket", func(t *testing.T) { storetest.TokenBuckets(t, run) })
	t.Run("guard", func(t *testing.T) { storetest.Guards(t, run) })
	t.Run("lock", func(t *testing.T) { storetest.Locks(t, run) })
	t.Run("semaphore", func(t *testing.T) { storetest.Semaphores(t, run) })
	t.Run("latch", func(t *testing.T) { storetest.Latches(t, run) })
}
