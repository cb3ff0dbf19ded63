package mwtest

import (
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
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

// frameworks are those that pass only harmless rows, each in a separate process.
var frameworks = map[string]Framework{"bare": bare{}, "careless": careless{}}

const frameworkEnv = "MWTEST_FRAMEWORK"

func TestTable(t *testing.T) {
	f, ok := frameworks[os.Getenv(frameworkEnv)]
	if !ok {
		t.Skip("runs as a process of other tests")
	}
	patience = 300 * time.Millisecond
	Run(t, f)
}

// results returns which rows a framework passes, of those whose names match a pattern.
func results(t *testing.T, framework, rows string) map[string]bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTable$/"+rows, "-test.v", "-test.timeout=1m") //nolint:gosec // the test's own binary
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
}

// The table must fail for a framework that does nothing.
func TestTheTableFindsWhatIsMissing(t *testing.T) {
	rows := results(t, "bare", "")
	if len(rows) < 50 {
		t.Fatalf("only %d rows have run", len(rows))
	}
	for name, passed := range rows {
		if passed != (slices.Contains(harmless, name) || strings.HasPrefix(name, "through/") || strings.HasPrefix(name, "cost/")) {
			t.Errorf("%s: passed is %v", name, passed)
		}
	}
}

// The transparency rows must fail for a middleware that hides the connection.
func TestTheTableFindsWhatIsHidden(t *testing.T) {
	for name, passed := range results(t, "careless", "through") {
		if passed {
			t.Errorf("%s: passes", name)
		}
	}
}

// The expected results of passages are those of net/http alone.
func TestExpectationsAreThoseOfNetHTTP(t *testing.T) {
	for _, p := range passages {
		for _, version := range p.versions() {
			if got := p.seen(t, bare{}, version); got != p.want {
				t.Errorf("%s, %s: %q", p.name, version, got)
			}
		}
	}
}
