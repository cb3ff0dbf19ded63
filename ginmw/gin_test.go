package ginmw_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/fenced"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newStore(t *testing.T) *storetest.Faulty {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return storetest.NewFaulty(st)
}

// post sends a request with an idempotency key, and a fence.
func post(h http.Handler, path string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, strings.NewReader("body"))
	r.Header.Set("Idempotency-Key", "k")
	r.Header.Set(fence.Header, "1")
	h.ServeHTTP(w, r)
	return w
}

// policies are the middleware of every policy.
func policies(t *testing.T, st store.Store, by ginmw.KeyFunc, report ginmw.Option) map[string]gin.HandlerFunc {
	carts, reports := must(lock.New(st, "carts")), must(semaphore.New(st, "reports", 1))
	t.Cleanup(func() { _, _ = carts.Close(), reports.Close() })
	return map[string]gin.HandlerFunc{
		"ratelimit":   ratelimit.New(must(tokenbucket.New(st, "api", tokenbucket.PerHour(1))), by, report),
		"idempotency": idempotency.New(must(guard.New(st, "orders")), ginmw.ScopeBy(by), report),
		"exclusive":   exclusive.New(carts, by, report),
		"concurrency": concurrency.New(reports, by, report),
		"fenced":      fenced.New(anyFence{}, by, report),
	}
}

// A failure of the store, or of a key function, is reported; a denial is not. None is an error of gin's
// request. After the middleware, gin's context has its former request and writer.
func TestFailuresAreReported(t *testing.T) {
	errKey := errors.New("no directory")
	failing := func(err error) ginmw.KeyFunc { return func(*gin.Context) (string, error) { return "", err } }
	down := newStore(t)
	down.Break(storetest.Any, storetest.Down)
	for name, c := range map[string]struct {
		st     store.Store
		by     ginmw.KeyFunc
		status int
		want   error
	}{
		"allowed":       {newStore(t), ginmw.Global(), http.StatusCreated, nil},
		"no key":        {newStore(t), ginmw.ByHeader("X-None"), http.StatusBadRequest, nil},
		"not provided":  {newStore(t), ginmw.ByParam("none"), http.StatusInternalServerError, policy.ErrNotProvided},
		"a failing key": {newStore(t), failing(errKey), http.StatusInternalServerError, errKey},
		"an outage":     {down, ginmw.Global(), http.StatusServiceUnavailable, store.ErrUnavailable},
	} {
		var reported []error
		report := ginmw.OnError(func(_ *gin.Context, err error) { reported = append(reported, err) })
		for policy, m := range policies(t, c.st, c.by, report) {
			if policy == "fenced" && c.st == down {
				continue // its store is another one
			}
			t.Run(policy+", "+name, func(t *testing.T) {
				reported = nil
				r := gin.New()
				r.POST("/", func(c *gin.Context) {
					request, writer := c.Request, c.Writer
					c.Next()
					if c.Request != request || c.Writer != writer {
						t.Error("the context has another request, or another writer")
					}
				}, func(g *gin.Context) {
					g.Next()
					if want := c.want; (len(reported) > 0) != (want != nil) || want != nil && !errors.Is(reported[0], want) || len(g.Errors) > 0 {
						t.Errorf("errors %v, want %v; gin has %v", reported, want, g.Errors)
					}
				}, m, func(c *gin.Context) { c.Status(http.StatusCreated) })
				if w := post(r, "/"); w.Code != c.status {
					t.Errorf("status %d: %s", w.Code, w.Body)
				}
			})
		}
	}
}

// A panic passes every middleware unchanged.
func TestPanicsPass(t *testing.T) {
	for name, m := range policies(t, newStore(t), ginmw.Global(), ginmw.OnError(func(*gin.Context, error) {})) {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if got := recover(); got != http.ErrAbortHandler {
					t.Errorf("panicked with %v", got)
				}
			}()
			r := gin.New()
			r.POST("/", m, func(*gin.Context) { panic(http.ErrAbortHandler) })
			post(r, "/")
		})
	}
}

// guarded returns an engine whose handler is behind a guard, which is behind outer.
func guarded(t *testing.T, handler gin.HandlerFunc, outer ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	r.Use(gin.CustomRecoveryWithWriter(io.Discard, func(c *gin.Context, _ any) { c.AbortWithStatus(http.StatusInternalServerError) }))
	r.Use(outer...)
	r.Use(idempotency.New(must(guard.New(newStore(t), "orders")), ginmw.Unscoped()))
	r.POST("/pay", handler)
	return r
}

