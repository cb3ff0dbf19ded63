package guides_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	redis_rate "github.com/lockkeeper/lockkeeper/migrate/redisrate"
	"github.com/lockkeeper/lockkeeper/migrate/redsync"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// The code after each move is that of docs/migrating.md, and the code before it is in
// benchmarks/internal/migration.

// tooManyError is how the programs below refuse a request.
type tooManyError struct{ after time.Duration }

func (e tooManyError) Error() string { return "too many requests" }

func tooMany(after time.Duration) error { return tooManyError{after} }

func isTooMany(err error) bool {
	refused, ok := errors.AsType[tooManyError](err)
	return ok && refused.after > 0
}

func TestMoveRedisRateByTheBridge(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr(), ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	limiter := redis_rate.NewLimiter(client, redisstore.WithTimeout(5*time.Second))
	defer func() { _ = limiter.Close() }()
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
	thirdIsRefused(t, allow)
}

func thirdIsRefused(t *testing.T, allow func(ctx context.Context, tenant string) error) {
	t.Helper()
	for i := range 3 {
		if err := allow(t.Context(), "7"); err != nil != (i == 2) || err != nil && !isTooMany(err) {
			t.Errorf("request %d: %v", i, err)
		}
	}
	if err := allow(t.Context(), "8"); err != nil {
		t.Errorf("another tenant: %v", err)
	}
}

func TestMoveRedisRate(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	limitsOf := func(_ context.Context, tenant string) (tokenbucket.Plan, error) {
		return tokenbucket.PerMinute(int64(ratePerMinute(tenant))), nil
	}
	tenants, err := tokenbucket.New(store, "tenants", tokenbucket.Cached(limitsOf, time.Minute, 10_000))
	if err != nil {
		t.Fatal(err)
	}
	allow := func(ctx context.Context, tenant string) error {
		decision, err := tenants.Allow(ctx, tenant)
		if err != nil {
			return err
		}
		if !decision.Allowed {
			return tooMany(decision.RetryAfter)
		}
		return nil
	}
	thirdIsRefused(t, allow)
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

func TestMoveULuleLimiter(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(http.ResponseWriter, *http.Request) {})

	limit, err := tokenbucket.ParseLimit("100/h")
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := tokenbucket.New(store, "api", limit)
	if err != nil {
		t.Fatal(err)
	}
	handler := ratelimit.New(limiter, nethttp.ByClientIP(clientip.Direct()))(mux)

	if got := statuses(handler, "/", 101); !strings.HasSuffix(got, "200 200 429") {
		t.Error(got)
	}
}

// userID is what the authentication of a program puts into the context of a request.
type userID struct{}

func authenticated(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), userID{}, "alice")))
	})
}

func TestMoveHTTPRate(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	order := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

	limiter, err := tokenbucket.New(store, "api", tokenbucket.PerHour(100))
	if err != nil {
		t.Fatal(err)
	}
	limit := ratelimit.New(limiter, nethttp.Join(nethttp.ByContext(userID{}), nethttp.ByPattern()))

	mux := http.NewServeMux()
	mux.Handle("GET /orders/{id}", limit(order))
	mux.Handle("GET /users/{id}", limit(order))

	handler := authenticated(mux)
	if got := statuses(handler, "/orders/1", 50) + statuses(handler, "/orders/2", 51); !strings.HasSuffix(got, "200 200 429") {
		t.Error(got)
	}
	if got := statuses(handler, "/users/1", 1); got != "200" {
		t.Error(got)
	}
}

// waiter is what code that was written for a rate.Limiter takes.
type waiter interface{ Wait(context.Context) error }

func TestMoveTimeRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		defer store.Close()

		calls, err := tokenbucket.New(store, "psp", tokenbucket.PerSecond(10).Burst(20))
		if err != nil {
			t.Fatal(err)
		}
		var psp waiter = calls.Key("charges") // one bucket, in all processes

		began := time.Now()
		for range 30 {
			if err := psp.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began).Round(time.Millisecond); took != time.Second {
			t.Errorf("30 calls took %v", took)
		}
	})
}

