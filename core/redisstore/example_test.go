package redisstore_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A service with its store, from its start to its end.
func Example() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{
		Addr:                  "redis.internal:6379",
		Username:              "lockkeeper", // with the rights of docs/redis.md
		Password:              os.Getenv("REDIS_PASSWORD"),
		TLSConfig:             &tls.Config{MinVersion: tls.VersionTLS12},
		ContextTimeoutEnabled: true, // required
		MinIdleConns:          4,    // or the first calls wait for connections
	})
	defer func() { _ = client.Close() }() // after the store
	st, err := redisstore.New(client)
	if err != nil {
		panic(err) // an option or the client; New sends nothing
	}
	defer st.Close()

	findings, err := st.Check(ctx)
	if err != nil {
		slog.Error("Redis cannot be checked", "error", err)
	}
	for _, finding := range findings {
		slog.Warn("Redis weakens a promise", "finding", finding)
	}

	carts, err := lock.New(st, "carts")
	if err != nil {
		panic(err)
	}
	err = carts.Do(ctx, "42", func(context.Context) error { return nil })
	if errors.Is(err, store.ErrUnavailable) {
		slog.Error("Redis cannot lock", "error", err)
	}

	// At the end, when the server takes no more requests:
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	if err := st.Shutdown(ctx); err != nil {
		slog.Error("something is left in Redis until it expires", "error", err)
	}
}

// A client without ContextTimeoutEnabled is refused, since its calls would outlast the store's
// deadlines.
func ExampleNew_clientIgnoresDeadlines() {
	client := redis.NewClient(&redis.Options{Addr: "redis.internal:6379"})
	defer func() { _ = client.Close() }()
	_, err := redisstore.New(client)
	fmt.Println(err)
	// Output: redisstore: New: the client ignores the deadlines of contexts; set ContextTimeoutEnabled in its options
}

// A Cluster: give the addresses of several nodes, and never set ReadOnly, RouteByLatency or
// RouteRandomly, since replicas lag.
func ExampleNew_cluster() {
	st, err := redisstore.New(redis.NewClusterClient(&redis.ClusterOptions{
		Addrs:                 []string{"a.redis.internal:6379", "b.redis.internal:6379"},
		ContextTimeoutEnabled: true,
		MinIdleConns:          4,
	}))
	if err != nil {
		panic(err)
	}
	defer st.Close()
}

// A master behind Sentinel, in another region. A failover may lose the last grants; with replica
// acknowledgements that is less likely.
func ExampleNew_sentinel() {
	st, err := redisstore.New(redis.NewFailoverClient(&redis.FailoverOptions{
		MasterName:            "main",
		SentinelAddrs:         []string{"a.redis.internal:26379", "b.redis.internal:26379", "c.redis.internal:26379"},
		ContextTimeoutEnabled: true,
		MinIdleConns:          4,
	}), redisstore.WithTimeout(time.Second), redisstore.WithReplicaAcks(1, 100*time.Millisecond))
	if err != nil {
		panic(err)
	}
	defer st.Close()
}
