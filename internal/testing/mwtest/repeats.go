package mwtest

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// behind returns a server behind middleware that the framework does not know.
func behind(t *rig, outer func(http.Handler) http.Handler, h http.Handler) server {
	s := httptest.NewServer(outer(h))
	t.Cleanup(s.Close)
	return server{t, s}
}

// settles sends a request until it is no longer in flight.
func settles(s server, id string, header ...string) answer {
	for deadline := time.Now().Add(s.t.patience); ; <-time.After(time.Millisecond) {
		a := s.send(id, "", header...)
		if !strings.Contains(a.body, string(policy.InFlight)) || time.Now().After(deadline) {
			return a
		}
	}
}

// streams are handlers whose answer, 101 bytes, is not retained where 100 are.
var streams = map[string]http.HandlerFunc{
	"in parts": func(w http.ResponseWriter, _ *http.Request) {
		for range 101 {
			_, _ = io.WriteString(w, "x")
		}
	},
	"flushed": func(w http.ResponseWriter, _ *http.Request) {
		flushes(w, strings.Repeat("x", 50), strings.Repeat("x", 51))
	},
	"on a connection that is taken over": func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			return
		}
		_, _ = rw.WriteString("HTTP/1.1 200 OK\r\nContent-Length: 101\r\n\r\n" + strings.Repeat("x", 101))
		_ = rw.Flush()
		_ = conn.Close()
	},
}