func isReplay(w *httptest.ResponseRecorder) bool {
	return w.Header().Get("Idempotency-Replayed") == "true"
}

// A request that matches no route is answered by gin, and not recorded.
func TestNoRouteIsNotGuarded(t *testing.T) {
	r := guarded(t, func(*gin.Context) {})
	for range 2 {
		if w := post(r, "/nowhere"); w.Code != http.StatusNotFound || isReplay(w) {
			t.Errorf("%d %v", w.Code, w.Header())
		}
	}
}

// Answers of all of gin's renderers are replayed as they were.
func TestShapesOfAnswers(t *testing.T) {
	for name, handler := range map[string]gin.HandlerFunc{
		"nothing":        func(*gin.Context) {},
		"status only":    func(c *gin.Context) { c.Status(http.StatusAccepted) },
		"abort":          func(c *gin.Context) { c.AbortWithStatus(http.StatusNotFound) },
		"no content":     func(c *gin.Context) { c.Status(http.StatusNoContent); c.Header("X-After", "status") },
		"json":           func(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"a": 1}) },
		"header at last": func(c *gin.Context) { c.Status(202); c.Header("X-Late", "1"); _, _ = c.Writer.WriteString("late") },
		"io.Copy":        func(c *gin.Context) { _, _ = io.Copy(c.Writer, strings.NewReader(strings.Repeat("x", 40_000))) },
		"redirect":       func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/elsewhere") },
		"several writes": func(c *gin.Context) {
			c.Writer.WriteHeader(201)
			_, _ = c.Writer.Write([]byte("a"))
			_, _ = c.Writer.WriteString("b")
		},
		"status too late":    func(c *gin.Context) { c.String(201, "x"); c.Status(500) },
		"header too late":    func(c *gin.Context) { c.String(201, "x"); c.Writer.WriteHeaderNow(); c.Header("X-Late", "1") },
		"late, no body":      func(c *gin.Context) { c.AbortWithStatus(http.StatusNotFound); c.Header("X-Late", "1") },
		"aborted with err":   func(c *gin.Context) { c.AbortWithStatusJSON(http.StatusUnprocessableEntity, gin.H{"e": "no"}) },
		"statuses below one": func(c *gin.Context) { c.Status(201); c.Status(0); c.Status(-1) }, // which gin ignores
	} {
		t.Run(name, func(t *testing.T) {
			see := func(h http.Handler) func() *http.Response {
				server := httptest.NewServer(h)
				t.Cleanup(server.Close)
				return func() *http.Response {
					r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/pay", http.NoBody))
					r.Header.Set("Idempotency-Key", "k")
					return must((&http.Transport{DisableKeepAlives: true}).RoundTrip(r))
				}
			}
			bare := gin.New()
			bare.POST("/pay", handler)
			want, again := see(bare)(), see(guarded(t, handler))
			body := string(must(io.ReadAll(want.Body)))
			for _, replayed := range []string{"", "true"} {
				got := again()
				if text := must(io.ReadAll(got.Body)); got.StatusCode != want.StatusCode || string(text) != body {
					t.Errorf("%d %q, want %d %q", got.StatusCode, text, want.StatusCode, body)
				}
				for _, name := range []string{"Content-Type", "Location", "X-Late", "X-After"} {
					if got, want := got.Header.Get(name), want.Header.Get(name); got != want {
						t.Errorf("%s is %q, want %q", name, got, want)
					}
				}
				if got.Header.Get("Idempotency-Replayed") != replayed {
					t.Errorf("replayed is not %q", replayed)
				}
			}
		})
	}
}

