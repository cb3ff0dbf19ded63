package nethttp_test

import (
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// A TimeoutHandler returns while its handler runs. Inside a middleware that releases something when the
// handler returns it is a mistake, which is logged.
func TestTimeoutHandlerInsideIsLogged(t *testing.T) {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	var log strings.Builder
	logger := policy.Logger(slog.New(slog.NewTextHandler(&log, nil)))
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	timed := http.TimeoutHandler(handler, time.Minute, "")
	for name, wrap := range map[string]func(http.Handler) http.Handler{
		"exclusive":   exclusive.New(must(lock.New(st, "l")), nethttp.Global(), logger),
		"concurrency": concurrency.New(must(semaphore.New(st, "s", 1)), nethttp.Global(), logger),
		"idempotency": idempotency.New(must(guard.New(st, "g")), nethttp.ScopeBy(nethttp.Global()), logger),
	} {
		log.Reset()
		http.TimeoutHandler(wrap(handler), time.Minute, "")
		if log.Len() > 0 {
			t.Errorf("%s: inside of a TimeoutHandler: %s", name, &log)
		}
		wrap(timed)
		if got := log.String(); strings.Count(got, "TimeoutHandler") != 1 || !strings.Contains(got, "level=WARN") ||
			!strings.Contains(got, "middleware="+name) {
			t.Errorf("%s: around a TimeoutHandler: %q", name, got)
		}
	}
}
