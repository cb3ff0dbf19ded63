package redisrate_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	redis_rate "github.com/lockkeeper/lockkeeper/migrate/redisrate"
)

func Example() {
	server, err := miniredis.Run() // yours goes here
	if err != nil {
		panic(err)
	}
	defer server.Close()
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer func() { _ = rdb.Close() }()

	limiter := redis_rate.NewLimiter(rdb, redisstore.WithTimeout(5*time.Second))
	defer func() { _ = limiter.Close() }()

	ctx := context.Background()
	for range 3 {
		res, err := limiter.Allow(ctx, "tenant:7", redis_rate.PerHour(2))
		if err != nil {
			panic(err)
		}
		fmt.Println("allowed", res.Allowed, "remaining", res.Remaining)
	}
	// Output:
	// allowed 1 remaining 1
	// allowed 1 remaining 0
	// allowed 0 remaining 0
}
