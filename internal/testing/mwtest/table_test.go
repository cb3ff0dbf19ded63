package mwtest

import (
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// bare is a framework that builds no middleware.
type bare struct{}

func (bare) Serve(handler http.HandlerFunc, _ ...Middleware) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(Path+"{id}", func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		handler(w, r)
	})
	return WithUser(mux)
}

// careless is a framework whose middleware hides the connection from handlers.
type careless struct{}

func (careless) Serve(handler http.HandlerFunc, middleware ...Middleware) http.Handler {
	next := bare{}.Serve(handler)
	if len(middleware) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		hidden := &hiding{w: w, header: http.Header{}}
		next.ServeHTTP(hidden, r.WithContext(r.Context())) // a parsed form belongs to the copy
		if hidden.status == 0 {
			hidden.WriteHeader(http.StatusOK)
		}
	})
}

// frameworks are those that pass only harmless rows, each in a separate process. The others wait for
// what never happens, so that their patience is short.
var frameworks = map[string]*rig{
	"bare":            {framework: bare{}, kind: inMemory, patience: time.Second},
	"careless":        {framework: careless{}, kind: inMemory, patience: time.Second},
	"bare, unhurried": {framework: bare{}, kind: inMemory, patience: 10 * time.Second},
}

const frameworkEnv = "MWTEST_FRAMEWORK"

func TestTable(t *testing.T) {
	f, ok := frameworks[os.Getenv(frameworkEnv)]
	if !ok {
		t.Skip("runs as a process of other tests")
	}
	f.with(t).run(groups())
}

// results returns which rows a framework passes, of those that a flag selects.
func results(t *testing.T, framework, rows string) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTable$", rows, "-test.v", "-test.parallel=32", "-test.timeout=5m") //nolint:gosec // the test's own binary
	cmd.Env = append(os.Environ(), frameworkEnv+"="+framework)
	out, _ := cmd.CombinedOutput()
	passed := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^ {8}--- (PASS|FAIL): TestTable/(\S+)`).FindAllStringSubmatch(string(out), -1) {
		passed[row[2]] = row[1] == "PASS"
	}
	if len(passed) == 0 {
		t.Fatalf("no row has run:\n%s", out)
	}
	return passed
}

// harmless are the rows that only require that a middleware does no harm.
var harmless = []string{
	"idempotency/other_methods_pass", "idempotency/the_handler_reads_the_body",
	"ratelimit/every_builder_of_keys_works", "idempotency/every_builder_of_keys_works", "exclusive/every_builder_of_keys_works",
	"concurrency/every_builder_of_keys_works", "fenced/every_builder_of_keys_works", "exclusive/a_panic_releases_the_lock",
	"order/a_request_within_the_process_is_independent", "concurrency/a_panic_releases_the_permit",
	"holds/a_capacity_that_changes_at_run_time",
	"requests/a_function_that_reads_the_body_leaves_it_to_the_handler", "order/a_shadow_twice_refuses_nothing",
	"leaving/a_client_that_has_ended_its_side_gets_the_answer_to_a_fresh_key", "endings/as_only_the_framework's_handlers_can",
}

// The table must fail for a framework that does nothing. Handlers that nothing keeps apart race, and
// the race detector fails all rows that run at that moment, also the harmless ones.
func TestTheTableFindsWhatIsMissing(t *testing.T) {
	t.Parallel()
	rows := results(t, "bare", "-test.skip=^TestTable$/^through$")
	for name, passed := range rows {
		want := slices.Contains(harmless, name) || strings.HasPrefix(name, "cost/")
		if passed != want && (passed || !testpace.Raced) {
			t.Errorf("%s: passed is %v", name, passed)
		}
	}
	all := 0
	for _, g := range groups() {
		if g.name != "through" {
			all += len(g.rows) + len(g.alone)
		}
	}
	if len(rows) != all {
		t.Errorf("%d rows have run of %d", len(rows), all)
	}
}

// A framework that does nothing hides nothing.
func TestABareFrameworkHidesNothing(t *testing.T) {
	t.Parallel()
	for name, passed := range results(t, "bare, unhurried", "-test.run=^TestTable$/^through$") {
		if !passed {
			t.Errorf("%s: fails", name)
		}
	}
}

// The transparency rows must fail for a middleware that hides the connection.
func TestTheTableFindsWhatIsHidden(t *testing.T) {
	t.Parallel()
	for name, passed := range results(t, "careless", "-test.run=^TestTable$/^through$") {
		if passed {
			t.Errorf("%s: passes", name)
		}
	}
}

// The expected results of passages are those of net/http alone.
func TestExpectationsAreThoseOfNetHTTP(t *testing.T) {
	for _, p := range passages {
		for _, version := range p.versions() {
			if got := p.seen(newRig(t, bare{}, inMemory), version); got != p.want {
				t.Errorf("%s, %s: %q", p.name, version, got)
			}
		}
	}
}

// Seconds that are to come may be less by those that have passed, and by no more.
func TestSecondsThatPass(t *testing.T) {
	const want = `"api";r=1;t=~60`
	for passed, least := range map[time.Duration]int{0: 60, 700 * time.Millisecond: 60, 3 * time.Second: 57} {
		a := answer{t: &rig{T: t, began: time.Now().Add(-passed)}}
		for _, n := range []int{least, 60} {
			if got := `"api";r=1;t=` + strconv.Itoa(n); !a.matches(got, want) {
				t.Errorf("after %v, %s is not %s", passed, got, want)
			}
		}
		for _, got := range []string{`"api";r=1;t=61`, `"api";r=1;t=` + strconv.Itoa(least-10), `"api";r=0;t=60`, `"api";r=1;t=60s`, `"api";r=1;t=`} {
			if a.matches(got, want) {
				t.Errorf("after %v, %s is %s", passed, got, want)
			}
		}
	}
}
