package pgstore

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A mechanism that is made for a request, and never closed, does not outlive it.
func TestDroppedMechanismsAreCollected(t *testing.T) {
	st := openTestStore(t, prepared(t))
	inUse := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := inUse()
	for i := range 10_000 {
		name := fmt.Sprint(i)
		_, err := lock.New(st, name)
		must(t, err)
		_, err = semaphore.New(st, name, 3)
		must(t, err)
		_, err = guard.New(st, name)
		must(t, err)
		_, err = tokenbucket.New(st, name, tokenbucket.PerHour(3))
		must(t, err)
	}
	testpace.Eventually(t, 30*time.Second, "they are collected", func() bool { return inUse() < before+4<<20 })
}
