package mwtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// llmPlan has room for ten requests and for a thousand tokens, and none comes back while a test
// runs.
var llmPlan = tokenbucket.Limits{tokenbucket.PerDay(10).Named("requests"), tokenbucket.PerDay(1000).Named("tokens")}

// estimated costs a request, and the tokens in its field X-Estimate.
func estimated(r *http.Request) tokenbucket.Cost {
	n, _ := strconv.ParseInt(r.Header.Get("X-Estimate"), 10, 64)
	return tokenbucket.Cost{"requests": 1, "tokens": n}
}

// use reports tokens of a request.
func use(r *http.Request, n int64) error {
	reservation, ok := tokenbucket.FromContext(r.Context())
	if !ok {
		return errors.New("there is no reservation")
	}
	return reservation.Use("tokens", n)
}

// left returns the remaining tokens of the key a, by limit.
func left(t *rig, l *tokenbucket.Limiter) string {
	t.Helper()
	var text []string
	for _, s := range must(l.Peek(t.Context(), "a")).Limits() {
		text = append(text, s.Name+" "+strconv.FormatInt(s.Remaining, 10))
	}
	return strings.Join(text, ", ")
}

// settling is a server that is behind a limit, and is asked for what is left when it has answered.
type settling struct {
	server
	limiter *tokenbucket.Limiter
	running *sync.WaitGroup
}

// serveSettling starts a server behind a limit by X-Key.
func serveSettling(t *rig, l *tokenbucket.Limiter, limit RateLimit, handler http.HandlerFunc) settling {
	t.Helper()
	limit.Limiter, limit.By = l, byHeader
	s := settling{limiter: l, running: new(sync.WaitGroup)}
	served := t.framework.Serve(handler, limit)
	s.server = server{t, httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.running.Add(1)
		defer s.running.Done()
		served.ServeHTTP(w, r)
	}))}
	s.Config.ErrorLog = log.New(io.Discard, "", 0) // panics
	s.Start()
	t.Cleanup(s.Close)
	return s
}

// leaves checks what is left of the key a, when all requests have ended.
func (s settling) leaves(want string) {
	s.t.Helper()
	s.running.Wait()
	if got := left(s.t, s.limiter); got != want {
		s.t.Errorf("%s left, want %s", got, want)
	}
}

// sendingMany sends requests in the background.
func (s settling) sendingMany(n int, header ...string) <-chan answer {
	answers := make(chan answer, n)
	var all sync.WaitGroup
	for range n {
		all.Go(func() { answers <- s.send("1", "", header...) })
	}
	s.t.Cleanup(all.Wait) // no reports to a test that has ended
	return answers
}

// post sends a request with the key a that costs 300 tokens by its estimate, reads what comes
// first, and leaves if leave is true.
func (s settling) post(leave bool) {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	defer cancel()
	resp, err := posting(ctx, s.Client(), s.URL, "", "X-Key", "a", "X-Estimate", "300")
	if err != nil {
		return // the connection was cut
	}
	defer resp.Body.Close() //nolint:errcheck // it may be cut
	_, _ = io.ReadFull(resp.Body, make([]byte, 1))
	if !leave {
		_, _ = io.Copy(io.Discard, resp.Body)
	}
}

// ends are the ways in which a handler can end.
var ends = []struct {
	name   string
	leaves bool // the client does, in the middle
	end    http.HandlerFunc
}{
	{"an answer", false, func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }},
	{"an error", false, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) }},
	{"no answer", false, func(http.ResponseWriter, *http.Request) {}},
	{"a panic", false, func(http.ResponseWriter, *http.Request) { panic("as expected") }},
	{"an aborted stream", false, func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}},
	{"a client that leaves", true, func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}},
	{"a connection that is taken over", false, func(w http.ResponseWriter, _ *http.Request) {
		if conn, _, err := http.NewResponseController(w).Hijack(); err == nil {
			_, _ = io.WriteString(conn, "HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
			_ = conn.Close()
		}
	}},
}

var costs = RateLimit{Costs: estimated}

