// Package storetest has the contracts that every store must keep, as test suites, and a store that
// fails when it is told to.
//
// A store's own test calls the suites with a [Runner]:
//
//	func TestStore(t *testing.T) {
//		run := func(t *testing.T, test func(*testing.T, storetest.Harness)) {
//			synctest.Test(t, func(t *testing.T) {
//				test(t, storetest.Harness{Store: memstore.New(), Advance: time.Sleep})
//			})
//		}
//		t.Run("tokenbucket", func(t *testing.T) { storetest.TokenBuckets(t, run) })
//		t.Run("guard", func(t *testing.T) { storetest.Guards(t, run) })
//		t.Run("lock", func(t *testing.T) { storetest.Locks(t, run) })
//		t.Run("semaphore", func(t *testing.T) { storetest.Semaphores(t, run) })
//		t.Run("latch", func(t *testing.T) { storetest.Latches(t, run) })
//	}
package storetest

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Harness is a store under test.
type Harness struct {
	// Store is new and empty. The suite does not close it.
	Store store.Store
	// Advance returns when the store's clock, and that of its clients, has moved on by at least d.
	// A suite asks for no more than a second in all in each test, but for two tests of Locks and one of Semaphores,
	// and for more where the machine is so slow that a test has to be made again.
	Advance func(d time.Duration)
}

// Runner runs one test of a suite on a store of its own. It need not support subtests, so a test
// may run in a testing/synctest bubble.
type Runner func(t *testing.T, test func(*testing.T, Harness))

// testCase is one test of a suite.
type testCase struct {
	name string
	test func(*testing.T, Harness)
}

func runAll(t *testing.T, run Runner, cases []testCase) {
	t.Helper()
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { run(t, c.test) })
	}
}

// inTime makes a test whose steps must come before a period is over that began with the first of them. A busy
// machine may make them later, and then what they find says nothing of the store. The test returns that it
// was late, and is made again, with twice the period.
func inTime(t *testing.T, period time.Duration, test func(period time.Duration) (late bool)) {
	t.Helper()
	for range 6 {
		if !test(period) {
			return
		}
		period *= 2
	}
	t.Fatalf("the machine takes longer than %v for what a test does at once", period/2)
}

// expect checks what is true for a period since it began, at least. It reports that it cannot tell, since the
// period may be over.
func expect[T comparable](t *testing.T, what string, got, want T, began time.Time, period time.Duration) (late bool) {
	t.Helper()
	if got == want {
		return false
	}
	if time.Since(began) < period {
		t.Fatalf("%s: %v, want %v", what, got, want)
	}
	return true
}

// background is the context of calls that must not fail.
func background() context.Context { return context.Background() }

// unique returns a name that no other test uses, for stores that share a server.
func unique(prefix string) string { return prefix + "-" + rand.Text() }
