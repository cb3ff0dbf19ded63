// Package storetest has the contract of each interface of package store as a test suite, and a
// store that fails on command.
//
// A suite takes the interface that it tests, so a store may implement one of them alone:
//
//	func TestBuckets(t *testing.T) {
//		storetest.Buckets(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*Store])) {
//			test(t, storetest.Harness[*Store]{Store: New(), Advance: time.Sleep})
//		})
//	}
//
// A store that implements them all calls [All], and [Crashes] if processes can share it. One that
// implements some of them calls their suites, and [CrashesOf].
package storetest

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Harness is a store under test.
type Harness[S any] struct {
	// Store is new and empty. A suite may close it, and the caller closes it after the test.
	Store S
	// Advance returns when the store's clock, and that of its clients, has advanced by at least d.
	// A test advances at most a second in total, except tests that the suites name, and tests that are
	// repeated because the machine is slow.
	Advance func(d time.Duration)
	// Another returns the store of another process with the same state, and a function by which that
	// process dies: the server, which is not told, has no more connections to it. Only [Crashes] needs
	// it.
	Another func() (another S, die func())
	// Except are the tests of the suite that the store cannot pass, with the reasons: see [Exceptions].
	// Each is run in a process of its own, and has to fail, or to be skipped since the store lacks an
	// ability. One that passes fails the suite, and so does a name that the suite does not have.
	Except map[string]string
	// Grace is how much later than elsewhere what a dead process holds, or waits for, may end.
	Grace time.Duration
}

// Runner runs one test of a suite on a store of its own. Tests do not use subtests, so they may run
// in a testing/synctest bubble.
type Runner[S any] func(t *testing.T, test func(*testing.T, Harness[S]))

// All runs every suite.
func All[S store.Store](t *testing.T, run Runner[S]) {
	t.Run("buckets", func(t *testing.T) { Buckets(t, run) })
	t.Run("records", func(t *testing.T) { Records(t, run) })
	t.Run("leases", func(t *testing.T) { leases(t, run) })
	t.Run("latches", func(t *testing.T) { Latches(t, run) })
	t.Run("delays", func(t *testing.T) { Delays(t, run) })
	t.Run("documents", func(t *testing.T) { Documents(t, run) })
}

// testCase is one test of the suite of interface I.
type testCase[I any] struct {
	name string
	test func(*testing.T, Harness[I])
}

// runAll runs the tests of interface I on stores of type S, which implements it.
func runAll[I, S any](t *testing.T, run Runner[S], cases []testCase[I]) {
	t.Helper()
	var e excepted
	for _, c := range cases {
		e.names = append(e.names, c.name)
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			run(t, func(t *testing.T, h Harness[S]) {
				e.check(t, c.name, h.Except)
				c.test(t, as[I](t, h))
			})
		})
	}
	t.Cleanup(func() { e.checkNames(t) })
}

// as returns a harness of another interface of the same store. It skips a test of a store without
// it.
func as[I, S any](t *testing.T, h Harness[S]) Harness[I] {
	t.Helper()
	as := Harness[I]{Store: able[I](t, h.Store), Advance: h.Advance, Grace: h.Grace}
	if h.Another != nil {
		as.Another = func() (I, func()) {
			another, die := h.Another()
			return any(another).(I), die
		}
	}
	return as
}

// able returns a store as one with another interface. It skips a test of a store without it.
func able[T any](t *testing.T, st any) T {
	t.Helper()
	a, err := store.As[T](st)
	if err != nil {
		t.Skip(err)
	}
	return a
}

// inTime runs a test whose steps must be done within a period from the first step. On a busy
// machine they may be late, and then prove nothing about the store. The test reports that it was
// late, and is repeated with twice the period.
func inTime(t *testing.T, period time.Duration, test func(period time.Duration) (late bool)) {
	t.Helper()
	for range 6 {
		if !test(period) {
			return
		}
		period *= 2
	}
	t.Fatalf("the machine takes longer than %v for the steps of a test", period/2)
}

// expect checks a condition that holds for at least a period since it began. It returns true if the
// period may be over, so that the check is inconclusive.
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

const (
	// eventually is how long a test waits for an event.
	eventually = 30 * time.Second
	// shortLease is over after pastLease.
	shortLease = 40 * time.Millisecond
	pastLease  = 60 * time.Millisecond
	// clocks is the tolerance for the difference of the store's and the test's clocks during a
	// test.
	clocks = 20 * time.Millisecond
)

// background is the context of calls that must not fail.
func background() context.Context { return context.Background() }

// unique returns a name that is unique among tests, for stores that share a server.
func unique(prefix string) string { return prefix + "-" + rand.Text() }
