// Package testpace sets how the tests of a package share a machine: how many of them run side by
// side, and how long the leases and the timeouts of tests that wait for real time are.
package testpace

import (
	"flag"
	"os"
	"strconv"
	"testing"
	"time"
)

// Slow is the environment variable by which [Scale] multiplies, 1 by default.
const Slow = "LOCKKEEPER_SLOW"

// parallel is how many parallel tests of a package run at a time. They wait for servers and leases
// and need little CPU time, so that it does not depend on the number of cores, as it would by
// default. Under the race detector they need several times as much.
func parallel() string {
	if Raced {
		return "4"
	}
	return "12"
}

// short are the tests that -short runs, all if empty.
var short string

// InShort has -short run the tests of a package whose names match a regular expression, such as the
// contract of a store. The flag -run overrides it.
func InShort(tests string) { short = tests }

// Run runs the tests of a package, and returns the exit code. The flag -parallel overrides how many
// of its parallel tests run at a time.
func Run(m *testing.M) int {
	flag.Parse()
	set := make(map[string]bool)
	flag.Visit(func(f *flag.Flag) { set[f.Name] = true })
	if !set["test.parallel"] {
		_ = flag.Set("test.parallel", parallel())
	}
	if testing.Short() && short != "" && !set["test.run"] {
		_ = flag.Set("test.run", short)
	}
	return m.Run()
}

// Parallel runs a test beside others, unless the race detector is on. It is for a test that waits for
// little more than a server, and has less time for a step than one takes that shares the machine with
// others and the detector.
func Parallel(t *testing.T) {
	if !Raced {
		t.Parallel()
	}
}

// Scale returns a duration of a test, such as a lease that must not run out while the test renews
// it, multiplied by the variable [Slow]: a machine that runs the tests of several packages at a time,
// or under the race detector, takes longer for each step.
func Scale(d time.Duration) time.Duration { return time.Duration(float64(d) * factor) }

// Eventually polls until a condition holds, and fails the test if it does not within [Scale] of a time.
// Time in which the machine does not run the test is not counted: the part by which a sleep takes
// longer than its duration.
func Eventually(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	const pause = 2 * time.Millisecond
	began := time.Now()
	for left := Scale(within); ; left -= pause {
		asked := time.Now()
		if holds() {
			return
		}
		if left -= time.Since(asked); left < 0 {
			t.Fatalf("not within %v, nor %v of a busy machine: %s", within, time.Since(began), what)
		}
		<-time.After(pause)
	}
}

var factor = factorOf(os.Getenv(Slow))

func factorOf(text string) float64 {
	if text == "" {
		return 1
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || !(f >= 1) { // NaN is not, either
		panic("testpace: " + Slow + " is " + strconv.Quote(text) + ", want a number of at least 1")
	}
	return f
}
