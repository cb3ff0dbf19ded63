package observability_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// driveConsole has actions of an operator with every outcome.
func driveConsole(w *world) {
	memory := memstore.New()
	w.t.Cleanup(func() { _ = memory.Close() })
	st := storetest.NewFaulty(memory)
	may := console.Act
	c := console.New(st, console.WithLogger(w.logger()), console.WithMeterProvider(w.meters),
		console.Authorize(func(*http.Request) (console.Operator, error) { return console.Operator{Name: "ada", May: may}, nil }),
		console.OnAction(func(_ context.Context, a console.Action) error {
			if strings.Contains(a.Why, "no ticket") || a.Outcome != "" {
				return errors.New("it names no ticket")
			}
			return nil
		}))
	w.t.Cleanup(func() { _ = c.Close() })
	locker := must(lock.New(st, "jobs", lock.WithLogger(w.logger()), lock.WithMeterProvider(w.meters), lock.WithTracerProvider(w.tracers)))
	lease := must(locker.Lock(w.t.Context(), secretKey))
	send := func(path string, form url.Values) {
		req := httptest.NewRequest(http.MethodPost, path, strings.NewReader(form.Encode()))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		c.ServeHTTP(httptest.NewRecorder(), req)
	}
	post := func(why string) {
		fence := strconv.FormatInt(lease.Fence().Number, 10)
		send("/locks/jobs/"+presence.KeyHash(secretKey)+"/release", url.Values{"fence": {fence}, "why": {why}})
	}
	post("it hangs, and there is no ticket") // refused
	may = console.View
	for _, path := range []string{
		"/permits/jobs/a/release", "/limits/jobs/-/reset", "/limits/jobs/-/hold", "/operations/jobs/a/resolve", "/tasks/jobs/a/cancel",
		"/tasks/jobs/a/revive",
	} {
		send(path, url.Values{"why": {"it hangs"}}) // refused
	}
	may = console.Act
	st.BreakNext(storetest.RevokeLease, storetest.Down, 1)
	post("it hangs") // failed
	st.BreakNext(storetest.RevokeLease, storetest.LostReply, 1)
	post("it hangs") // unconfirmed
	post("it hangs") // changed
	lease = must(locker.Lock(w.t.Context(), secretKey))
	post("it hangs") // done
}
