package tokens

import (
	"context"
	"os"
	"os/exec"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func start(t *testing.T) *redisserver.Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKKEEPER_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	server, err := redisserver.Start(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// Every contender enforces the limit: otherwise the comparison would be of different things.
func TestContendersLimit(t *testing.T) {
	server := start(t)
	l, err := open(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	ctx := context.Background()
	for _, row := range []string{lockkeeper, asking, inMemory, redisRate, ulule, throttledGo, byHand} {
		t.Run(row, func(t *testing.T) {
			const n = 5
			limiter, err := l.of(row, perDay(n))
			if err != nil {
				t.Fatal(err)
			}
			for i := range n {
				if allowed, err := limiter(ctx, row+" a"); err != nil || !allowed {
					t.Fatalf("token %d of %d: allowed %v, %v", i+1, n, allowed, err)
				}
			}
			for range 3 {
				if allowed, err := limiter(ctx, row+" a"); err != nil || allowed {
					t.Errorf("one more than %d: allowed %v, %v", n, allowed, err)
				}
			}
			if allowed, err := limiter(ctx, row+" b"); err != nil || !allowed {
				t.Errorf("another key: allowed %v, %v", allowed, err)
			}
		})
	}
}

// What a row of reservations does is charged in the end: what was used, and not the estimate.
func TestActionsCharge(t *testing.T) {
	server := start(t)
	l, err := open(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	ctx, limit := context.Background(), perDay(100)
	for where, st := range map[string]store.Buckets{"Redis": l.store, "memory": l.memory} {
		all, err := actions(st, limit)
		if err != nil {
			t.Fatal(err)
		}
		for row, want := range map[string]int64{allowOne: 4, allowTwo: 4, reserveOne: 8, reserveTwo: 8, allTwo: 4} {
			for i := range 4 {
				if err := all[row](ctx, i, row, "of "+row); err != nil {
					t.Fatalf("%s, %s: %v", where, row, err)
				}
			}
			plan := tokenbucket.Per(100, day)
			of := map[string]*tokenbucket.Limiter{}
			for name, p := range map[string]tokenbucket.Plan{
				"tokens": plan, "teams": plan, "both": tokenbucket.Limits{plan.Named("requests"), plan.Named("tokens")},
			} {
				if of[name], err = tokenbucket.New(st, name, p); err != nil {
					t.Fatal(err)
				}
			}
			used := func(limiter, key string) int64 {
				d, err := of[limiter].Peek(ctx, key)
				if err != nil {
					t.Fatal(err)
				}
				states := d.Limits()
				return 100 - states[len(states)-1].Remaining
			}
			limiter := "tokens"
			if row == allowTwo || row == reserveTwo {
				limiter = "both"
			}
			if got := used(limiter, row); got != want {
				t.Errorf("%s, %s: %d tokens charged, want %d", where, row, got, want)
			}
			if row == allTwo {
				if got := used("teams", "of "+row); got != want {
					t.Errorf("%s, %s: %d tokens of the team charged, want %d", where, row, got, want)
				}
			}
		}
	}
}

func TestUnknownRow(t *testing.T) {
	if _, err := (&limiters{}).of("unknown", perDay(1)); err == nil {
		t.Error("a limiter of an unknown row")
	}
}

// The script for many keys decides as the one for a single key.
func TestScriptsDecideAlike(t *testing.T) {
	server := start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	one, many := redis.NewScript(gcra), redis.NewScript(gcraMany)
	limit := perDay(2)
	for i := range 4 {
		a, err := one.Run(ctx, client, []string{"a"}, limit.cost(), limit.capacity()).Int64()
		if err != nil {
			t.Fatal(err)
		}
		bc, err := many.Run(ctx, client, []string{"b", "c"}, limit.cost(), limit.capacity()).Int64Slice()
		if err != nil {
			t.Fatal(err)
		}
		for _, debt := range append(bc, a) {
			if allowed := debt >= 0; allowed != (i < 2) {
				t.Errorf("decision %d with 2 allowed: %d", i+1, debt)
			}
		}
	}
	ttl, err := client.PTTL(ctx, "b").Result()
	if err != nil || ttl <= 0 || ttl > day {
		t.Errorf("the bucket is kept for %v, %v", ttl, err)
	}
}

func TestExhaust(t *testing.T) {
	server := start(t)
	l, err := open(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer l.close()
	limiter, err := l.of(redisRate, perDay(1))
	if err != nil {
		t.Fatal(err)
	}
	names := keys("key", 200)
	if err := exhaust(context.Background(), limiter, names); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if allowed, err := limiter(context.Background(), name); err != nil || allowed {
			t.Fatalf("%s: allowed %v, %v", name, allowed, err)
		}
	}
}
