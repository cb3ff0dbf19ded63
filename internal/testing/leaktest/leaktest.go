// Package leaktest finds goroutines that tests leave behind. It is what go.uber.org/goleak does, in a
// page, so that no service has one more module in its graph for the sake of our tests.
package leaktest

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// patience is how long goroutines have to end after the tests.
const patience = 3 * time.Second

// ofTheRuntime are functions of goroutines that the runtime and package testing start.
var ofTheRuntime = []string{"os/signal.loop", "os/signal.signal_recv", "runtime.ensureSigM", "runtime.ReadTrace"}

// Main runs the tests of a package, and fails if goroutines are left after them. Those with one of
// the ignored functions on their stack may stay.
func Main(m *testing.M, ignored ...string) {
	code := testpace.Run(m)
	if code == 0 {
		if left := wait(patience, ignored); len(left) > 0 {
			fmt.Fprintf(os.Stderr, "leaktest: goroutines are left:\n\n%s\n", strings.Join(left, "\n\n"))
			code = 1
		}
	}
	os.Exit(code)
}

// wait waits until all goroutines but this one have ended, and returns the stacks of the others.
func wait(patience time.Duration, ignored []string) []string {
	deadline := time.Now().Add(patience)
	for pause := time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		left := others(ignored)
		if len(left) == 0 || time.Now().After(deadline) {
			return left
		}
		<-time.After(pause)
	}
}

// others returns the stacks of all goroutines but this one.
func others(ignored []string) []string {
	text := make([]byte, 1<<16)
	n := runtime.Stack(text, true)
	for n == len(text) {
		text = make([]byte, 2*len(text))
		n = runtime.Stack(text, true)
	}
	stacks := strings.Split(strings.TrimSpace(string(text[:n])), "\n\n")[1:] // the first is this one's
	return slices.DeleteFunc(stacks, func(stack string) bool {
		for _, function := range slices.Concat(ofTheRuntime, ignored) {
			if strings.Contains(stack, "\n"+function+"(") {
				return true
			}
		}
		return false
	})
}
