package migration

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/bsm/redislock"
	"github.com/go-chi/httprate"
	"github.com/go-redis/redis_rate/v10"
	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululeredis "github.com/ulule/limiter/v3/drivers/store/redis"
	"golang.org/x/time/rate"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// The code before each move in docs/migrating.md. What it becomes is in examples/guides.

func tooMany(after time.Duration) error {
	return fmt.Errorf("too many requests; again after %v", after)
}

func TestBeforeRedisRate(t *testing.T) {
	client := redistest.Start(t).Client()
	limiter := redis_rate.NewLimiter(client)
	allow := func(ctx context.Context, tenant string) error {
		res, err := limiter.Allow(ctx, "tenant:"+tenant, redis_rate.PerMinute(ratePerMinute(tenant)))
		if err != nil {
			return err
		}
		if res.Allowed == 0 {
			return tooMany(res.RetryAfter)
		}
		return nil
	}
	for i := range 3 {
		if err := allow(t.Context(), "7"); err != nil != (i == 2) {
			t.Errorf("request %d: %v", i, err)
		}
	}
}

// ratePerMinute is what a tenant has paid for.
func ratePerMinute(string) int { return 2 }

// statuses returns how a handler answers n requests of one client.
func statuses(handler http.Handler, path string, n int) string {
	var all []string
	for range n {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		all = append(all, fmt.Sprint(w.Code))
	}
	return strings.Join(all, " ")
}

func TestBeforeULuleLimiter(t *testing.T) {
	client := redistest.Start(t).Client()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {})

	rate, err := limiter.NewRateFromFormatted("100-H")
	if err != nil {
		t.Fatal(err)
	}
	store, err := ululeredis.NewStore(client)
	if err != nil {
		t.Fatal(err)
	}
	handler := stdlib.NewMiddleware(limiter.New(store, rate)).Handler(mux)

	if got := statuses(handler, "/", 101); !strings.HasSuffix(got, "200 200 429") {
		t.Error(got)
	}
}

type userID struct{}

func userOf(r *http.Request) (string, error) {
	user, _ := r.Context().Value(userID{}).(string)
	return user, nil
}

func TestBeforeHTTPRate(t *testing.T) {
	order := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

	limit := httprate.LimitBy(100, time.Hour, httprate.JoinKeys(userOf, httprate.KeyByEndpoint))

	mux := http.NewServeMux()
	mux.Handle("GET /orders/{id}", limit(order))
	if got := statuses(mux, "/orders/1", 101); !strings.HasSuffix(got, "200 200 429") {
		t.Error(got)
	}
}

func TestBeforeTimeRate(t *testing.T) {
	type waiter interface{ Wait(context.Context) error }

	var psp waiter = rate.NewLimiter(10, 20) // 10 a second, 20 at once

	if err := psp.Wait(t.Context()); err != nil {
		t.Error(err)
	}
}

func build(context.Context) error { return nil }

func TestBeforeRedsync(t *testing.T) {
	client := redistest.Start(t).Client()

	rs := redsync.New(goredis.NewPool(client))

	report := func(ctx context.Context) error {
		mutex := rs.NewMutex("report", redsync.WithTries(1))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		err := build(ctx)
		if ok, unlockErr := mutex.Unlock(); !ok {
			return errors.Join(err, unlockErr)
		}
		return err
	}
	if err := report(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestBeforeRedislock(t *testing.T) {
	client := redistest.Start(t).Client()
	report := func(ctx context.Context) error {
		held, err := redislock.Obtain(ctx, client, "report", 30*time.Second, nil)
		if errors.Is(err, redislock.ErrNotObtained) {
			return nil // another process builds it
		}
		if err != nil {
			return err
		}
		return errors.Join(build(ctx), held.Release(ctx)) // and held.Refresh every few seconds
	}
	if err := report(t.Context()); err != nil {
		t.Error(err)
	}
}

// The release between the old one and the new one takes both locks, and excludes either.
func TestBothLocks(t *testing.T) {
	client := redistest.Start(t).Client()
	st, err := redisstore.New(client, redisstore.WithTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	jobs, err := lock.New(st, "jobs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = jobs.Close() })
	rs := redsync.New(goredis.NewPool(client))
	built := 0

	old := func(ctx context.Context) error {
		mutex := rs.NewMutex("report", redsync.WithTries(1))
		if err := mutex.LockContext(ctx); err != nil {
			return err
		}
		built++
		_, err := mutex.UnlockContext(ctx)
		return err
	}
	report := func(ctx context.Context) error {
		return jobs.Do(ctx, "report", old) // old takes the lock of the other library
	}

	if err := report(t.Context()); err != nil || built != 1 {
		t.Error(err, built)
	}
	theirs := rs.NewMutex("report")
	if err := theirs.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := report(t.Context()); err == nil || built != 1 {
		t.Error("while the old release holds its lock:", err, built)
	}
	if ok, err := theirs.Unlock(); !ok {
		t.Fatal(err)
	}
	ours, err := jobs.Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := report(ctx); !errors.Is(err, lock.ErrNotAcquired) || built != 1 {
		t.Error("while the new release holds its lock:", err, built)
	}
	if err := ours.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := theirs.Lock(); err != nil { // and the locks are different ones
		t.Error(err)
	}
	if both, err := jobs.TryLock(t.Context(), "report"); err != nil {
		t.Error("the locks of two libraries exclude each other:", err)
	} else if err := both.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}
