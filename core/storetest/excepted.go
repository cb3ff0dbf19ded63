package storetest

import (
	"bytes"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
)

// exceptedRun is the variable of a process that runs the tests that are excepted.
const exceptedRun = "LOCKKEEPER_STORETEST_EXCEPTED"

// excepted runs the tests of a suite that its store is excepted from: all of them in one process, in
// which they may fail. The zero value is ready to use.
type excepted struct {
	names []string // of the suite's tests

	mu     sync.Mutex
	except map[string]string
	result map[string]string // PASS, FAIL or SKIP, by the test's name there; nil before the process has run
	output []byte
}

var results = regexp.MustCompile(`(?m)^\s*--- (PASS|FAIL|SKIP): (\S+)`)

// check skips a test that is excepted and does not pass, with the reason.
func (e *excepted) check(t *testing.T, name string, except map[string]string) {
	t.Helper()
	reason, ok := except[name]
	if os.Getenv(exceptedRun) != "" {
		return
	}
	e.mu.Lock()
	e.except = except
	if ok && e.result == nil {
		e.run(t.Name(), name)
	}
	result, found := e.result[t.Name()]
	e.mu.Unlock()
	switch {
	case !ok:
	case !found:
		t.Fatalf("it is excepted (%s), and its own process has not run it:\n%s", reason, e.output)
	case result == "PASS":
		t.Fatalf("it passes, and is excepted: %s", reason)
	default:
		t.Skip("not kept: " + reason)
	}
}

// run runs all excepted tests; this one is one of them. The caller holds mu.
func (e *excepted) run(fullName, name string) {
	inName := func(name string) string { return strings.ReplaceAll(name, " ", "_") }
	pattern := "^"
	for part := range strings.SplitSeq(strings.TrimSuffix(fullName, inName(name)), "/") {
		if part != "" {
			pattern += regexp.QuoteMeta(part) + "$/^"
		}
	}
	var names []string
	for _, name := range e.names {
		if _, ok := e.except[name]; ok {
			names = append(names, regexp.QuoteMeta(inName(name)))
		}
	}
	pattern += "(" + strings.Join(names, "|") + ")$"
	cmd := exec.Command(os.Args[0], "-test.run="+pattern, "-test.v", "-test.timeout=10m") //nolint:gosec // this program
	cmd.Env = append(os.Environ(), exceptedRun+"=1")
	e.output, _ = cmd.CombinedOutput() // its tests fail
	e.result = make(map[string]string)
	for _, found := range results.FindAllSubmatch(bytes.TrimSpace(e.output), -1) {
		e.result[string(found[2])] = string(found[1])
	}
}

// checkNames fails the suite if there is an exception from none of its tests.
func (e *excepted) checkNames(t *testing.T) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for name := range e.except {
		if !slices.Contains(e.names, name) {
			t.Errorf("the suite has no test %q, which is excepted", name)
		}
	}
}
