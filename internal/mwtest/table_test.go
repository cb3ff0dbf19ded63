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
	mux.HandleFunc("POST "+Path+"{id}", func(w http.ResponseWriter, r *http.Request) {
		defer func() {
			if recover() != nil {
				w.WriteHeader(http.StatusInternalServerError)
			}
		}()
		handler(w, r)
	})
	return WithUser(mux)
}

const bareEnv = "MWTEST_BARE"

func TestTableOnABareFramework(t *testing.T) {
	if os.Getenv(bareEnv) == "" {
		t.Skip("runs as a process of TestTheTableFindsWhatIsMissing")
	}
	patience = 300 * time.Millisecond
	Run(t, bare{})
}

// harmless are the rows that ask for nothing more than that a middleware does no harm.
var harmless = []string{
	"idempotency/other_methods_pass", "idempotency/the_handler_reads_the_body",
	"ratelimit/every_builder_of_keys", "idempotency/every_builder_of_keys", "exclusive/every_builder_of_keys",
	"concurrency/every_builder_of_keys", "exclusive/a_panic_releases_the_lock", "concurrency/a_panic_gives_the_permit_back",
	"together/what_is_flushed_arrives_at_once", "together/a_connection_can_be_taken_over",
}

// A table that finds nothing wrong with a framework that does nothing proves nothing.
func TestTheTableFindsWhatIsMissing(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestTableOnABareFramework$", "-test.v") //nolint:gosec // the test's own binary
	cmd.Env = append(os.Environ(), bareEnv+"=yes")
	out, _ := cmd.CombinedOutput()
	rows := regexp.MustCompile(`--- (PASS|FAIL): TestTableOnABareFramework/(\S+/\S+)`).FindAllStringSubmatch(string(out), -1)
	if len(rows) < 50 {
		t.Fatalf("only %d rows have run:\n%s", len(rows), out)
	}
	for _, row := range rows {
		if passed := row[1] == "PASS"; passed != slices.Contains(harmless, row[2]) {
			t.Errorf("%s: %s", row[2], strings.ToLower(row[1]))
		}
	}
}
