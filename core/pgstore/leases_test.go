package pgstore

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestLeases(t *testing.T) {
	dsn := migrated(t)
	storetest.Leases(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
		t.Parallel()
		test(t, storetest.Harness[*Store]{Store: patientStore(t, dsn, WithConnections(4)), Advance: time.Sleep})
	})
}