// settledRows are about requests that are settled when they have been answered.
var settledRows = []row{
	{"a request costs what its handler reports, however it ends", func(t *rig) {
		for _, e := range ends {
			for _, c := range []struct {
				name string
				used []int64
				want string
			}{
				{"less", []int64{10, 250}, "requests 9, tokens 750"},
				{"more", []int64{10, 700}, "requests 9, tokens 300"},
				{"nothing", []int64{0}, "requests 9, tokens 1000"},
				{"no report", nil, "requests 9, tokens 700"},
			} {
				l := newLimiter(t, newStore(t), llmPlan)
				s := serveSettling(t, l, costs, func(w http.ResponseWriter, r *http.Request) {
					for _, n := range c.used {
						if err := use(r, n); err != nil {
							t.Error(err)
						}
					}
					e.end(w, r)
				})
				s.post(e.leaves)
				s.running.Wait()
				t.Logf("%s, %s used: %s", e.name, c.name, left(t, l))
				s.leaves(c.want)
			}
		}
	}},
	{"of many requests at once no more run than there is room for", func(t *rig) {
		g := newGate(t)
		s := serveSettling(t, newLimiter(t, newStore(t), llmPlan), costs, g.handle)
		answers := s.sendingMany(100, "X-Key", "a", "X-Estimate", "200")
		for range 95 {
			(<-answers).denies(policy.QuotaExceeded)
		}
		for range 5 {
			g.let()
			(<-answers).is(http.StatusOK, "done")
		}
		s.leaves("requests 5, tokens 0")
	}},
	{"a cost that is denied is charged of no limit", func(t *rig) {
		var c counter
		s := serveSettling(t, newLimiter(t, newStore(t), llmPlan), costs, c.handle)
		s.send("1", "", "X-Key", "a", "X-Estimate", "800").is(http.StatusCreated, "run 1")
		if a := s.send("1", "", "X-Key", "a", "X-Estimate", "300").denies(policy.QuotaExceeded); !strings.Contains(a.body, `["tokens"]`) {
			t.Errorf("denied with %s", a.body)
		}
		s.leaves("requests 9, tokens 200")
	}},
	{"an estimate above the burst is reduced", func(t *rig) {
		s := serveSettling(t, newLimiter(t, newStore(t), llmPlan), costs, func(w http.ResponseWriter, r *http.Request) {
			_ = use(r, 100)
			_, _ = io.WriteString(w, "done")
		})
		s.send("1", "", "X-Key", "a", "X-Estimate", "5000").is(http.StatusOK, "done")
		s.leaves("requests 9, tokens 900")
	}},
	{"use beyond the overdraft is reported", func(t *rig) {
		var r reports
		limit := costs
		limit.Hooks = r.hooks()
		s := serveSettling(t, newLimiter(t, newStore(t), llmPlan), limit, func(_ http.ResponseWriter, r *http.Request) { _ = use(r, 3000) })
		s.send("1", "", "X-Key", "a", "X-Estimate", "100").is(http.StatusOK, "")
		s.leaves("requests 9, tokens 0")
		r.are(t, tokenbucket.ErrOverdraft)
		if a := s.send("1", "", "X-Key", "a", "X-Estimate", "1").denies(policy.QuotaExceeded); a.header.Get("Retry-After") < "86400" {
			t.Errorf("Retry-After is %s s", a.header.Get("Retry-After"))
		}
	}},
	{"a cost that no limit can charge is the server's fault", func(t *rig) {
		var log logbook
		var c counter
		for i, cost := range []tokenbucket.Cost{{"tokens": -1}, {"requests": 1, "images": 1}} {
			s := serveSettling(t, newLimiter(t, newStore(t), llmPlan), RateLimit{
				Costs:   func(*http.Request) tokenbucket.Cost { return cost },
				Options: []policy.RateLimitOption{policy.FailOpen(), log.option()},
			}, c.handle)
			for range 2 {
				s.send("1", "", "X-Key", "a").denies(policy.InternalError)
			}
			if got := log.count("a cost that their limits cannot charge"); got != i+1 {
				t.Errorf("logged %d times: %s", got, log.text.String())
			}
			s.leaves("requests 10, tokens 1000")
		}
		c.ran(t, 0)
	}},
	{"a settlement that fails is reported, and leaves the estimate", func(t *rig) {
		for fault, want := range map[storetest.Fault]string{storetest.Down: "requests 9, tokens 700", storetest.LostReply: "requests 9, tokens 990"} {
			var r reports
			st := newStore(t)
			limit := costs
			limit.Hooks = r.hooks()
			s := serveSettling(t, newLimiter(t, st, llmPlan), limit, func(w http.ResponseWriter, r *http.Request) {
				_ = use(r, 10)
				_, _ = io.WriteString(w, "done")
			})
			st.Break(storetest.SettleTokens, fault)
			s.send("1", "", "X-Key", "a", "X-Estimate", "300").is(http.StatusOK, "done")
			s.leaves(want)
			r.are(t, store.ErrUnavailable)
			if n := st.Calls(storetest.SettleTokens); n != 1 {
				t.Errorf("it was sent %d times", n)
			}
		}
	}},
	{"a reservation ends with its request", func(t *rig) {
		kept := make(chan *tokenbucket.Reservation, 1)
		s := serveSettling(t, newLimiter(t, newStore(t), llmPlan), costs, func(_ http.ResponseWriter, r *http.Request) {
			reservation, _ := tokenbucket.FromContext(r.Context())
			kept <- reservation
		})
		s.send("1", "", "X-Key", "a", "X-Estimate", "300").is(http.StatusOK, "")
		s.leaves("requests 9, tokens 700")
		late := <-kept
		if late == nil {
			t.Fatal("there is no reservation")
		}
		if err := late.Use("tokens", 1); !errors.Is(err, tokenbucket.ErrSettled) {
			t.Error(err)
		}
		if err := late.Cancel(t.Context()); err != nil {
			t.Error(err)
		}
		s.leaves("requests 9, tokens 700")
	}},
	{"a request that passes without the store has no reservation", func(t *rig) {
		st := newStore(t)
		limit := RateLimit{Costs: estimated, Options: []policy.RateLimitOption{policy.FailOpen(), policy.StatusHeaders()}}
		s := serveSettling(t, newLimiter(t, st, llmPlan), limit, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, use(r, 10))
		})
		st.Break(storetest.TakeTokens, storetest.Down)
		s.send("1", "", "X-Key", "a", "X-Estimate", "300").is(http.StatusOK, "there is no reservation").has("RateLimit-Status", "bypassed")
		st.Mend(storetest.Any)
		s.leaves("requests 10, tokens 1000")
	}},
	{"a shadow of costs charges, and denies no request", func(t *rig) {
		limit := RateLimit{Costs: estimated, Options: []policy.RateLimitOption{policy.Shadow()}}
		s := serveSettling(t, newLimiter(t, newStore(t), llmPlan), limit, func(w http.ResponseWriter, r *http.Request) {
			_, _ = fmt.Fprint(w, use(r, 600))
		})
		for _, want := range []string{"<nil>", "<nil>", "there is no reservation"} { // 600 of 1000, and 600 of 400 by an overdraft
			s.send("1", "", "X-Key", "a", "X-Estimate", "300").is(http.StatusOK, want).tellsNoLimits()
		}
		s.leaves("requests 8, tokens 0")
	}},
	{"a limit of attempts does not hide the costs of an outer one", func(t *rig) {
		st := newStore(t)
		outer := newLimiter(t, st, llmPlan)
		attempts := must(tokenbucket.New(st, "attempts", tokenbucket.PerDay(2)))
		s := serve(t, func(_ http.ResponseWriter, r *http.Request) {
			if err := use(r, 10); err != nil {
				t.Error(err)
			}
		}, RateLimit{Limiter: outer, By: byHeader, Costs: estimated}, RateLimit{
			Limiter: attempts, By: byHeader, Options: []policy.RateLimitOption{policy.ChargeStatus(http.StatusUnauthorized)},
		})
		s.send("1", "", "X-Key", "a", "X-Estimate", "300").is(http.StatusOK, "")
		if got := left(t, outer) + ", " + left(t, attempts); got != "requests 9, tokens 990, attempts 2" {
			t.Errorf("%s are left", got)
		}
	}},
}