// An invalid status, which gin accepts and net/http refuses, is not recorded.
func TestNoStatus(t *testing.T) {
	for name, handler := range map[string]gin.HandlerFunc{
		"without a body": func(c *gin.Context) { c.Status(42) },
		"with a body":    func(c *gin.Context) { c.String(1000, "body") },
	} {
		t.Run(name, func(t *testing.T) {
			r := guarded(t, handler)
			if w := post(r, "/pay"); w.Code != http.StatusInternalServerError {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			if w := post(r, "/pay"); w.Code != http.StatusConflict || !strings.Contains(w.Body.String(), "outcome-unknown") {
				t.Errorf("%d %s", w.Code, w.Body)
			}
		})
	}
}

// buffering is a writer with its own header, which gin's other methods bypass, as in timeout
// middleware.
type buffering struct {
	gin.ResponseWriter
	header http.Header
	status int
	body   []byte
}

func (b *buffering) Header() http.Header         { return b.header }
func (b *buffering) WriteHeader(status int)      { b.status = status }
func (b *buffering) WriteHeaderNow()             {}
func (b *buffering) Flush()                      {}
func (b *buffering) Write(p []byte) (int, error) { b.body = append(b.body, p...); return len(p), nil }

func (b *buffering) WriteString(s string) (int, error) { return b.Write([]byte(s)) }

// An answer with a body reaches the outer writer through gin's renderers alone.
func TestOuterWriterThatBuffers(t *testing.T) {
	r := guarded(t, func(c *gin.Context) {
		c.Header("Location", "/orders/1")
		c.String(http.StatusCreated, "created")
	}, func(c *gin.Context) {
		w := c.Writer
		b := &buffering{ResponseWriter: w, header: http.Header{}}
		c.Writer = b
		c.Next()
		for name, values := range b.header {
			w.Header()[name] = values
		}
		w.WriteHeader(b.status)
		_, _ = w.Write(b.body)
	})
	for _, replayed := range []bool{false, true} {
		w := post(r, "/pay")
		if w.Code != http.StatusCreated || isReplay(w) != replayed || w.Header().Get("Location") == "" || w.Body.String() != "created" {
			t.Errorf("%d %v, %q", w.Code, w.Header(), w.Body)
		}
	}
}

// A writer outside that keeps the answer back does not know its status.
func TestStatusBehindAWriterThatBuffers(t *testing.T) {
	wrong := func(c *gin.Context) { c.String(http.StatusUnauthorized, "wrong") }
	for name, c := range map[string]struct {
		handler gin.HandlerFunc
		left    int64
	}{
		"a body":         {wrong, 0},
		"a string":       {func(c *gin.Context) { c.Status(401); _, _ = c.Writer.WriteString("wrong") }, 0},
		"no body":        {func(c *gin.Context) { c.AbortWithStatus(http.StatusUnauthorized) }, 0},
		"a status alone": {func(c *gin.Context) { c.Status(http.StatusUnauthorized) }, 0},
		"flushed":        {func(c *gin.Context) { c.Status(401); c.Writer.Flush(); c.Status(200) }, 0},
		"the last one":   {func(c *gin.Context) { c.Status(200); wrong(c) }, 0},
		"a later one":    {func(c *gin.Context) { wrong(c); c.Status(200) }, 0},
		"another one":    {func(c *gin.Context) { c.Status(401); c.String(http.StatusOK, "right") }, 1},
		"none":           {func(*gin.Context) {}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := must(tokenbucket.New(newStore(t), "login", tokenbucket.PerDay(1)))
			r := gin.New()
			r.Use(func(c *gin.Context) {
				w := c.Writer
				c.Writer = &buffering{ResponseWriter: w, header: http.Header{}}
				c.Next()
				c.Writer = w
			}, ratelimit.New(limiter, ginmw.Global(), policy.ChargeStatus(http.StatusUnauthorized)))
			r.POST("/login", c.handler)
			post(r, "/login")
			if n := must(limiter.Peek(t.Context(), "global")).Limits()[0].Remaining; n != c.left {
				t.Errorf("%d tokens are left", n)
			}
		})
	}
}

// refusing is a body that gin middleware refuses while it is read, as gin-contrib/size does.
type refusing struct{ c *gin.Context }

func (r refusing) Read([]byte) (int, error) {
	r.c.String(http.StatusRequestEntityTooLarge, "too large")
	r.c.Abort()
	return 0, errors.New("too large")
}

func (r refusing) Close() error { return nil }

// Outer middleware that refuses the body has answered.
func TestBodiesThatAreRefusedOutside(t *testing.T) {
	r := guarded(t, func(*gin.Context) { t.Error("the handler runs") }, func(c *gin.Context) { c.Request.Body = refusing{c} })
	if w := post(r, "/pay"); w.Code != http.StatusRequestEntityTooLarge || w.Body.String() != "too large" || isReplay(w) {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

// Middleware outside may answer with the errors of gin's request, so a shadow's are not among them.
func TestShadowRecordsNoErrors(t *testing.T) {
	st := newStore(t)
	st.Break(storetest.Any, storetest.Down)
	r := gin.New()
	r.Use(func(c *gin.Context) {
		if c.Next(); len(c.Errors) > 0 {
			t.Errorf("%v", c.Errors)
		}
	})
	r.Use(ratelimit.New(must(tokenbucket.New(st, "api", tokenbucket.PerHour(1))), ginmw.Global(), policy.Shadow()))
	r.POST("/", func(c *gin.Context) { c.Status(http.StatusNoContent) })
	if w := post(r, "/"); w.Code != http.StatusNoContent {
		t.Errorf("status %d", w.Code)
	}
}
