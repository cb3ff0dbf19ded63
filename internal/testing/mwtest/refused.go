package mwtest

import (
	"context"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// markPrefix is the prefix of header fields that only middleware of this module may see.
const markPrefix = "Lockkeeper-"

// refusal is a middleware that refuses the request to Path + "1" until it is released.
type refusal struct {
	name   string
	status int
	wire   func(t *rig, hooks Hooks) (m Middleware, let func())
}

var refusals = []refusal{
	{"exclusive", http.StatusConflict, func(t *rig, hooks Hooks) (Middleware, func()) {
		l := newLocker(t, newStore(t))
		lease := locked(t, l)
		return Exclusive{Locker: l, By: byID, Hooks: hooks}, func() { _ = lease.Unlock(t.Context()) }
	}},
	{"concurrency", http.StatusTooManyRequests, func(t *rig, hooks Hooks) (Middleware, func()) {
		s := newSemaphore(t, newStore(t), 1)
		permit := permitted(t, s)
		return Concurrency{Semaphore: s, By: byID, Hooks: hooks}, func() { _ = permit.Release(t.Context()) }
	}},
	{"ratelimit", http.StatusTooManyRequests, func(t *rig, hooks Hooks) (Middleware, func()) {
		l := newLimiter(t, newStore(t), tokenbucket.PerHour(1))
		must(l.Allow(t.Context(), "1"))
		return RateLimit{Limiter: l, By: byID, Hooks: hooks}, func() { _ = l.Reset(t.Context(), "1") }
	}},
}

// subrequest makes a request to another route of the program, without a connection.
func subrequest(ctx context.Context, h http.Handler) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, http.MethodPost, Path+"1", nil))
	return w
}

// wrapper is other middleware between a guard and a refusal.
type wrapper struct {
	name string
	wrap func(http.Handler) http.Handler
}

func writing(w func(http.ResponseWriter) http.ResponseWriter) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			wrapped := w(rw)
			next.ServeHTTP(wrapped, r)
			if b, ok := wrapped.(*buffering); ok {
				b.close()
			}
		})
	}
}

var wrappers = []wrapper{
	{"nothing", func(next http.Handler) http.Handler { return next }},
	{"TimeoutHandler", func(next http.Handler) http.Handler { return http.TimeoutHandler(next, time.Minute, "") }},
	{"another header", writing(func(w http.ResponseWriter) http.ResponseWriter { return &hiding{w: w, header: http.Header{}} })},
	{"a buffer", writing(func(w http.ResponseWriter) http.ResponseWriter { return &buffering{w: w} })},
	{"flushes", writing(func(w http.ResponseWriter) http.ResponseWriter { return flushing{w} })},
	{"hints", writing(func(w http.ResponseWriter) http.ResponseWriter { return hinting{w} })},
}

// hiding is a minimal ResponseWriter.
type hiding struct {
	w      http.ResponseWriter
	header http.Header
	status int
}

func (h *hiding) Header() http.Header { return h.header }

func (h *hiding) WriteHeader(status int) {
	if h.status == 0 && status >= 200 {
		h.status = status
		maps.Copy(h.w.Header(), h.header.Clone())
		h.w.WriteHeader(status)
	}
}

func (h *hiding) Write(p []byte) (int, error) {
	h.WriteHeader(http.StatusOK)
	return h.w.Write(p)
}

// buffering buffers an answer, as a compressing writer does. It does not unwrap.
type buffering struct {
	w      http.ResponseWriter
	status int
	body   strings.Builder
}

func (b *buffering) Header() http.Header { return b.w.Header() }

func (b *buffering) WriteHeader(status int) {
	if b.status == 0 && status >= 200 {
		b.status = status
	}
}

func (b *buffering) Write(p []byte) (int, error) { return b.body.Write(p) }

func (b *buffering) close() {
	if b.status != 0 {
		b.w.WriteHeader(b.status)
	}
	_, _ = io.WriteString(b.w, b.body.String())
}

// flushing sends an answer as it is written.
type flushing struct{ http.ResponseWriter }

func (f flushing) WriteHeader(status int) {
	f.ResponseWriter.WriteHeader(status)
	_ = http.NewResponseController(f.ResponseWriter).Flush()
}

func (f flushing) Unwrap() http.ResponseWriter { return f.ResponseWriter }

// hinting sends early hints before the answer.
type hinting struct{ http.ResponseWriter }

func (h hinting) WriteHeader(status int) {
	h.ResponseWriter.WriteHeader(http.StatusEarlyHints)
	h.ResponseWriter.WriteHeader(status)
}

func (h hinting) Unwrap() http.ResponseWriter { return h.ResponseWriter }

// swallowing answers 201 itself, with an effect, whatever the handler behind it has answered.
func swallowing(c *counter, share bool) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hidden := httptest.NewRecorder()
			if share {
				hidden.HeaderMap = w.Header() //nolint:staticcheck // the field is what shares it
			}
			next.ServeHTTP(hidden, r)
			w.Header().Del("Content-Type")
			w.Header().Del("Content-Length")
			c.handle(w, r)
		})
	}
}

// inner is a guard behind another one.
func inner(t *rig) *guard.Guard {
	t.Helper()
	return must(guard.New(newStore(t), "inner"))
}

