package ginmw_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/concurrency"
	"github.com/lockkeeper/lockkeeper/ginmw/exclusive"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	testpace.Eventually(t, 10*time.Second, what, condition)
}

// process has the locks and permits of a process on Redis.
type process struct {
	carts   *lock.Locker
	reports *semaphore.Semaphore
}

func newProcess(t *testing.T, server *redistest.Server, capacity int) process {
	t.Helper()
	st := must(redisstore.New(server.Client(), redisstore.WithTimeout(5*time.Second))) // a busy machine is no outage
	t.Cleanup(func() { _ = st.Close() })
	p := process{must(lock.New(st, "carts", lock.WithTTL(2*time.Second))), must(semaphore.New(st, "reports", capacity))}
	t.Cleanup(func() { _, _ = p.carts.Close(), p.reports.Close() })
	return p
}

// middleware returns those of both policies, with one key for all requests.
func (p process) middleware(wait time.Duration) map[string]gin.HandlerFunc {
	return map[string]gin.HandlerFunc{
		"exclusive":   exclusive.New(p.carts, ginmw.Global(), policy.Wait(wait)),
		"concurrency": concurrency.New(p.reports, ginmw.Global(), policy.Wait(wait)),
	}
}

func engine(m gin.HandlerFunc, handler gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	r.POST("/", m, handler)
	return r
}

// Requests of two processes exclude each other on Redis, and fences grow.
func TestTwoProcessesOnRedis(t *testing.T) {
	server := redistest.Start(t)
	for name, capacity := range map[string]int{"exclusive": 1, "concurrency": 3} {
		t.Run(name, func(t *testing.T) {
			var (
				mu     sync.Mutex
				inside int
				last   int64
			)
			handler := func(c *gin.Context) {
				mu.Lock()
				defer mu.Unlock()
				if inside++; inside > capacity {
					t.Errorf("%d handlers at once", inside)
				}
				if lease, ok := lock.FromContext(c.Request.Context()); ok {
					if lease.Fence().Number <= last {
						t.Errorf("fence %v after %d", lease.Fence(), last)
					}
					last = lease.Fence().Number
				}
				mu.Unlock()
				<-time.After(time.Millisecond)
				mu.Lock()
				inside--
			}
			var all sync.WaitGroup
			for range 2 {
				r := engine(newProcess(t, server, capacity).middleware(30 * time.Second)[name], handler)
				for range 20 {
					all.Go(func() {
						if w := post(r, "/"); w.Code != http.StatusOK {
							t.Errorf("%d %s", w.Code, w.Body)
						}
					})
				}
			}
			all.Wait()
		})
	}
}

// Requests of one process exclude those of another on Redis, and a client that disconnects leaves
// the queue.
func TestWaitingOnRedis(t *testing.T) {
	server := redistest.Start(t)
	here, there := newProcess(t, server, 1), newProcess(t, server, 1)
	waiting := map[string]func() int{
		"exclusive":   func() int { return must(here.carts.Inspect(context.Background(), "global")).Waiting },
		"concurrency": func() int { return must(here.reports.Inspect(context.Background(), "global")).Waiting },
	}
	for name, status := range map[string]int{"exclusive": http.StatusConflict, "concurrency": http.StatusTooManyRequests} {
		t.Run(name, func(t *testing.T) {
			refusing := engine(there.middleware(0)[name], func(*gin.Context) { t.Error("a refused request runs") })
			patient := engine(there.middleware(time.Minute)[name], func(*gin.Context) { t.Error("a request of a disconnected client runs") })
			w := post(engine(here.middleware(0)[name], func(*gin.Context) {
				if w := post(refusing, "/"); w.Code != status {
					t.Errorf("%d %s", w.Code, w.Body)
				}
				ctx, leave := context.WithCancel(context.Background())
				left := make(chan struct{})
				go func() {
					defer close(left)
					patient.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodPost, "/", nil))
				}()
				eventually(t, "it waits", func() bool { return waiting[name]() == 1 })
				leave()
				<-left
				eventually(t, "no request waits", func() bool { return waiting[name]() == 0 })
			}), "/")
			if w.Code != http.StatusOK {
				t.Errorf("%d %s", w.Code, w.Body)
			}
			eventually(t, "the key is free", func() bool {
				return post(engine(there.middleware(0)[name], func(*gin.Context) {}), "/").Code == http.StatusOK
			})
		})
	}
}

// A lock that is lost on Redis ends the handler's context, and is reported.
func TestLostOnRedis(t *testing.T) {
	p := newProcess(t, redistest.Start(t), 1)
	var reported []error
	report := ginmw.OnError(func(_ *gin.Context, err error) { reported = append(reported, err) })
	r := engine(exclusive.New(p.carts, ginmw.Global(), report), func(c *gin.Context) {
		ctx := c.Request.Context()
		lease, _ := lock.FromContext(ctx)
		if found, err := p.carts.ForceUnlock(context.Background(), "global", lease.Fence().Number); !found || err != nil {
			t.Errorf("ForceUnlock: %v, %v", found, err)
		}
		<-ctx.Done()
		c.String(http.StatusOK, "%v", context.Cause(ctx))
	})
	if w := post(r, "/"); w.Code != http.StatusOK || w.Body.String() != lock.ErrLost.Error() {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if len(reported) != 1 || !errors.Is(reported[0], lock.ErrLost) {
		t.Errorf("errors %v", reported)
	}
}
