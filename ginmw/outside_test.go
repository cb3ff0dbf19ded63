package ginmw_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
)

// renderErrors is the error handler of gin's documentation, and renderResults its like for values.
func renderErrors(c *gin.Context) {
	c.Next()
	if len(c.Errors) > 0 {
		c.JSON(http.StatusPaymentRequired, gin.H{"error": c.Errors.Last().Error()})
	}
}

func renderResults(c *gin.Context) {
	c.Next()
	if result, ok := c.Get("result"); ok {
		c.JSON(http.StatusCreated, result)
	}
}

// outside is an engine with a guard behind both of them.
type outside struct {
	*gin.Engine
	t    *testing.T
	runs int
	log  *bytes.Buffer
}

func newOutside(t *testing.T) *outside {
	t.Helper()
	gin.SetMode(gin.ReleaseMode)
	o := &outside{Engine: gin.New(), t: t, log: new(bytes.Buffer)}
	o.Use(renderErrors, renderResults)
	return o
}

// guard returns the middleware of a guard.
func (o *outside) guard(st store.Records, opts ...policy.IdempotencyOption) gin.HandlerFunc {
	o.t.Helper()
	g, err := guard.New(st, "orders")
	if err != nil {
		o.t.Fatal(err)
	}
	opts = append(opts, policy.Logger(slog.New(slog.NewTextHandler(o.log, nil))))
	return idempotency.New(g, ginmw.Unscoped(), opts...)
}

// counted returns a handler that counts its runs.
func (o *outside) counted(h gin.HandlerFunc) gin.HandlerFunc {
	return func(c *gin.Context) {
		o.runs++
		h(c)
	}
}

func (o *outside) send(path string) string {
	o.t.Helper()
	r := httptest.NewRequest(http.MethodPost, path, http.NoBody)
	r.Header.Set("Idempotency-Key", "k")
	w := httptest.NewRecorder()
	o.ServeHTTP(w, r)
	var problem struct{ Type string }
	if err := json.Unmarshal(w.Body.Bytes(), &problem); err == nil && strings.Contains(problem.Type, "#") {
		return fmt.Sprint(w.Code, problem.Type[strings.LastIndex(problem.Type, "#"):])
	}
	return fmt.Sprint(w.Code, " ", w.Body)
}

// What middleware outside answers is not known to a guard, which keeps nothing.
func TestAnswersThatAreMadeOutside(t *testing.T) {
	for name, c := range map[string]struct {
		handle gin.HandlerFunc
		first  string
	}{
		"an error":                 {func(c *gin.Context) { _ = c.Error(fmt.Errorf("declined")) }, `402 {"error":"declined"}`},
		"an error behind a status": {func(c *gin.Context) { c.Status(http.StatusPaymentRequired); _ = c.Error(fmt.Errorf("declined")) }, `402 {"error":"declined"}`},
		"what cannot be encoded":   {func(c *gin.Context) { c.JSON(http.StatusOK, make(chan int)) }, `402 {"error":"json: unsupported type: chan int"}`},
		"a value":                  {func(c *gin.Context) { c.Set("result", 7) }, `201 7`},
	} {
		t.Run(name, func(t *testing.T) {
			o, st := newOutside(t), memstore.New()
			defer func() { _ = st.Close() }()
			o.POST("/pay", o.guard(st), o.counted(c.handle))
			if first := o.send("/pay"); first != c.first {
				t.Errorf("first %s, want %s", first, c.first)
			}
			for range 2 {
				if retry := o.send("/pay"); retry != "409#response-not-retained" {
					t.Errorf("then %s", retry)
				}
			}
			if o.runs != 1 {
				t.Errorf("%d runs", o.runs)
			}
			if lines := strings.Count(o.log.String(), "middleware that renders errors"); lines != 1 {
				t.Errorf("%d lines say so:\n%s", lines, o.log)
			}
		})
	}
}

// An error beside an answer changes nothing for the guard: the answer is there.
func TestAnErrorBesideAnAnswer(t *testing.T) {
	o, st := newOutside(t), memstore.New()
	defer func() { _ = st.Close() }()
	o.POST("/pay", o.guard(st), o.counted(func(c *gin.Context) {
		c.String(http.StatusOK, "paid")
		_ = c.Error(fmt.Errorf("the mail was not sent"))
	}))
	o.send("/pay")
	if retry := o.send("/pay"); retry != "200 paid" || o.runs != 1 {
		t.Errorf("then %s, of %d runs", retry, o.runs)
	}
}

