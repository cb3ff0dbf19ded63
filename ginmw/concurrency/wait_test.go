package concurrency_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// took is a handler that takes as long as the request says.
func took(c *gin.Context) {
	d, _ := time.ParseDuration(c.Query("take"))
	<-time.After(d)
}

func TestRequestsWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := newSemaphore(t, memstore.New(), 2)
		s := newServer(t, sem, func(c *gin.Context) {
			ctx := c.Request.Context()
			if _, ok := ctx.Deadline(); ok {
				t.Error("the time that a request may wait is a deadline of its handler")
			}
			<-time.After(3 * time.Second)
			if ctx.Err() != nil {
				t.Errorf("the handler's context has ended: %v", context.Cause(ctx))
			}
		}, policy.Wait(4*time.Second))

		began := time.Now()
		answers := make([]<-chan answer, 5)
		for i := range answers {
			answers[i] = s.later("/reports/1")
			synctest.Wait()
		}
		(<-answers[4]).wantFull(t)
		if took := time.Since(began); took != 4*time.Second {
			t.Errorf("a request that may wait for 4s waited for %v", took)
		}
		for _, answer := range answers[:4] {
			(<-answer).want(t, http.StatusOK)
		}
		if took := time.Since(began); took != 6*time.Second {
			t.Errorf("two rounds of two requests took %v", took)
		}
		s.wantRuns(4)
		s.wantError(nil)
		wantEmpty(t, sem, "1")
	})
}

// The queue has a bound, over all processes. Who comes when it is full need not wait to be told so.
func TestMaxWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		servers := make([]*server, 2)
		for i := range servers {
			servers[i] = newServer(t, newSemaphore(t, store, 1), took, policy.Wait(time.Minute), policy.MaxWaiting(2))
		}
		var inside []<-chan answer
		for i := range 3 {
			inside = append(inside, servers[i%2].later("/reports/1?take=10s"))
			synctest.Wait()
		}
		began := time.Now()
		for _, s := range servers {
			s.get("/reports/1").wantFull(t).wantRetryAfter(t, 1)
			s.get("/reports/2").want(t, http.StatusOK) // another key has a queue of its own
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("the refusals took %v", took)
		}
		for _, answer := range inside {
			(<-answer).want(t, http.StatusOK)
		}
		servers[0].get("/reports/1").want(t, http.StatusOK)
	})
}

// It is the middleware that says how many may wait, and without a word of it the number is bounded.
func TestDefaultMaxWaiting(t *testing.T) {
	for _, opts := range [][]semaphore.Option{nil, {semaphore.WithMaxWaiting(7)}} {
		synctest.Test(t, func(t *testing.T) {
			store := &faulty{Permits: memstore.New()}
			sem := newSemaphore(t, store, 1, opts...)
			s := newServer(t, sem, took, policy.Wait(time.Minute))
			first := s.later("/reports/1?take=1s")
			synctest.Wait()
			s.get("/reports/1").want(t, http.StatusOK)
			(<-first).want(t, http.StatusOK)
			if last := store.lastAcquire(); !last.Queue || last.MaxWaiting != 1024 || last.Weight != 1 {
				t.Errorf("the store was asked %+v", last)
			}
		})
	}
}

// Those who wait have their turns in the order in which they came.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var (
			mu    sync.Mutex
			order []string
		)
		s := newServer(t, newSemaphore(t, memstore.New(), 1), func(c *gin.Context) {
			mu.Lock()
			order = append(order, c.Query("n"))
			mu.Unlock()
			took(c)
		}, policy.Wait(time.Minute))
		var answers []<-chan answer
		for n := range 5 {
			answers = append(answers, s.later(fmt.Sprintf("/reports/1?take=1s&n=%d", n)))
			synctest.Wait()
		}
		for _, answer := range answers {
			(<-answer).want(t, http.StatusOK)
		}
		if got := fmt.Sprint(order); got != "[0 1 2 3 4]" {
			t.Errorf("order %v", got)
		}
	})
}

