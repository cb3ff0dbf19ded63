package pgstore

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestLeases(t *testing.T) {
	t.Parallel()
	storetest.Leases(t, runner(migrated(t)))
}
