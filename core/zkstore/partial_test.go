package zkstore_test

import (
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/compiletest"
)

// Limits, guards and delayed tasks need another store beside this one.
func TestOtherMechanismsDoNotCompile(t *testing.T) { compiletest.Leases(t, "zkstore") }
