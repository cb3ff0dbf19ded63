package mwtest

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// ending is how a guard settles an answer.
type ending int

const (
	kept     ending = iota // a repeat gets the same answer
	released               // a repeat runs
	dropped                // a repeat is refused: it ran
)

// endings is the table of docs/idempotency.md.
var endings = []struct {
	statuses []int
	method   string // POST if empty
	dirty    ending
	clean    ending // or of a guard that allows re-runs
}{
	{statuses: []int{200, 201, 202, 204, 301, 302, 303, 307, 308}, dirty: kept, clean: kept},
	{statuses: []int{304, 401, 407, 412, 421, 425, 429}, dirty: released, clean: released},
	{statuses: []int{206}, dirty: dropped, clean: released},
	{statuses: []int{206}, method: http.MethodGet, dirty: released, clean: released},
	{statuses: []int{403, 408, 409, 423, 424}, dirty: kept, clean: released},
	{statuses: []int{400, 402, 404, 405, 410, 413, 415, 416, 418, 422, 428, 451, 499}, dirty: kept, clean: kept},
	{statuses: []int{500, 501, 502, 503, 504, 599}, dirty: kept, clean: released},
}

// answering answers with the status in the request, and counts its runs.
func answering(t *rig, c *counter) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		attempt, ok := guard.FromContext(r.Context())
		if r.Header.Get("X-Clean") != "" && ok {
			if err := attempt.MarkClean(r.Context()); err != nil {
				t.Error(err)
			}
		}
		c.handle(httptest.NewRecorder(), r)
		if retry := r.Header.Get("X-Retry-After"); retry != "" {
			w.Header().Set("Retry-After", retry)
		}
		status, err := strconv.Atoi(r.Header.Get("X-Status"))
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(status)
	}
}

// statusRows are about which answers are kept.
var statusRows = []row{
	{"answers are kept as documented", func(t *rig) {
		var c counter
		methods := policy.Methods(http.MethodPost, http.MethodGet)
		options := []policy.IdempotencyOption{methods}
		beginsDirty := serve(t, answering(t, &c), Idempotency{Guard: newGuard(t, newStore(t)), Options: options})
		reruns := serve(t, answering(t, &c), Idempotency{Guard: newGuard(t, newStore(t), guard.WithRerun()), Options: options})
		for _, e := range endings {
			for _, status := range e.statuses {
				for name, send := range map[string]func(method string, header ...string) answer{
					"dirty": func(method string, header ...string) answer { return beginsDirty.request(method, "1", "", header...) },
					"clean": func(method string, header ...string) answer {
						return beginsDirty.request(method, "1", "", append(header, "X-Clean", "yes")...)
					},
					"re-run": func(method string, header ...string) answer { return reruns.request(method, "1", "", header...) },
				} {
					want := e.clean
					if name == "dirty" {
						want = e.dirty
					}
					method := e.method
					if method == "" {
						method = http.MethodPost
					}
					key := name + method + strconv.Itoa(status)
					before := c.runs
					for n := range 3 {
						a := send(method, "X-Status", strconv.Itoa(status), keyHeader, key)
						switch {
						case n > 0 && want == dropped:
							a.denies(policy.ResponseNotRetained)
						case a.status != status || (a.header.Get("Idempotency-Replayed") != "") != (n > 0 && want == kept):
							t.Errorf("%s %d, %s, time %d: %d %v", method, status, name, n, a.status, a.header)
						}
					}
					if runs := c.runs - before; (runs == 3) != (want == released) || (runs == 1) != (want != released) {
						t.Errorf("%s %d, %s: %d runs", method, status, name, runs)
					}
				}
			}
		}
	}},
	{"the application can choose which answers are kept", func(t *rig) {
		var c counter
		s := orders(t, answering(t, &c), policy.KeepStatus(206, 401), policy.ReleaseStatus(200, 409))
		for status, runs := range map[string]int{"206": 1, "401": 1, "200": 3, "409": 3} {
			before := c.runs
			for range 3 {
				s.send("1", "", "X-User", "u", keyHeader, status, "X-Status", status)
			}
			if got := c.runs - before; got != runs {
				t.Errorf("%s: %d runs, want %d", status, got, runs)
			}
		}
	}},
	{"a timeout middleware answers while the handler still runs", func(t *rig) {
		for _, status := range []int{http.StatusRequestTimeout, http.StatusForbidden, http.StatusConflict, http.StatusServiceUnavailable} {
			g := newGate(t)
			var effects counter
			var running sync.WaitGroup
			s := orders(t, func(w http.ResponseWriter, r *http.Request) {
				late := r.Clone(r.Context())
				running.Go(func() {
					effects.handle(httptest.NewRecorder(), late)
					g.handle(httptest.NewRecorder(), late)
				})
				<-g.entered
				w.WriteHeader(status)
			})
			for range 3 {
				if a := s.send("1", "", "X-User", "u", keyHeader, "k"); a.status != status {
					t.Errorf("%d: %d", status, a.status)
				}
			}
			for range 3 {
				g.let()
			}
			running.Wait()
			effects.ran(t, 1)
		}
	}},
	{"a busy answer of a clean attempt is retried", func(t *rig) {
		store := newStore(t)
		var c counter
		shed := answering(t, &c)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			attempt, _ := guard.FromContext(r.Context())
			if r.Header.Get("X-Fails") != "" {
				if err := attempt.MarkClean(r.Context()); err != nil {
					t.Error(err)
				}
				store.BreakNext(storetest.MarkOperation, storetest.Down, 1)
				if err := attempt.MarkDirty(r.Context()); err == nil {
					t.Error("marked")
				}
				if err := attempt.Abandon(r.Context()); err != nil { // and stops before the effect
					t.Error(err)
				}
			}
			shed(w, r)
		}, Idempotency{Guard: newGuard(t, store), By: byUser})
		for _, fails := range []string{"", "dirty"} {
			before := c.runs
			for range 2 {
				header := []string{"X-User", "u", keyHeader, "k" + fails, "X-Status", "503", "X-Retry-After", "1", "X-Fails", fails}
				if fails == "" {
					header = append(header, "X-Clean", "yes")
				}
				s.send("1", "", header...).is(http.StatusServiceUnavailable, "").has("Idempotency-Replayed", "")
			}
			if runs := c.runs - before; runs != 2 {
				t.Errorf("%q: %d runs", fails, runs)
			}
		}
	}},
	{"an unconfirmed answer is marked if configured", func(t *rig) {
		for _, marked := range []bool{false, true} {
			store := newStore(t)
			var c counter
			want := ""
			var options []policy.IdempotencyOption
			if marked {
				options, want = append(options, policy.StatusHeaders()), "unconfirmed"
			}
			s := serve(t, c.handle, Idempotency{Guard: newGuard(t, store), By: byUser, Options: options})
			s.send("1", "", "X-User", "u", keyHeader, "confirmed").is(http.StatusCreated, "run 1").has("Idempotency-Status", "")
			store.Break(storetest.SettleOperation, storetest.Down)
			s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 2").has("Idempotency-Status", want)
			store.Mend(storetest.Any)
			for deadline := time.Now().Add(t.patience); ; <-time.After(time.Millisecond) {
				a := s.send("1", "", "X-User", "u", keyHeader, "k")
				if a.status == http.StatusCreated {
					a.is(http.StatusCreated, "run 2").has("Idempotency-Replayed", "true").has("Idempotency-Status", "")
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("%d %q", a.status, a.body)
				}
			}
		}
	}},
}
