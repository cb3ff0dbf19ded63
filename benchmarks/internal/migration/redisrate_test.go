// Package migration compares the bridges of migrate/ with the libraries that they stand for: the same
// calls, on the same server, have the same results, but for the differences that the bridges document.
package migration

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/migrate/redisrate"
)

// The calls of redis_rate compile with the bridge.
var (
	_ interface {
		Allow(context.Context, string, redis_rate.Limit) (*redis_rate.Result, error)
		AllowN(context.Context, string, redis_rate.Limit, int) (*redis_rate.Result, error)
		AllowAtMost(context.Context, string, redis_rate.Limit, int) (*redis_rate.Result, error)
		Reset(context.Context, string) error
	} = (*redis_rate.Limiter)(nil)
	_ interface {
		Allow(context.Context, string, redisrate.Limit) (*redisrate.Result, error)
		AllowN(context.Context, string, redisrate.Limit, int) (*redisrate.Result, error)
		AllowAtMost(context.Context, string, redisrate.Limit, int) (*redisrate.Result, error)
		Reset(context.Context, string) error
	} = (*redisrate.Limiter)(nil)
)

func TestLimitsAreThoseOfRedisRate(t *testing.T) {
	for _, ours := range []redisrate.Limit{
		redisrate.PerSecond(3), redisrate.PerMinute(100), redisrate.PerHour(10), {}, {Rate: 1, Burst: 5, Period: 90 * time.Second},
	} {
		theirs := redis_rate.Limit(ours) // of the same fields
		if ours.String() != theirs.String() || ours.IsZero() != theirs.IsZero() {
			t.Errorf("%q, %t; redis_rate: %q, %t", ours, ours.IsZero(), theirs, theirs.IsZero())
		}
	}
	if a, b := redisrate.PerSecond(3), redis_rate.PerSecond(3); redis_rate.Limit(a) != b {
		t.Errorf("%v, %v", a, b)
	}
	if a, b := redisrate.PerMinute(3), redis_rate.PerMinute(3); redis_rate.Limit(a) != b {
		t.Errorf("%v, %v", a, b)
	}
	if a, b := redisrate.PerHour(3), redis_rate.PerHour(3); redis_rate.Limit(a) != b {
		t.Errorf("%v, %v", a, b)
	}
}

// slack is for how long a test may take: buckets fill during it. A token takes far longer.
const slack = 30 * time.Second

// Both libraries make the same random calls on one server, whose clock is stepped between them.
func TestDecisionsAreThoseOfRedisRate(t *testing.T) {
	server, clock := redistest.StartWithClock(t)
	client, ctx := server.Client(), t.Context()
	theirs := redis_rate.NewLimiter(client)
	ours := redisrate.NewLimiter(client, redisstore.WithTimeout(5*time.Second), redisstore.WithoutDenialCache())
	defer func() { _ = ours.Close() }()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	counts := map[string]int{}

	for _, limit := range []redisrate.Limit{
		redisrate.PerHour(10),
		{Rate: 7, Burst: 20, Period: 24 * time.Hour}, // a token takes no whole number of microseconds
		{Rate: 24, Burst: 3, Period: 24 * time.Hour},
	} {
		token := limit.Period / time.Duration(limit.Rate)
		key := limit.String()
		for range 400 {
			n := random.IntN(limit.Burst + 3)
			what, atMost := "AllowN", random.IntN(3) == 0
			one, other := theirs.AllowN, ours.AllowN
			if atMost {
				what, one, other = "AllowAtMost", theirs.AllowAtMost, ours.AllowAtMost
			}
			want, err := one(ctx, key, redis_rate.Limit(limit), n)
			if err != nil {
				t.Fatal(err)
			}
			got, err := other(ctx, key, limit, n)
			if err != nil {
				t.Fatal(err)
			}
			denied := want.RetryAfter != -1
			counts[what+map[bool]string{true: ", denied", false: ", allowed"}[denied]]++

			// What differs, and is documented so.
			if denied {
				want.Remaining = got.Remaining // theirs is 0
			}
			if denied && n > limit.Burst && !atMost {
				want.RetryAfter = redisrate.Never
			}
			part := want.Allowed > 0 && want.Allowed < n // of which theirs takes a part of a token too
			if part {
				want.ResetAfter = got.ResetAfter
			}
			if limit.Period%time.Duration(limit.Rate) != 0 { // whole numbers may be rounded down
				if got.Remaining == want.Remaining+1 {
					want.Remaining++
				}
				if part && got.Allowed == want.Allowed+1 {
					want.Allowed++
				}
			}

			if got.Allowed != want.Allowed || got.Remaining != want.Remaining || got.Limit != redisrate.Limit(want.Limit) ||
				!near(got.RetryAfter, want.RetryAfter) || !near(got.ResetAfter, want.ResetAfter) {
				t.Fatalf("%s(%d) of %s = %+v; redis_rate: %+v", what, n, limit, *got, *want)
			}

			switch {
			case part, random.IntN(20) == 0:
				if err := theirs.Reset(ctx, key); err != nil {
					t.Fatal(err)
				}
				if err := ours.Reset(ctx, key); err != nil {
					t.Fatal(err)
				}
			case random.IntN(2) == 0:
				clock.Step(time.Duration(random.IntN(3*limit.Burst)) * token / 4)
			}
		}
	}
	t.Log(counts)
	for _, what := range []string{"AllowN, allowed", "AllowN, denied", "AllowAtMost, allowed", "AllowAtMost, denied"} {
		if counts[what] == 0 {
			t.Errorf("no %s", what)
		}
	}
}

func near(a, b time.Duration) bool { return a == b || a > 0 && b > 0 && (a-b).Abs() < slack }

// A limit that another call has for the same key keeps the tokens that were used, and redis_rate the
// time.
func TestAChangeOfRateDiffersFromRedisRate(t *testing.T) {
	client, ctx := redistest.Start(t).Client(), t.Context()
	theirs := redis_rate.NewLimiter(client)
	ours := redisrate.NewLimiter(client, redisstore.WithTimeout(5*time.Second))
	defer func() { _ = ours.Close() }()
	if _, err := theirs.AllowN(ctx, "k", redis_rate.PerHour(10), 5); err != nil {
		t.Fatal(err)
	}
	if _, err := ours.AllowN(ctx, "k", redisrate.PerHour(10), 5); err != nil {
		t.Fatal(err)
	}
	want, err := theirs.Allow(ctx, "k", redis_rate.PerHour(100))
	if err != nil || want.Remaining < 48 || want.Remaining > 50 { // half an hour, and one, of 100
		t.Errorf("redis_rate: %+v, %v", want, err)
	}
	got, err := ours.Allow(ctx, "k", redisrate.PerHour(100))
	if err != nil || got.Remaining != 94 {
		t.Errorf("%+v, %v", got, err)
	}
}
