package guides_test

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
)

// inSystem is Little's law: how many requests are in a system in which so many arrive a second, and
// each stays for so long.
func inSystem(perSecond float64, stay time.Duration) float64 { return perSecond * stay.Seconds() }

// size is how many requests run, and how many wait for that.
type size struct{ run, wait int }

// sizeOf returns the size of a gate in front of workers, each of which serves a request in the time
// of service, for answers that take no longer than slowest.
func sizeOf(workers int, service, slowest time.Duration) size {
	perSecond := float64(workers) / service.Seconds() // the most that they can serve
	return size{run: workers, wait: int(math.Round(inSystem(perSecond, slowest))) - workers}
}

func Example_sizing() {
	s := sizeOf(10, 20*time.Millisecond, 200*time.Millisecond)
	fmt.Printf("a pool of 10 connections: %d run, %d wait\n", s.run, s.wait)
	calls := inSystem(30, 400*time.Millisecond)
	fmt.Printf("30 calls a second of 400 ms each: %.0f at once on average, %.0f permits with half as many again\n", calls, math.Ceil(1.5*calls))
	// Output:
	// a pool of 10 connections: 10 run, 90 wait
	// 30 calls a second of 400 ms each: 12 at once on average, 18 permits with half as many again
}

// gate lets as many requests run as there are workers, and refuses requests that would wait for
// longer than the slowest answer may take.
func gate(st store.Leases, workers int, service, slowest time.Duration) (func(http.Handler) http.Handler, error) {
	s := sizeOf(workers, service, slowest)
	pool, err := semaphore.New(st, "pool", s.run, semaphore.WithMaxWaiting(s.wait))
	if err != nil {
		return nil, err
	}
	return concurrency.New(pool, nethttp.Global(), policy.Wait(slowest-service), policy.Overload()), nil
}

// overloaded is what clients see who send three times as many requests as the workers can serve.
type overloaded struct {
	sent, inTime int
	slowest      time.Duration // answer of the handler
}

// overload sends requests for some time, which wait for one of 10 workers.
func overload(t *testing.T, through func(http.Handler) http.Handler, lasts time.Duration) (o overloaded) {
	const every = time.Second / 1_500
	workers := make(chan struct{}, 10)
	h := through(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		workers <- struct{}{}
		time.Sleep(20 * time.Millisecond)
		<-workers
	}))
	var mu sync.Mutex
	var requests sync.WaitGroup
	for range lasts / every {
		o.sent++
		requests.Go(func() {
			began, w := time.Now(), httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			took := time.Since(began)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case w.Code == http.StatusServiceUnavailable && took > 180*time.Millisecond:
				t.Errorf("a request is refused after %v", took)
			case w.Code == http.StatusOK:
				o.slowest = max(o.slowest, took)
				if took <= 200*time.Millisecond {
					o.inTime++
				}
			}
		})
		time.Sleep(every)
	}
	requests.Wait()
	return o
}

// Behind the gate the workers serve as many as they can, each in time. Without it they serve as many,
// nearly all of them too late.
func TestGate(t *testing.T) {
	const lasts = 5 * time.Second
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		through, err := gate(st, 10, 20*time.Millisecond, 200*time.Millisecond)
		if err != nil {
			t.Fatal(err)
		}
		o := overload(t, through, lasts)
		t.Logf("with the gate: %+v", o)
		if o.inTime < 2_500 || o.slowest > 200*time.Millisecond {
			t.Errorf("%d of %d were served in time, the slowest after %v", o.inTime, o.sent, o.slowest)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		o := overload(t, func(h http.Handler) http.Handler { return h }, lasts)
		t.Logf("without the gate: %+v", o)
		if o.inTime > 200 || o.slowest < 9*time.Second {
			t.Errorf("%d of %d were served in time, the slowest after %v", o.inTime, o.sent, o.slowest)
		}
	})
}