// Middleware outside that answers where no handler has finds that a replay without a body is an
// answer.
func TestAnEmptyReplayIsWritten(t *testing.T) {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	o := newOutside(t)
	o.Use(func(c *gin.Context) {
		if c.Next(); !c.Writer.Written() {
			c.String(http.StatusNotFound, "no route has answered")
		}
	})
	o.POST("/orders", o.guard(st), func(c *gin.Context) {
		c.Status(http.StatusNoContent)
		c.Writer.WriteHeaderNow()
	})
	for range 2 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/orders", http.NoBody)
		r.Header.Set("Idempotency-Key", "k")
		w := httptest.NewRecorder()
		o.ServeHTTP(w, r)
		if w.Code != http.StatusNoContent || w.Body.Len() > 0 {
			t.Errorf("%d %q", w.Code, w.Body)
		}
	}
}

// Engine.HandleContext puts gin's own writer back, so that a guard outside does not know the answer.
func TestARedirectWithinTheEngine(t *testing.T) {
	for name, use := range map[string]bool{"a guard of the route": false, "a guard of all routes": true} {
		t.Run(name, func(t *testing.T) {
			o, st := newOutside(t), memstore.New()
			defer func() { _ = st.Close() }()
			var guarded gin.HandlersChain
			if use {
				o.Use(o.guard(st))
			} else {
				guarded = gin.HandlersChain{o.guard(st)}
			}
			o.POST("/old", append(guarded, func(c *gin.Context) {
				c.Request.URL.Path = "/new"
				o.HandleContext(c)
			})...)
			o.POST("/new", o.counted(func(c *gin.Context) { c.String(http.StatusCreated, "paid") }))
			if first := o.send("/old"); first != "201 paid" {
				t.Errorf("first %s", first)
			}
			if retry := o.send("/old"); retry != "409#response-not-retained" {
				t.Errorf("then %s", retry)
			}
			if o.runs != 1 {
				t.Errorf("%d runs", o.runs)
			}
		})
	}
}

// A status that middleware outside sets is not known, and charged.
func TestChargeStatusBehindAnErrorHandler(t *testing.T) {
	o, st := newOutside(t), memstore.New()
	defer func() { _ = st.Close() }()
	limiter, err := tokenbucket.New(st, "logins", tokenbucket.PerHour(5))
	if err != nil {
		t.Fatal(err)
	}
	logger := policy.Logger(slog.New(slog.NewTextHandler(o.log, nil)))
	o.POST("/login", ratelimit.New(limiter, ginmw.Global(), policy.ChargeStatus(http.StatusPaymentRequired), logger),
		func(c *gin.Context) { _ = c.Error(fmt.Errorf("wrong password")) })
	answers := map[string]int{}
	for range 50 {
		answers[o.send("/login")[:3]]++
	}
	if answers["402"] != 5 || answers["429"] != 45 {
		t.Errorf("%v", answers)
	}
	if lines := strings.Count(o.log.String(), "middleware that renders errors"); lines != 1 {
		t.Errorf("%d lines say so:\n%s", lines, o.log)
	}
}

// An error that does not change the answer is none of the context's.
func TestErrorsThatDoNotChangeTheAnswer(t *testing.T) {
	for _, reported := range []bool{false, true} {
		o, st := newOutside(t), storetest.NewFaulty(memstore.New())
		st.Break(storetest.Any, storetest.Down)
		var reports []error
		opts := []policy.IdempotencyOption{policy.RunUnprotected()}
		if reported {
			opts = append(opts, ginmw.OnError(func(_ *gin.Context, err error) { reports = append(reports, err) }))
		}
		o.POST("/pay", o.guard(st, opts...), func(c *gin.Context) { c.Status(http.StatusNoContent) })
		if first := o.send("/pay"); first != "204 " {
			t.Errorf("%s", first)
		}
		if logged := strings.Contains(o.log.String(), "errors behind answers"); len(reports) > 0 != reported || logged == reported {
			t.Errorf("reported %v, and logged %s", reports, o.log)
		}
	}
}