// Retry-After is what handlers take, for each that comes before, as many at a time as there is room
// for.
func TestRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := newSemaphore(t, memstore.New(), 2, semaphore.WithTTL(24*time.Hour)) // renewed seldom
		s := newServer(t, sem, took)
		full := func(take string, waiting int) answer {
			t.Helper()
			first := s.later("/reports/1?take=" + take)
			permit, err := sem.Acquire(t.Context(), "1")
			if err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			ctx, cancel := context.WithCancel(t.Context())
			var wg sync.WaitGroup
			for range waiting {
				wg.Go(func() { _, _ = sem.AcquireN(ctx, "1", 2) })
			}
			synctest.Wait()
			refused := s.get("/reports/1").wantFull(t)
			cancel()
			wg.Wait()
			if err := permit.Release(t.Context()); err != nil {
				t.Error(err)
			}
			(<-first).want(t, http.StatusOK)
			wantEmpty(t, sem, "1")
			return refused
		}
		full("8s", 0).wantRetryAfter(t, 1) // nothing is known yet
		full("8s", 0).wantRetryAfter(t, 4) // 8 s, two places
		full("8s", 4).wantRetryAfter(t, 20)
		full("24s", 0).wantRetryAfter(t, 4)
		full("1ms", 0).wantRetryAfter(t, 5) // an eighth of the way to 24 s
		for range 60 {
			full("1ms", 0)
		}
		full("1ms", 9).wantRetryAfter(t, 1)
		full("100h", 0)
		full("1ms", 9).wantRetryAfter(t, 3600) // and no more
	})
}

// A semaphore that is told another capacity tells the middleware, and those who wait there.
func TestCapacityAtRunTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := newSemaphore(t, memstore.New(), 1)
		s := newServer(t, sem, took, policy.Wait(time.Minute))
		first := s.later("/reports/1?take=40s")
		synctest.Wait()
		second := s.later("/reports/1")
		synctest.Wait()
		began := time.Now()
		if err := sem.SetCapacity(2); err != nil {
			t.Fatal(err)
		}
		(<-second).want(t, http.StatusOK)
		if took := time.Since(began); took > 15*time.Second {
			t.Errorf("the new capacity was there after %v", took)
		}
		(<-first).want(t, http.StatusOK)
	})
}

// The answer does not wait until the store has heard that the permit is given back.
func TestReleaseDoesNotDelayTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faulty{Permits: memstore.New(), release: func(context.Context) error {
			<-time.After(5 * time.Second)
			return nil
		}}
		sem := newSemaphore(t, store, 1)
		s := newServer(t, sem, took)
		began := time.Now()
		s.get("/reports/1?take=1s").want(t, http.StatusOK)
		if took := time.Since(began); took != time.Second {
			t.Errorf("the answer took %v", took)
		}
		s.wantError(nil)
		s.get("/reports/1").wantFull(t) // for as long as the store does not know
		<-time.After(6 * time.Second)
		s.get("/reports/1").want(t, http.StatusOK)
	})
}

// A request without contention asks the store once before the handler, and once after the answer.
func TestTwoRoundTrips(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := &faulty{Permits: memstore.New()}
		s := newServer(t, newSemaphore(t, store, 1), took, policy.Wait(time.Minute))
		s.get("/reports/1").want(t, http.StatusOK)
		<-time.After(time.Second)
		if acquires, releases := store.calls(); acquires != 1 || releases != 1 {
			t.Errorf("%d requests for a permit, %d releases", acquires, releases)
		}
	})
}

// A request whose turn comes at the very moment when its time is up is served or refused, and leaves
// no permit behind.
func TestTurnAtTheLastMoment(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sem := newSemaphore(t, memstore.New(), 1)
		s := newServer(t, sem, took, policy.Wait(time.Second))
		outcomes := map[int]int{}
		for range 200 {
			first := s.later("/reports/1?take=1s")
			synctest.Wait()
			outcomes[s.get("/reports/1").status]++
			(<-first).want(t, http.StatusOK)
			wantEmpty(t, sem, "1")
		}
		if outcomes[http.StatusOK]+outcomes[http.StatusTooManyRequests] != 200 {
			t.Errorf("statuses %v", outcomes)
		}
		s.wantError(nil)
	})
}
