package redisrate_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/migrate/redisrate"
)

func TestMain(m *testing.M) { leaktest.Main(m, redistest.Redialing) }

// patient is long enough for a busy machine.
var patient = redisstore.WithTimeout(5 * time.Second)

func newLimiter(t *testing.T, client redis.UniversalClient) *redisrate.Limiter {
	t.Helper()
	l := redisrate.NewLimiter(client, patient)
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// check compares a result with the wanted one, whose times are about right: a bucket fills during the
// test.
func check(t *testing.T, what string, r *redisrate.Result, err error, want redisrate.Result) {
	t.Helper()
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	near := func(got, want time.Duration) bool {
		if want <= 0 || want == redisrate.Never {
			return got == want
		}
		return got > 0 && (got-want).Abs() < time.Minute
	}
	if r.Limit != want.Limit || r.Allowed != want.Allowed || r.Remaining != want.Remaining ||
		!near(r.RetryAfter, want.RetryAfter) || !near(r.ResetAfter, want.ResetAfter) {
		t.Errorf("%s = %+v, want about %+v", what, *r, want)
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	l, ctx := newLimiter(t, redistest.Start(t).Client()), t.Context()
	limit := redisrate.PerHour(10) // a token every 6 minutes
	const token, never = 6 * time.Minute, redisrate.Never

	r, err := l.AllowN(ctx, "k", limit, 0)
	check(t, "a look at a full bucket", r, err, redisrate.Result{Limit: limit, Remaining: 10, RetryAfter: -1})
	r, err = l.Allow(ctx, "k", limit)
	check(t, "one of 10", r, err, redisrate.Result{Limit: limit, Allowed: 1, Remaining: 9, RetryAfter: -1, ResetAfter: token})
	r, err = l.AllowN(ctx, "k", limit, 3)
	check(t, "3 of 9", r, err, redisrate.Result{Limit: limit, Allowed: 3, Remaining: 6, RetryAfter: -1, ResetAfter: 4 * token})
	r, err = l.AllowN(ctx, "k", limit, 8)
	check(t, "8 of 6", r, err, redisrate.Result{Limit: limit, Remaining: 6, RetryAfter: 2 * token, ResetAfter: 4 * token})
	r, err = l.AllowN(ctx, "k", limit, 11)
	check(t, "11 of a burst of 10", r, err, redisrate.Result{Limit: limit, Remaining: 6, RetryAfter: never, ResetAfter: 4 * token})
	r, err = l.AllowAtMost(ctx, "k", limit, 20)
	check(t, "at most 20 of 6", r, err, redisrate.Result{Limit: limit, Allowed: 6, RetryAfter: -1, ResetAfter: 10 * token})
	r, err = l.AllowAtMost(ctx, "k", limit, 20)
	check(t, "at most 20 of none", r, err, redisrate.Result{Limit: limit, RetryAfter: token, ResetAfter: 10 * token})
	r, err = l.AllowAtMost(ctx, "k", limit, 0)
	check(t, "at most none of none", r, err, redisrate.Result{Limit: limit, RetryAfter: token, ResetAfter: 10 * token})
	r, err = l.Allow(ctx, "k", limit)
	check(t, "one of none", r, err, redisrate.Result{Limit: limit, RetryAfter: token, ResetAfter: 10 * token})
	if err := l.Reset(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	r, err = l.Allow(ctx, "k", limit)
	check(t, "one after a reset", r, err, redisrate.Result{Limit: limit, Allowed: 1, Remaining: 9, RetryAfter: -1, ResetAfter: token})

	none := redisrate.Limit{Rate: 10, Period: time.Hour}
	r, err = l.Allow(ctx, "none", none)
	check(t, "one of a burst of none", r, err, redisrate.Result{Limit: none, RetryAfter: never})
	r, err = l.AllowAtMost(ctx, "none", none, 1)
	check(t, "at most one of a burst of none", r, err, redisrate.Result{Limit: none, RetryAfter: never})
	r, err = l.AllowN(ctx, "none", none, 0)
	check(t, "a look at a burst of none", r, err, redisrate.Result{Limit: none, RetryAfter: -1})
}

// The limit is that of the call, also for a key that was charged by another one, and more limits than
// are kept do no harm. No warning says that limiters of one name differ.
// It is not parallel, since it sets the default logger.
func TestALimitOfEachCall(t *testing.T) {
	var log strings.Builder
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	defer slog.SetDefault(before)
	l, ctx := newLimiter(t, redistest.Start(t).Client()), t.Context()
	for rate := 10; rate < 10+2*redisrate.MaxLimits; rate++ {
		limit := redisrate.PerHour(rate)
		r, err := l.Allow(ctx, strconv.Itoa(rate), limit)
		check(t, limit.String(), r, err, redisrate.Result{
			Limit: limit, Allowed: 1, Remaining: rate - 1, RetryAfter: -1, ResetAfter: time.Hour / time.Duration(rate),
		})
	}
	if n := redisrate.Kept(l); n < 2 || n > redisrate.MaxLimits {
		t.Errorf("%d limits are kept, at most %d should be", n, redisrate.MaxLimits)
	}
	if _, err := l.AllowN(ctx, "k", redisrate.PerHour(10), 4); err != nil {
		t.Fatal(err)
	}
	r, err := l.Allow(ctx, "k", redisrate.PerHour(100))
	if err != nil || r.Remaining != 95 {
		t.Errorf("one of 100 after 4 of 10 = %+v, %v; the tokens that were used are to stay used", r, err)
	}
	if strings.Contains(log.String(), "different settings") {
		t.Error(log.String())
	}
}

func TestBucketsAreSharedWithTokenbucket(t *testing.T) {
	t.Parallel()
	client, ctx := redistest.Start(t).Client(), t.Context()
	l := newLimiter(t, client)
	st, err := redisstore.New(client, patient)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	moved, err := tokenbucket.New(st, redisrate.Name, tokenbucket.PerHour(10))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := moved.AllowN(ctx, "k", 4); err != nil {
		t.Fatal(err)
	}
	if r, err := l.Allow(ctx, "k", redisrate.PerHour(10)); err != nil || r.Remaining != 5 {
		t.Errorf("after 4 of 10 by the other limiter: %+v, %v", r, err)
	}
	if err := l.Reset(ctx, "k"); err != nil {
		t.Fatal(err)
	}
	if d, err := moved.Allow(ctx, "k"); err != nil || d.Limits()[0].Remaining != 9 {
		t.Errorf("after a reset: %+v, %v", d.Limits(), err)
	}
}

// named reports whether an error has the prefix of the package.
func named(err error) bool { return strings.HasPrefix(err.Error(), "redisrate: ") }

func TestErrors(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	l, ctx := newLimiter(t, server.Client()), t.Context()
	limit := redisrate.PerHour(10)
	ended, cancel := context.WithCancel(ctx)
	cancel()
	for what, call := range map[string]struct {
		call func() (*redisrate.Result, error)
		want error
	}{
		"no rate": {func() (*redisrate.Result, error) {
			return l.Allow(ctx, "k", redisrate.Limit{Burst: 1, Period: time.Second})
		}, tokenbucket.ErrInvalidLimit},
		"no period": {func() (*redisrate.Result, error) {
			return l.Allow(ctx, "k", redisrate.Limit{Rate: 1, Burst: 1})
		}, tokenbucket.ErrInvalidLimit},
		"the zero limit":           {func() (*redisrate.Result, error) { return l.Allow(ctx, "k", redisrate.Limit{}) }, tokenbucket.ErrInvalidLimit},
		"no key":                   {func() (*redisrate.Result, error) { return l.Allow(ctx, "", limit) }, tokenbucket.ErrInvalidKey},
		"a negative cost":          {func() (*redisrate.Result, error) { return l.AllowN(ctx, "k", limit, -1) }, tokenbucket.ErrInvalidCost},
		"at most a negative cost":  {func() (*redisrate.Result, error) { return l.AllowAtMost(ctx, "k", limit, -1) }, tokenbucket.ErrInvalidCost},
		"a context that has ended": {func() (*redisrate.Result, error) { return l.Allow(ended, "k", limit) }, context.Canceled},
	} {
		if r, err := call.call(); r != nil || !errors.Is(err, call.want) || !named(err) {
			t.Errorf("%s: %+v, %v; want %v", what, r, err, call.want)
		}
	}
	if err := l.Reset(ctx, ""); !errors.Is(err, tokenbucket.ErrInvalidKey) || !named(err) {
		t.Errorf("a reset of no key: %v", err)
	}
	server.Stop()
	if r, err := l.Allow(ctx, "k", limit); r != nil || !store.Down(err) || !named(err) {
		t.Errorf("without a server: %+v, %v", r, err)
	}
}

// A client that the store refuses makes calls fail; none panics.
func TestARefusedClient(t *testing.T) {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	defer slog.SetDefault(before)
	deaf := redis.NewClient(&redis.Options{})
	defer func() { _ = deaf.Close() }()
	var none *redis.Client
	for what, l := range map[string]*redisrate.Limiter{
		"without ContextTimeoutEnabled": redisrate.NewLimiter(deaf), "nil": redisrate.NewLimiter(nil), "a typed nil": redisrate.NewLimiter(none),
	} {
		if _, err := l.Allow(t.Context(), "k", redisrate.PerSecond(1)); !errors.Is(err, store.ErrMisconfigured) || store.Down(err) || !named(err) {
			t.Errorf("%s: Allow: %v", what, err)
		}
		if _, err := l.AllowAtMost(t.Context(), "k", redisrate.PerSecond(1), 1); !errors.Is(err, store.ErrMisconfigured) {
			t.Errorf("%s: AllowAtMost: %v", what, err)
		}
		if err := l.Reset(t.Context(), "k"); !errors.Is(err, store.ErrMisconfigured) {
			t.Errorf("%s: Reset: %v", what, err)
		}
		if err := l.Close(); err != nil {
			t.Errorf("%s: Close: %v", what, err)
		}
	}
	zero := new(redisrate.Limiter)
	if _, err := zero.Allow(t.Context(), "k", redisrate.PerSecond(1)); err == nil || !named(err) {
		t.Errorf("the zero Limiter allows: %v", err)
	}
	if err := zero.Close(); err != nil {
		t.Error(err)
	}
}

func TestCloseEndsCalls(t *testing.T) {
	t.Parallel()
	l := redisrate.NewLimiter(redistest.Start(t).Client(), patient)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Allow(t.Context(), "k", redisrate.PerSecond(1)); !errors.Is(err, store.ErrClosed) || !named(err) {
		t.Errorf("Allow after Close: %v", err)
	}
}
