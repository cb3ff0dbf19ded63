package pgstore

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestDelays(t *testing.T) {
	t.Parallel()
	storetest.Delays(t, runner(migrated(t)))
}