func TestMoveRedsyncByTheBridge(t *testing.T) {
	store := memstore.New()
	defer store.Close()

	jobs, err := lock.New(store, "jobs", lock.WithTTL(8*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	rs := redsync.New(jobs)

	defer func() { _ = jobs.Close() }()
	built := 0
	build := func(context.Context) error { built++; return nil }
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
	if err := report(t.Context()); err != nil || built != 1 {
		t.Error(err, built)
	}
	// The new calls exclude those of the bridge.
	held, err := jobs.Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	if err := report(t.Context()); !errors.Is(err, redsync.ErrFailed) || built != 1 {
		t.Error(err, built)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestMoveRedsync(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	jobs, err := lock.New(store, "jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = jobs.Close() }()
	built := 0
	build := func(context.Context) error { built++; return nil }
	report := func(ctx context.Context) error {
		return jobs.Do(ctx, "report", build) // its context ends if the lock is lost
	}
	if err := report(t.Context()); err != nil || built != 1 {
		t.Error(err, built)
	}
}

func TestMoveRedislock(t *testing.T) {
	store := memstore.New()
	defer store.Close()
	jobs, err := lock.New(store, "jobs")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = jobs.Close() }()
	built := 0
	build := func(context.Context) error { built++; return nil }

	report := func(ctx context.Context) error {
		lease, err := jobs.TryLock(ctx, "report")
		if errors.Is(err, lock.ErrNotAcquired) {
			return nil // another process builds it
		}
		if err != nil {
			return err
		}
		return errors.Join(build(lease.Context()), lease.Unlock(ctx))
	}

	held, err := jobs.Lock(t.Context(), "report")
	if err != nil {
		t.Fatal(err)
	}
	if err := report(t.Context()); err != nil || built != 0 {
		t.Error("while another holds the lock:", err, built)
	}
	if err := held.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	if err := report(t.Context()); err != nil || built != 1 {
		t.Error(err, built)
	}
}

// jobLocker is a gocron.Locker whose locks are renewed for as long as a job runs.
type jobLocker struct{ jobs *lock.Locker }

func (l jobLocker) Lock(ctx context.Context, name string) (gocron.Lock, error) {
	lease, err := l.jobs.TryLock(ctx, name)
	if err != nil {
		return nil, err // the job is skipped
	}
	return lease, nil
}

func TestMoveGocron(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		defer store.Close()
		jobs, err := lock.New(store, "jobs", lock.WithTTL(time.Second))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = jobs.Close() }()

		begun, done := make(chan struct{}, 2), make(chan struct{})
		for range 2 { // two processes
			s, err := gocron.NewScheduler(gocron.WithDistributedLocker(jobLocker{jobs}))
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = s.Shutdown() }()
			if _, err := s.NewJob(gocron.DurationJob(time.Minute), gocron.NewTask(func() {
				begun <- struct{}{}
				<-done
			}), gocron.WithName("report")); err != nil {
				t.Fatal(err)
			}
			s.Start()
		}
		time.Sleep(100 * time.Second) // one tick; the job takes far longer than the TTL
		if len(begun) != 1 {
			t.Errorf("%d runs of the job at the same time", len(begun))
		}
		close(done)
	})
}

// lockWithin is Lock that waits for d at most. Its lease outlasts the wait, and ends with ctx.
func lockWithin(ctx context.Context, locker *lock.Locker, key string, d time.Duration) (*lock.Lease, error) {
	waiting, end := context.WithCancel(ctx)
	timer := time.AfterFunc(d, end)
	lease, err := locker.Lock(waiting, key)
	switch inTime := timer.Stop(); {
	case err != nil:
		end()
		return nil, err
	case !inTime:
		return nil, errors.Join(lock.ErrNotAcquired, lease.Unlock(ctx))
	}
	context.AfterFunc(lease.Context(), end)
	return lease, nil
}

func TestLockWithin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		defer store.Close()
		orders, err := lock.New(store, "orders")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = orders.Close() }()
		lease, err := lockWithin(t.Context(), orders, "42", 10*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		if _, err := lockWithin(t.Context(), orders, "42", 10*time.Second); !errors.Is(err, lock.ErrNotAcquired) {
			t.Error(err)
		}
		if took := time.Since(began); took != 10*time.Second {
			t.Errorf("waited for %v", took)
		}
		time.Sleep(time.Minute)
		if err := lease.Context().Err(); err != nil {
			t.Errorf("the lease ended with its wait: %v", err)
		}
		if err := lease.Unlock(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// What a bulkhead of resilience4j, or the semaphore isolation of Hystrix, becomes.
func TestMoveABulkhead(t *testing.T) {
	store := memstore.New() // of this process alone
	defer store.Close()
	calls, err := semaphore.New(store, "psp", 10)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = calls.Close() }()
	charge := func(context.Context) error { return nil }
	call := func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 2*time.Second) // the wait for a permit, and the call
		defer cancel()
		return calls.Do(ctx, "charges", charge)
	}
	if err := call(t.Context()); err != nil {
		t.Error(err)
	}
}