// refusedRows are about refusals behind a guard.
var refusedRows = []row{
	{"a refusal of a part does not count for the request", func(t *rig) {
		for _, refused := range refusals {
			m, _ := refused.wire(t, Hooks{})
			part := t.framework.Serve(func(http.ResponseWriter, *http.Request) { t.Error("the part runs") }, m)
			for name, call := range map[string]func(ctx context.Context) int{
				"called": func(ctx context.Context) int { return subrequest(ctx, part).Code },
				"detached": func(ctx context.Context) int {
					status := make(chan int)
					go func() { status <- subrequest(context.WithoutCancel(ctx), part).Code }()
					return <-status
				},
			} {
				var charges counter
				s := orders(t, func(w http.ResponseWriter, r *http.Request) {
					if status := call(r.Context()); status != refused.status {
						t.Errorf("%s, %s: the part is answered with %d", refused.name, name, status)
					}
					charges.handle(w, r)
				})
				for range 3 {
					s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
				}
				charges.ran(t, 1)
			}
		}
	}},
	{"a refusal is not kept, whatever wraps it", func(t *rig) {
		for _, between := range wrappers {
			teapot := between.wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
			if serve(t, teapot.ServeHTTP).send("1", "").status != http.StatusTeapot {
				continue // a framework that takes early hints for the answer
			}
			for _, refused := range refusals {
				for _, hooks := range []Hooks{{}, {Deny: onDenial}} {
					var c counter
					m, let := refused.wire(t, hooks)
					handler := between.wrap(t.framework.Serve(c.handle, m)).ServeHTTP
					store := newStore(t)
					s := serve(t, handler, Idempotency{Guard: newGuard(t, store), By: byUser}, Idempotency{Guard: inner(t), By: byUser})
					status := refused.status
					if hooks.Deny != nil {
						status = http.StatusTeapot
					}
					send := func() answer { return s.send("1", "", "X-User", "u", keyHeader, "k") }
					for range 2 {
						if a := send().has("Idempotency-Replayed", ""); a.status != status {
							t.Errorf("%s, %s: %d %q", refused.name, between.name, a.status, a.body)
						}
					}
					let()
					if a := send().has("Idempotency-Replayed", ""); a.status != http.StatusCreated {
						t.Errorf("%s, %s: then %d %q", refused.name, between.name, a.status, a.body)
					}
					c.ran(t, 1)
				}
			}
		}
	}},
	{"a swallowed refusal does not count", func(t *rig) {
		for _, refused := range refusals {
			for _, share := range []bool{false, true} {
				for _, hooks := range []Hooks{{}, {Deny: onDenial}} {
					var charges counter
					m, _ := refused.wire(t, hooks)
					part := t.framework.Serve(func(http.ResponseWriter, *http.Request) { t.Error("the part runs") }, m)
					s := orders(t, swallowing(&charges, share)(part).ServeHTTP)
					for range 3 {
						s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
					}
					charges.ran(t, 1)
				}
			}
		}
	}},
	{"a refusal on a hijacked connection is not kept", func(t *rig) {
		m, _ := refusals[0].wire(t, Hooks{})
		part := t.framework.Serve(func(http.ResponseWriter, *http.Request) { t.Error("the part runs") }, m)
		s := orders(t, func(w http.ResponseWriter, r *http.Request) {
			part.ServeHTTP(w, r)
			if conn, _, err := http.NewResponseController(w).Hijack(); err == nil { // gin does not give it away
				_ = conn.Close()
			}
		})
		conn := must((&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(s.URL, "http://")))
		defer conn.Close() //nolint:errcheck // it has been read
		_, _ = io.WriteString(conn, "POST "+Path+"1 HTTP/1.1\r\nHost: x\r\nX-User: u\r\nIdempotency-Key: k\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
		raw, _ := io.ReadAll(conn)
		if !strings.Contains(string(raw), " 409 ") || strings.Contains(string(raw), markPrefix) {
			t.Errorf("the client gets %q", raw)
		}
	}},
	{"a refusal of a part that panics does not count", func(t *rig) {
		m, _ := refusals[0].wire(t, Hooks{})
		part := t.framework.Serve(func(http.ResponseWriter, *http.Request) {}, m)
		s := orders(t, func(w http.ResponseWriter, r *http.Request) {
			part.ServeHTTP(&buffering{w: w}, r)
			w.Header().Del("Content-Length")
			panic(http.ErrAbortHandler)
		})
		if a := s.send("1", "", "X-User", "u", keyHeader, "k"); a.status != http.StatusInternalServerError {
			t.Errorf("%d %q", a.status, a.body)
		}
		s.send("1", "", "X-User", "u", keyHeader, "k").denies(policy.OutcomeUnknown)
	}},
	{"a forged refusal header does not count", func(t *rig) {
		var charges counter
		m, _ := refusals[0].wire(t, Hooks{})
		part := t.framework.Serve(func(http.ResponseWriter, *http.Request) {}, m)
		var seen http.Header
		s := orders(t, func(w http.ResponseWriter, r *http.Request) {
			own := subrequest(r.Context(), part).Header()
			if seen == nil { // the fields of a refusal of another attempt
				seen = own
				w.WriteHeader(http.StatusTeapot)
				return
			}
			for name, values := range seen {
				w.Header()[name] = values
			}
			n, _ := strconv.Atoi(r.Header.Get("X-Status"))
			w.Header().Del("Content-Length")
			charges.handle(statusWriter{w, n}, r)
		})
		s.send("1", "", "X-User", "u", keyHeader, "first").is(http.StatusTeapot, "")
		for range 3 {
			s.send("1", "", "X-User", "u", keyHeader, "k", "X-Status", "409").is(http.StatusConflict, "run 1")
		}
		charges.ran(t, 1)
	}},
}

// statusWriter answers with another status than the handler's.
type statusWriter struct {
	http.ResponseWriter
	status int
}

func (s statusWriter) WriteHeader(int) { s.ResponseWriter.WriteHeader(s.status) }
