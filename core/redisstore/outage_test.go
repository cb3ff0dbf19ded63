package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// trips counts what a client sends: a command of its own and a pipeline count one each.
type trips struct{ atomic.Int64 }

func (h *trips) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *trips) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.Add(1)
		return next(ctx, cmd)
	}
}

func (h *trips) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.Add(1)
		return next(ctx, cmds)
	}
}

// counted returns a client that stops dialing soon after it was closed, and counts its round trips.
func counted(t *testing.T, server *redistest.Server) (*redis.Client, *trips) {
	t.Helper()
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), PoolSize: 10, ContextTimeoutEnabled: true, DialTimeout: 250 * time.Millisecond, DialerRetries: 1,
	})
	t.Cleanup(func() { _ = client.Close() })
	sent := new(trips)
	client.AddHook(sent)
	return client, sent
}

func numbered(i int) guard.Operation {
	return guard.Operation{Scope: fmt.Sprint("user", i%100), Key: fmt.Sprint(i), Fingerprint: []byte("tea")}
}

// atOnce calls f for every number below n, in this many goroutines.
func atOnce(goroutines, n int, f func(i int)) {
	var next atomic.Int64
	var wg sync.WaitGroup
	for range goroutines {
		wg.Go(func() {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				f(i)
			}
		})
	}
	wg.Wait()
}

// statesOf returns how many of the operations below n another process finds in each state.
func statesOf(t *testing.T, server *redistest.Server, n int) map[string]int {
	t.Helper()
	g := newGuard(t, newStore(t, obedient(t, server.Addr(), 20), redisstore.WithTimeout(5*time.Second)))
	var mu sync.Mutex
	found := make(map[string]int)
	atOnce(100, n, func(i int) {
		a, r, err := g.Begin(ctx(), numbered(i))
		state := fmt.Sprint(err)
		switch {
		case a != nil:
			state = "not begun"
			_ = a.Abandon(ctx())
		case r != nil && string(r.Data) == fmt.Sprint("charged ", i):
			state = "completed"
		}
		mu.Lock()
		defer mu.Unlock()
		found[state]++
	})
	return found
}

// The results of 3,000 operations are recorded after an outage, also if it is longer than the
// leases.
func TestCompletionsOutliveAnOutage(t *testing.T) {
	testpace.Parallel(t)
	const n = 3000
	for name, c := range map[string]struct{ lease, away time.Duration }{
		"2s":           {30 * time.Second, 2 * time.Second},
		"three leases": {time.Second, 3 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client, sent := counted(t, server)
			s := newStore(t, client, redisstore.WithTimeout(2*time.Second)) // 3,000 begins take their time
			g := newGuard(t, s, guard.WithTTL(c.lease))
			attempts := make([]*guard.Attempt, n)
			atOnce(100, n, func(i int) {
				var err error
				if attempts[i], _, err = g.Begin(ctx(), numbered(i)); err != nil {
					t.Error(err)
				}
			})
			stopped(t, server)
			began := time.Now()
			atOnce(n, n, func(i int) {
				if attempts[i].Complete(ctx(), guard.Result{Status: 200, Data: fmt.Appendf(nil, "charged %d", i)}) == nil {
					t.Error("completed without Redis")
				}
			})
			short, cancel := context.WithTimeout(ctx(), 100*time.Millisecond)
			defer cancel()
			if err := s.Shutdown(short); err == nil || !strings.Contains(err.Error(), "3000 completions are not confirmed") {
				t.Errorf("Shutdown during the outage: %v", err)
			}
			<-time.After(time.Until(began.Add(c.away)))
			before := sent.Load()
			goesOn(t, server)
			long, cancel := context.WithTimeout(ctx(), 20*time.Second)
			defer cancel()
			if err := s.Shutdown(long); err != nil {
				t.Error(err)
			}
			if trips := sent.Load() - before; trips > n/7 { // renewals included
				t.Errorf("%d round trips for %d completions", trips, n)
			}
			if found := statesOf(t, server, n); found["completed"] != n {
				t.Errorf("%v", found)
			}
		})
	}
}

// Redis does not reply for longer than the lease while operations begin. Attempts that began on the
// server, and run nowhere, are given back.
func TestUnconfirmedBeginsAreGivenBackAfterAnOutage(t *testing.T) {
	t.Parallel()
	const n, lease = 200, 500 * time.Millisecond
	server := redistest.Start(t)
	client, _ := counted(t, server)
	s := newStore(t, client, redisstore.WithTimeout(500*time.Millisecond))
	g := newGuard(t, s, guard.WithTTL(lease))
	begin := func(i int) {
		if a, _, err := g.Begin(ctx(), numbered(i)); err == nil {
			_ = a.Abandon(ctx())
		}
	}
	atOnce(10, 10, begin) // so that there are connections
	stopped(t, server)
	began := time.Now()
	var unheard atomic.Int64
	atOnce(n/2, n/2, func(i int) {
		if _, _, err := g.Begin(ctx(), numbered(i)); errors.Is(err, store.ErrUnconfirmed) {
			unheard.Add(1)
		}
	})
	atOnce(n/2, n/2, func(i int) { // whose callers leave
		short, cancel := context.WithTimeout(ctx(), 10*time.Millisecond)
		defer cancel()
		if _, _, err := g.Begin(short, numbered(n/2+i)); errors.Is(err, store.ErrUnconfirmed) {
			unheard.Add(1)
		}
	})
	if unheard.Load() == 0 {
		t.Error("no begin was sent: the test does not test what it says")
	}
	<-time.After(time.Until(began.Add(7 * lease)))
	goesOn(t, server)
	long, cancel := context.WithTimeout(ctx(), 20*time.Second)
	defer cancel()
	if err := s.Shutdown(long); err != nil {
		t.Error(err)
	}
	if found := statesOf(t, server, n); found["not begun"] != n {
		t.Errorf("%v", found)
	}
}
