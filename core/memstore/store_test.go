package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestContract(t *testing.T) {
	storetest.All(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*memstore.Store])) {
		synctest.Test(t, func(t *testing.T) {
			test(t, storetest.Harness[*memstore.Store]{Store: memstore.New(), Advance: time.Sleep})
		})
	})
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