// repeatRows are about requests that are sent again.
var repeatRows = []row{
	{"fields of one transmission are not replayed", func(t *rig) {
		s := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			h := w.Header()
			h["X-Multi"] = []string{"a, b", "c"}
			for name, value := range map[string]string{
				"Location": "/orders/1", "Set-Cookie": "session=secret", "Date": "Thu, 01 Jan 1970 00:00:00 GMT", "Connection": "X-Hop", "X-Hop": "1",
			} {
				h.Set(name, value)
			}
			w.WriteHeader(http.StatusCreated)
		}, Idempotency{Guard: newGuard(t, newStore(t))})
		first := s.send("1", "", keyHeader, "k").has("Set-Cookie", "session=secret").has("X-Hop", "1")
		again := s.send("1", "", keyHeader, "k").has("Idempotency-Replayed", "true").has("Location", "/orders/1")
		again.has("Set-Cookie", "").has("X-Hop", "").has("Connection", "")
		if got := strings.Join(again.header["X-Multi"], "|"); got != "a, b|c" || again.header.Get("Date") == first.header.Get("Date") {
			t.Errorf("replayed %v", again.header)
		}
	}},
	{"fields of outer middleware are not replayed", func(t *rig) {
		var c counter
		s := behind(t, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("X-Request-Id", r.Header.Get("X-Request-Id"))
				next.ServeHTTP(w, r)
			})
		}, t.framework.Serve(c.handle, Idempotency{Guard: newGuard(t, newStore(t))}))
		s.send("1", "", keyHeader, "k", "X-Request-Id", "first").has("X-Request-Id", "first")
		s.send("1", "", keyHeader, "k", "X-Request-Id", "second").has("X-Request-Id", "second").has("Idempotency-Replayed", "true")
	}},
	{"an answer that is too large, or a connection, is not retained", func(t *rig) {
		for name, handler := range streams {
			var c counter
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				c.handle(httptest.NewRecorder(), r)
				handler(w, r)
			}, Idempotency{Guard: newGuard(t, newStore(t), guard.WithMaxResult(100))})
			s.send("1", "", keyHeader, "k").is(http.StatusOK, strings.Repeat("x", 101))
			if a := settles(s, "1", keyHeader, "k").denies(policy.ResponseNotRetained); !strings.Contains(a.body, `"original-status":200`) {
				t.Errorf("%s: %s", name, a.body)
			}
			c.ran(t, 1)
		}
	}},
	{"one of many concurrent twins runs", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, newStore(t))})
		var all sync.WaitGroup
		for range 50 {
			all.Go(func() {
				if a := s.send("1", "", keyHeader, "k"); a.status != http.StatusCreated {
					a.denies(policy.InFlight)
				}
			})
		}
		all.Wait()
		s.send("1", "", keyHeader, "k").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
	}},
	{"a client that disconnects gets its answer when it retries", func(t *rig) {
		var c counter
		g := newGate(t)
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			g.handle(httptest.NewRecorder(), r)
			if err := r.Context().Err(); err != nil {
				t.Errorf("the handler's context has ended: %v", err)
			}
			c.handle(w, r)
		}, Idempotency{Guard: newGuard(t, newStore(t))})
		ctx, leave := context.WithCancel(t.Context())
		left := make(chan struct{})
		go func() {
			defer close(left)
			if resp, err := posting(ctx, s.Client(), s.URL, "", keyHeader, "k"); err == nil {
				_ = resp.Body.Close()
			}
		}()
		g.runs(t)
		leave()
		<-left
		g.let()
		for deadline := time.Now().Add(t.patience); ; <-time.After(time.Millisecond) {
			resp, err := posting(t.Context(), s.Client(), s.URL, "", keyHeader, "k")
			if err != nil {
				t.Fatal(err)
			}
			body, replayed := readAll(resp), resp.Header.Get("Idempotency-Replayed")
			if resp.StatusCode == http.StatusCreated && body == "run 1" && replayed == "true" {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s %q, replayed %q", resp.Status, body, replayed)
			}
		}
		c.ran(t, 1)
	}},
	{"a deadline of the request ends the handler, and its answer is kept", func(t *rig) {
		for timeout := 250 * time.Millisecond; ; timeout *= 2 {
			var c counter
			s := behind(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					ctx, cancel := context.WithTimeout(r.Context(), timeout)
					defer cancel()
					next.ServeHTTP(w, r.WithContext(ctx))
				})
			}, t.framework.Serve(func(w http.ResponseWriter, r *http.Request) {
				select {
				case <-r.Context().Done():
				case <-time.After(t.patience):
					t.Error("the handler's context does not end")
				}
				c.handle(httptest.NewRecorder(), r)
				w.WriteHeader(http.StatusGatewayTimeout)
			}, Idempotency{Guard: newGuard(t, newStore(t))}))
			first, again := s.send("1", "", keyHeader, "k"), s.send("1", "", keyHeader, "k")
			if first.status == http.StatusServiceUnavailable || again.status == http.StatusServiceUnavailable {
				if timeout < t.patience/2 {
					continue // a busy machine was late, and the deadline ended a call of the store
				}
			}
			first.is(http.StatusGatewayTimeout, "")
			again.is(http.StatusGatewayTimeout, "")
			c.ran(t, 1) // and its answer is kept, after the deadline
			return
		}
	}},
	{"an unguarded request does not call the store", func(t *rig) {
		st := newStore(t)
		var c counter
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, st), By: byUser, Hooks: Hooks{Skip: skipping}})
		s.send("1", "", "X-User", "u").is(http.StatusCreated, "run 1")
		s.request(http.MethodGet, "1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 2")
		s.send("1", "", "X-Skip", "yes", keyHeader, "k").is(http.StatusCreated, "run 3")
		s.send("1", "", "X-User", "u", keyHeader, "a, b").denies(policy.KeyMalformed)
		if n := st.Calls(storetest.Any); n != 0 {
			t.Errorf("the store was called %d times", n)
		}
	}},
	{"an answer that could not be recorded is reported", func(t *rig) {
		st := newStore(t)
		var c counter
		var reported reports
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, st), Hooks: reported.hooks()})
		st.Break(storetest.SettleOperation, storetest.Down)
		s.send("1", "", keyHeader, "k").is(http.StatusCreated, "run 1")
		reported.are(t, store.ErrUnavailable)
		st.Mend(storetest.Any)
	}},
}
