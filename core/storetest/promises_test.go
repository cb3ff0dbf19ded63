package storetest_test

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

var update = flag.Bool("update", false, "write the page of the promises anew")

const promisesPage = "../../docs/promises.md"

const promisesHead = `# What every store promises

Each line is a test of ` + "`core/storetest`" + `, which runs on memory, miniredis, Redis, Redis Cluster and PostgreSQL, and passes on
each of them, with no exception; the tests of crashes run where processes share a store, on Redis and PostgreSQL. etcd
passes those of locks, semaphores, latches, documents and crashes, and a quorum some of those of locks, with
[exceptions](#exceptions). The page is printed from the tests: ` + "`go test ./core/storetest -run TestPromises -update`" + `.
`

const exceptionsHead = `
## Exceptions

The suites of these stores run each excepted test as well, and fail if it passes.

| Store | Reason | Tests |
|---|---|---|
`

// The page of the promises lists the tests of the suites.
func TestPromises(t *testing.T) {
	var page strings.Builder
	page.WriteString(promisesHead)
	for _, suite := range []struct {
		title string
		list  func(t *testing.T, run storetest.Runner[*memstore.Store])
	}{
		{"Locks and semaphores", storetest.Leases[*memstore.Store]},
		{"Token buckets", storetest.Buckets[*memstore.Store]},
		{"Records of operations", storetest.Records[*memstore.Store]},
		{"Latches", storetest.Latches[*memstore.Store]},
		{"Delayed tasks", storetest.Delays[*memstore.Store]},
		{"Documents", storetest.Documents[*memstore.Store]},
		{"Crashes", storetest.Crashes[*memstore.Store]},
	} {
		of := make(map[string][]string) // kinds of leases, by promise
		var promises []string
		t.Run("suite", func(t *testing.T) {
			suite.list(t, func(t *testing.T, _ func(*testing.T, storetest.Harness[*memstore.Store])) {
				name := strings.ReplaceAll(strings.SplitN(t.Name(), "/", 3)[2], "_", " ")
				kind, promise, found := strings.Cut(name, ": ")
				if !found || kind != "lock" && kind != "semaphore" {
					kind, promise = "", name
				}
				if of[promise] == nil {
					promises = append(promises, promise)
				}
				of[promise] = append(of[promise], kind)
			})
		})
		fmt.Fprintf(&page, "\n## %s\n\n", suite.title)
		for _, promise := range promises {
			text := strings.ToUpper(promise[:1]) + promise[1:]
			if slices.Equal(of[promise], []string{"semaphore"}) {
				text += " (semaphores)"
			}
			page.WriteString("- " + text + ".\n")
		}
	}
	page.WriteString(exceptionsHead)
	for _, e := range storetest.AllExceptions() {
		exceptions(&page, e)
	}
	if *update {
		if err := os.WriteFile(promisesPage, []byte(page.String()), 0o644); err != nil { //nolint:gosec // a page
			t.Fatal(err)
		}
	}
	written, err := os.ReadFile(promisesPage)
	if err != nil {
		t.Fatal(err)
	}
	if string(written) != page.String() {
		t.Errorf("%s is not what the suites say: run this test with -update", promisesPage)
	}
}

// exceptions writes the rows of a store: one for each reason.
func exceptions(page *strings.Builder, e storetest.Exceptions) {
	if e.Grace > 0 {
		fmt.Fprintf(page, "| %s | the server ends the holds of a dead process, and those of a living one end in time | "+
			"What a dead process holds or waits for ends up to %v later than elsewhere. |\n", e.Store, e.Grace)
	}
	of := make(map[string][]string) // tests, by reason
	for _, suite := range []map[string]string{e.Leases, e.Latches, e.Crashes} {
		for name, reason := range suite {
			of[reason] = append(of[reason], name)
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(of)) {
		slices.Sort(of[reason])
		before, tests := "", ""
		for _, name := range of[reason] {
			kind, promise, found := strings.Cut(name, ": ")
			switch {
			case !found:
				promise, kind = name, ""
			case kind != before:
				promise = name
			}
			tests, before = tests+"; "+promise, kind
		}
		fmt.Fprintf(page, "| %s | %s | %s. |\n", e.Store, reason, strings.TrimPrefix(tests, "; "))
	}
}
