package memstore_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestDocuments(t *testing.T) {
	storetest.Documents(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*memstore.Store])) {
		synctest.Test(t, func(t *testing.T) {
			test(t, storetest.Harness[*memstore.Store]{Store: memstore.New(), Advance: time.Sleep})
		})
	})
}
