package idempotency_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
)

// What a middleware behind the guard refuses has not run, so it is not kept, whatever its status.
func TestRefusalBehindTheGuard(t *testing.T) {
	faulty := storetest.NewFaulty(memstore.New())
	limiter, err := tokenbucket.New(faulty, "inner", tokenbucket.PerSecond(100))
	if err != nil {
		t.Fatal(err)
	}
	locker, err := lock.New(faulty, "inner")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = locker.Close() }()
	teapot := func(c *gin.Context, _ policy.Denial) { c.String(http.StatusTeapot, "short and stout") }
	for name, inner := range map[string]gin.HandlerFunc{
		"ratelimit": ratelimit.New(limiter, ginmw.Global()),
		"exclusive": exclusive.New(locker, ginmw.Global()),
		"deny hook": exclusive.New(locker, ginmw.Global(), ginmw.OnDeny(teapot)),
	} {
		t.Run(name, func(t *testing.T) {
			g, err := guard.New(memstore.New(), "outer")
			if err != nil {
				t.Fatal(err)
			}
			runs := 0
			r := gin.New()
			// Two guards: what the inner one gives back, the outer one must not keep.
			r.POST("/", idempotency.New(g, ginmw.ScopeBy(ginmw.ByHeader("User"))), idempotency.New(g, ginmw.Unscoped()), inner,
				func(c *gin.Context) {
					runs++
					c.Status(http.StatusCreated)
				})
			do := func() *httptest.ResponseRecorder {
				w := httptest.NewRecorder()
				req := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("body"))
				req.Header.Set("Idempotency-Key", "k")
				req.Header.Set("User", "alice")
				r.ServeHTTP(w, req)
				return w
			}
			faulty.Break(storetest.Any, storetest.Down)
			refused := do()
			if want := map[bool]int{true: http.StatusTeapot, false: http.StatusServiceUnavailable}[name == "deny hook"]; refused.Code != want {
				t.Fatalf("status %d, want %d", refused.Code, want)
			}
			faulty.Mend(storetest.Any)
			if w := do(); w.Code != http.StatusCreated || w.Header().Get("Idempotency-Replayed") != "" || runs != 1 {
				t.Errorf("afterwards: %d %v, %d runs", w.Code, w.Header(), runs)
			}
			if w := do(); w.Code != http.StatusCreated || w.Header().Get("Idempotency-Replayed") != "true" || runs != 1 {
				t.Errorf("again: %d %v, %d runs", w.Code, w.Header(), runs)
			}
		})
	}
}
