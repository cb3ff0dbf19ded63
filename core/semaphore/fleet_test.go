package semaphore_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
)

func TestTiersOfSeveralSemaphores(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	open := func() store.Leases { return st }
	t.Run("overload", func(t *testing.T) { tiertest.Overload(t, open) })
	t.Run("order", func(t *testing.T) { tiertest.Order(t, open) })
}
