package ginmw_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/ginmw/fenced"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/ginmw/ratelimit"
)

// slow is a request that times out while its handler runs.
type slow struct {
	own     bool          // the chain has a context of its own, not gin's
	entered chan struct{} // the handler runs
	leave   chan struct{}
	done    chan struct{} // the chain has returned
	context *gin.Context  // gin's
}

func newSlow(own bool) *slow {
	return &slow{own: own, entered: make(chan struct{}), leave: make(chan struct{}), done: make(chan struct{})}
}

// timeout is timeout middleware: it answers and returns while the rest of the chain runs. Gin's
// context is another request's after that.
func (s *slow) timeout(c *gin.Context) {
	s.context = c
	ctx, cancel := context.WithCancel(c.Request.Context())
	defer cancel()
	c.Request = c.Request.WithContext(ctx)
	w, chain := c.Writer, c
	if s.own {
		chain = new(gin.Context)
		reflect.ValueOf(chain).Elem().Set(reflect.ValueOf(c).Elem()) // *chain = *c, with a mutex that is not locked
		c.Abort()
	}
	go func() {
		defer close(s.done)
		defer func() { _ = recover() }()
		chain.Next()
	}()
	select {
	case <-s.entered:
		w.WriteHeader(http.StatusGatewayTimeout)
		_, _ = io.WriteString(w, "too late")
	case <-s.done:
	}
}

type anyFence struct{}

func (anyFence) Check(context.Context, string, fence.Token) error { return nil }

// If outer timeout middleware returns before the handler, gin's context is another request's, and
// must be neither read nor changed after that.
func TestRecycledContexts(t *testing.T) {
	store := storetest.NewFaulty(memstore.New())
	defer func() { _ = store.Close() }()
	orders := must(guard.New(store, "orders"))
	locker := must(lock.New(store, "carts"))
	defer func() { _ = locker.Close() }()
	reports := must(semaphore.New(store, "reports", 1000))
	defer func() { _ = reports.Close() }()
	// What goes wrong after the handler is reported to gin, as a rule: a lock that was lost, a
	// completion that is not confirmed.
	lose := func(r *http.Request) {
		if reservation, ok := tokenbucket.FromContext(r.Context()); ok {
			_ = reservation.Use("tokens", 1)
		}
		lease, ok := lock.FromContext(r.Context())
		if !ok {
			return
		}
		if _, err := locker.ForceUnlock(context.Background(), lease.Key(), lease.Fence().Number); err != nil {
			t.Error(err)
		}
	}
	key := ginmw.ByHeader("Idempotency-Key")
	tokens := must(tokenbucket.New(store, "tokens", tokenbucket.PerDay(1000)))
	estimate := ratelimit.Costs(func(*gin.Context) tokenbucket.Cost { return tokenbucket.Cost{"tokens": 2} })
	for name, middleware := range map[string]gin.HandlerFunc{
		"ratelimit":   ratelimit.New(tokens, ginmw.Global(), estimate, policy.ChargeStatus(http.StatusUnauthorized)),
		"idempotency": idempotency.New(orders, ginmw.Unscoped()),
		"exclusive":   exclusive.New(locker, key),
		"concurrency": concurrency.New(reports, key),
		"fenced":      fenced.New(anyFence{}, key, policy.AllowUnfenced()),
	} {
		for how, own := range map[string]bool{"gin's context": false, "a context of its own": true} {
			t.Run(name+", "+how, func(t *testing.T) {
				defer store.Mend(storetest.Any)
				var s *slow
				reused := 0
				r := gin.New()
				r.POST("/slow", func(c *gin.Context) { s.timeout(c) }, middleware, func(c *gin.Context) {
					entered, leave := s.entered, s.leave
					lose(c.Request)
					close(entered)
					<-leave
					if !own {
						panic(http.ErrAbortHandler) // after a handler that returns, gin's own Next touches the context
					}
					c.Status(http.StatusOK) // or else it would seem to have given up
				})
				r.POST("/other", func(c *gin.Context) {
					request, writer := c.Request, c.Writer
					c.Header("X-Other", "other")
					close(s.leave)
					<-s.done
					if c.Request != request || c.Writer != writer || len(c.Errors) > 0 || len(c.Writer.Header()) > 1 {
						t.Errorf("another request has the path %s, errors %v and the header %v", c.Request.URL, c.Errors, c.Writer.Header())
					}
					if c == s.context {
						reused++
					}
				})
				send := func(path, key string) *httptest.ResponseRecorder {
					w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, path, nil)
					req.Header.Set("Idempotency-Key", key)
					r.ServeHTTP(w, req)
					return w
				}
				for n := range 100 {
					s = newSlow(own)
					if !own {
						store.BreakNext(storetest.SettleOperation, storetest.Down, 1)
						store.BreakNext(storetest.SettleTokens, storetest.Down, 1)
					}
					key := how[:1] + strconv.Itoa(n)
					if w := send("/slow", key); w.Code != http.StatusGatewayTimeout {
						t.Fatalf("status %d", w.Code)
					}
					send("/other", key)
					if own && name == "idempotency" {
						s = newSlow(own)
						if w := send("/slow", key); w.Code != http.StatusOK || w.Header().Get("X-Other") != "" {
							t.Errorf("replayed %d, %v", w.Code, w.Header())
						}
					}
				}
				if reused == 0 {
					t.Error("gin has recycled no context")
				}
			})
		}
	}
}
